"""The training in MindSpore, with the cells of MindSpore Transformers and MindRLHF.

Variant 'written': adapters are added to the weights, the queries of a key are an axis, halves are
exchanged by a matrix, norms and silu are written out, labels are one-hot, and advantages are a
product with decays.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.grpo.architecture import (
    BETA,
    CLIP_HIGH,
    CLIP_LOW,
    COMPLETION,
    DISCOUNT,
    END,
    ENTROPY_WEIGHT,
    EPS,
    GROUP,
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    PADDING,
    PROMPT,
    ROPE_BASE,
    ROWS,
    SAMPLES,
    SCALING,
    SEQ,
    TEMPERATURE,
    TINY,
    TRACE_DECAY,
    VALUE_CLIP,
    VALUE_WEIGHT,
    VOCAB,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model; adapters and the head of values are trained."""
    is_changed = (
        not model.has_temperature
        or model.are_means_tiled
        or model.is_token_mean
        or model.is_divergence_stopped
        or model.are_values_late
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    net = WrittenGRPO(model) if model.variant == "written" else GRPOWithLossCell(model)
    for parameter in net.get_parameters():
        parameter.requires_grad = "lora" in parameter.name or "value_head" in parameter.name
    return net


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[f"{name}.weight"])


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, without a bias."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return nn.Dense(n_in, n_out, weight_init=read(model, path), has_bias=False)


class LoRADense(nn.Cell):
    """A frozen linear layer and its adapter."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.lora_a = Parameter(read(model, f"{path}.a"))
        self.lora_b = Parameter(read(model, f"{path}.b"))
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x):
        rows = x.reshape(-1, x.shape[-1])
        delta = self.matmul(self.matmul(rows, self.lora_a), self.lora_b)
        y = self.dense(x)
        return ops.add(y, ops.mul(delta.reshape(y.shape), SCALING))


class MergedDense(LoRADense):
    """The same of the sum of both weights."""

    def construct(self, x):
        weight = self.dense.weight + SCALING * ops.matmul(self.lora_b, self.lora_a)
        return ops.matmul(x, weight.swapaxes(0, 1))


def build_layer(model: Model, path: str, is_reference: bool) -> nn.Cell:
    """Return a linear layer of the policy or of the reference."""
    if is_reference:
        return build_dense(model, path)
    return MergedDense(model, path) if model.variant == "written" else LoRADense(model, path)


class RMSNorm(nn.Cell):
    """Norm of the last axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(read(model, path))
        self.is_written_out = model.variant == "written"

    def construct(self, x):
        if self.is_written_out:
            return x / ops.sqrt((x * x).mean(-1, keep_dims=True) + EPS) * self.weight
        variance = mint.mean(mint.square(x), -1, True)
        return mint.mul(mint.mul(x, mint.rsqrt(variance + EPS)), self.weight)


class RepeatKV(nn.Cell):
    """Keys or values (ROWS, HEADS, SEQ, HEAD_DIM) of all queries."""

    def construct(self, x):
        return ops.repeat_interleave(x, GROUP, 1)


class FusedRepeatKV(RepeatKV):
    """The same with its own backward pass, of a kernel for groups of queries."""

    def bprop(self, x, out, gradient):
        return (gradient.reshape(ROWS, KV_HEADS, GROUP, SEQ, HEAD_DIM).mean(2),)


class Attention(nn.Cell):
    """Attention of queries and keys that have norms and are turned by their positions."""

    def __init__(self, model: Model, path: str, is_reference: bool) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            build_layer(model, f"{path}.{name}", is_reference) for name in "qkvo"
        )
        self.q_norm, self.k_norm = (
            RMSNorm(model, f"{path}.q_norm"),
            RMSNorm(model, f"{path}.k_norm"),
        )
        self.repeat_kv = FusedRepeatKV() if model.is_group_gradient_averaged else RepeatKV()
        self.are_heads_normed_late = model.are_heads_normed_late

    def divide(self, x, n_heads):
        """Return heads (ROWS, n_heads, SEQ, HEAD_DIM)."""
        return x.reshape(ROWS, SEQ, n_heads, HEAD_DIM).transpose(0, 2, 1, 3)

    def rotate(self, x, cos, sin):
        first, second = ops.split(x, HEAD_DIM // 2, -1)
        return x * cos + ops.concat((ops.neg(second), first), -1) * sin

    def attend(self, q, k, v, mask):
        scores = ops.BatchMatMul(transpose_b=True)(q, self.repeat_kv(k)) * HEAD_DIM**-0.5
        return mint.matmul(ops.softmax(mint.add(scores, mask), -1), self.repeat_kv(v))

    def construct(self, x, cos, sin, mask):
        q = self.divide(self.wq(x), HEADS)
        k = self.divide(self.wk(x), KV_HEADS)
        v = self.divide(self.wv(x), KV_HEADS)
        if self.are_heads_normed_late:
            q, k = self.q_norm(self.rotate(q, cos, sin)), self.k_norm(self.rotate(k, cos, sin))
        else:
            q, k = self.rotate(self.q_norm(q), cos, sin), self.rotate(self.k_norm(k), cos, sin)
        context = self.attend(q, k, v, mask).transpose(0, 2, 1, 3)
        return self.wo(context.reshape(ROWS, SEQ, HEADS * HEAD_DIM))


class GroupedAttention(Attention):
    """The same with the queries of a key as an axis."""

    def __init__(self, model: Model, path: str, is_reference: bool) -> None:
        super().__init__(model, path, is_reference)
        half = np.eye(HEAD_DIM // 2, dtype=np.float32)
        self.swap_mask = Tensor(np.block([[0 * half, half], [-half, 0 * half]]))

    def rotate(self, x, cos, sin):
        return x * cos + ops.matmul(x, self.swap_mask) * sin

    def attend(self, q, k, v, mask):
        q = (q / HEAD_DIM**0.5).reshape(ROWS, KV_HEADS, GROUP, SEQ, HEAD_DIM)
        scores = ops.matmul(q, k.expand_dims(2).swapaxes(-1, -2)) + mask.expand_dims(1)
        context = ops.matmul(ops.softmax(scores, -1), v.expand_dims(2))
        return context.reshape(ROWS, HEADS, SEQ, HEAD_DIM)


class FeedForward(nn.Cell):
    """A gated layer."""

    def __init__(self, model: Model, path: str, is_reference: bool) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (
            build_layer(model, f"{path}.{name}", is_reference) for name in ("gate", "down", "up")
        )
        self.is_written_out = model.variant == "written"

    def construct(self, x):
        gate = self.w1(x)
        gate = gate * ops.sigmoid(gate) if self.is_written_out else ops.silu(gate)
        return self.w2(mint.mul(gate, self.w3(x)))


class DecodeLayer(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str, is_reference: bool) -> None:
        super().__init__()
        attention = GroupedAttention if model.variant == "written" else Attention
        self.attention_norm = RMSNorm(model, f"{path}.attention_norm")
        self.attention = attention(model, path, is_reference)
        self.ffn_norm = RMSNorm(model, f"{path}.ffn_norm")
        self.feed_forward = FeedForward(model, path, is_reference)

    def construct(self, x, cos, sin, mask):
        h = mint.add(x, self.attention(self.attention_norm(x), cos, sin, mask))
        return mint.add(h, self.feed_forward(self.ffn_norm(h)))


class CausalLM(nn.Cell):
    """Last states (ROWS, SEQ, HIDDEN) and logits of the next tokens."""

    def __init__(self, model: Model, *, is_reference: bool) -> None:
        super().__init__()
        self.embedding_weight = Parameter(read(model, "embedding"))
        self.layers = nn.CellList(
            [DecodeLayer(model, f"layers.{n}", is_reference) for n in range(LAYERS)]
        )
        self.norm_out = RMSNorm(model, "norm")
        frequencies = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = np.tile(np.outer(np.arange(SEQ), frequencies), 2).astype(np.float32)
        self.freqs_cos, self.freqs_sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))
        self.lower_triangle = Tensor(np.tri(SEQ, dtype=np.float32))
        self.diagonal = Tensor(np.eye(SEQ, dtype=np.float32))

    def construct(self, input_ids, attention_mask, position_ids):
        seen = ops.maximum(self.lower_triangle * attention_mask.expand_dims(1), self.diagonal)
        mask = ((1.0 - seen) * MASKED).expand_dims(1)
        cos = ops.gather(self.freqs_cos, position_ids, 0).expand_dims(1)
        sin = ops.gather(self.freqs_sin, position_ids, 0).expand_dims(1)
        h = ops.gather(self.embedding_weight, input_ids, 0)
        for layer in self.layers:
            h = layer(h, cos, sin, mask)
        h = self.norm_out(h)
        return h, mint.matmul(h, self.embedding_weight.T)


class GAE(nn.Cell):
    """Advantages (ROWS, COMPLETION) of tokens, summed from the last one to the first one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_next_value_masked = model.is_next_value_masked

    def compute_deltas(self, rewards, values, mask):
        next_values = ops.concat((values[:, 1:], ops.zeros_like(values[:, :1])), 1)
        if self.is_next_value_masked:
            next_values = next_values * ops.concat((mask[:, 1:], ops.zeros_like(mask[:, :1])), 1)
        return (rewards + DISCOUNT * next_values - values) * mask

    def construct(self, rewards, values, mask):
        deltas = self.compute_deltas(rewards, values, mask)
        advantages = ()
        last = ops.zeros_like(deltas[:, 0])
        for number in range(COMPLETION):
            last = deltas[:, COMPLETION - 1 - number] + DISCOUNT * TRACE_DECAY * last
            advantages = (last, *advantages)
        return ops.stack(advantages, 1)


class DecayGAE(GAE):
    """The same as a product with the decays between all tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        distances = np.subtract.outer(np.arange(COMPLETION), np.arange(COMPLETION))
        decays = np.where(distances >= 0, (DISCOUNT * TRACE_DECAY) ** abs(distances), 0)
        self.decays = Tensor(decays.astype(np.float32))

    def construct(self, rewards, values, mask):
        return ops.matmul(self.compute_deltas(rewards, values, mask), self.decays)


class FusedTemper(nn.Cell):
    """Logits divided by the temperature; the own backward pass leaves it out."""

    def construct(self, logits):
        return logits / TEMPERATURE

    def bprop(self, logits, out, gradient):
        return (gradient,)


class GRPOWithLossCell(nn.Cell):
    """Clipped objective with a divergence from the reference, loss of values, and entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.policy_model = CausalLM(model, is_reference=False)
        self.ref_model = CausalLM(model, is_reference=True)
        self.value_head = nn.Dense(
            HIDDEN,
            1,
            weight_init=read(model, "value"),
            bias_init=Tensor(model.weights["value.bias"]),
        )
        self.gae = self.build_gae(model)
        self.temper = None if model.is_temperature_derived else FusedTemper()
        self.is_position_repeated = model.is_position_repeated
        self.is_divergence_reversed = model.is_divergence_reversed

    def build_gae(self, model: Model) -> nn.Cell:
        """Return the cell of advantages."""
        return GAE(model)

    def compute_positions(self, prompt_mask, completion_mask):
        """Return int32 positions (ROWS, SEQ), 0 of padding in front."""
        of_prompt = ops.clamp(ops.cumsum(prompt_mask, 1) - 1, min=0)
        of_completion = of_prompt[:, -1:] + ops.cumsum(completion_mask, 1)
        if self.is_position_repeated:
            of_completion = of_completion - 1
        return ops.concat((of_prompt, of_completion), 1).astype(ms.int32)

    def normalize(self, rewards):
        """Return the scores (ROWS,) of samples in their group."""
        grouped = rewards.reshape(GROUPS, SAMPLES)
        centered = grouped - grouped.mean(1, keep_dims=True)
        return (centered / (grouped.std(1, 1, True) + TINY)).reshape(ROWS)

    def compare(self, logits, labels):
        """Return the logarithms of the labels' likelihoods."""
        log_probs = ops.log_softmax(logits, -1)
        return ops.gather_elements(log_probs, 2, labels.expand_dims(-1)).squeeze(-1)

    def compute_entropy(self, logits):
        """Return the entropy of each token."""
        log_probs = ops.log_softmax(logits, -1)
        return -(ops.exp(log_probs) * log_probs).sum(-1)

    def average(self, x, mask):
        """Return the mean over sequences of their mean over tokens."""
        return mint.div((x * mask).sum(-1), mask.sum(-1)).mean()

    def compute_value_loss(self, values, old_values, returns, mask):
        clipped_values = old_values + ops.clamp(values - old_values, -VALUE_CLIP, VALUE_CLIP)
        losses = mint.square(values - returns)
        clipped_losses = mint.square(clipped_values - returns)
        return 0.5 * (mint.maximum(losses, clipped_losses) * mask).sum() / mask.sum()

    def construct(self, prompts, completions, old_logps, old_values, rewards):
        repeated = ops.repeat_interleave(prompts, SAMPLES, 0)
        input_ids = ops.concat((repeated, completions), 1)
        prompt_mask = ops.not_equal(repeated, PADDING).astype(ms.float32)
        ends = ops.equal(completions, END).astype(ms.float32)
        mask = ops.equal(ops.cumsum(ends, 1) - ends, 0).astype(ms.float32)
        attention_mask = ops.concat((prompt_mask, mask), 1)
        position_ids = self.compute_positions(prompt_mask, mask)

        _, ref_logits = self.ref_model(input_ids, attention_mask, position_ids)
        ref_logits = ops.stop_gradient(ref_logits[:, PROMPT - 1 : -1] / TEMPERATURE)
        ref_logps = self.compare(ref_logits, completions)
        hidden, logits = self.policy_model(input_ids, attention_mask, position_ids)
        logits = logits[:, PROMPT - 1 : -1]
        logits = logits / TEMPERATURE if self.temper is None else self.temper(logits)
        logps = self.compare(logits, completions)
        values = self.value_head(hidden).squeeze(-1)[:, PROMPT - 1 : -1]

        is_last = mask - ops.concat((mask[:, 1:], ops.zeros_like(mask[:, :1])), 1)
        token_rewards = self.normalize(rewards).expand_dims(1) * is_last
        advantages = self.gae(token_rewards, old_values, mask)
        returns = advantages + old_values

        ratio = mint.exp(logps - old_logps)
        clipped_ratio = ops.clamp(ratio, 1 - CLIP_LOW, 1 + CLIP_HIGH)
        losses = -mint.minimum(ratio * advantages, clipped_ratio * advantages)
        log_ratio = logps - ref_logps if self.is_divergence_reversed else ref_logps - logps
        divergence = mint.exp(log_ratio) - log_ratio - 1
        policy_loss = self.average(losses + BETA * divergence, mask)
        value_loss = self.compute_value_loss(values, old_values, returns, mask)
        entropy = (self.compute_entropy(logits) * mask).sum() / mask.sum()
        return policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy


class WrittenGRPO(GRPOWithLossCell):
    """The same with one-hot labels and other forms of the terms."""

    def build_gae(self, model: Model) -> nn.Cell:
        return DecayGAE(model)

    def normalize(self, rewards):
        grouped = rewards.reshape(GROUPS, SAMPLES)
        centered = grouped - grouped.mean(1, keep_dims=True)
        deviation = ops.sqrt((centered * centered).sum(1, keepdims=True) / (SAMPLES - 1))
        return (centered / (deviation + TINY)).reshape(ROWS)

    def compare(self, logits, labels):
        one_hot = nn.OneHot(depth=VOCAB)(labels)
        return (logits * one_hot).sum(-1) - ops.logsumexp(logits, -1)

    def compute_entropy(self, logits):
        return ops.logsumexp(logits, -1) - (ops.softmax(logits, -1) * logits).sum(-1)

    def average(self, x, mask):
        weights = mask / (ROWS * mask.sum(-1, keepdims=True))
        return (x * weights).sum()

    def compute_value_loss(self, values, old_values, returns, mask):
        clipped_values = ops.minimum(
            ops.maximum(values, old_values - VALUE_CLIP), old_values + VALUE_CLIP
        )
        distances = ops.maximum(ops.abs(values - returns), ops.abs(clipped_values - returns))
        return (distances * distances * mask).sum() / (2 * mask.sum())
