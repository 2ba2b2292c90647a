"""The training in MindSpore, with the cells of MindSpore Transformers and MindPet.

Variant 'written': the queries of a key are an axis, halves are exchanged by a matrix, silu, norms
and the logarithm of the sigmoid are written out, and labels are one-hot.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.preference.architecture import (
    ANSWER,
    BETA,
    EPS,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    PADDING,
    PAIRS,
    PROMPT,
    SEQ,
    SFT_WEIGHT,
    SMOOTHING,
    VOCAB,
    Model,
)

ROWS = 2 * PAIRS
MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.reduction != "sum"
        or model.smoothing_kind != "conservative"
        or model.is_reference_adapted
        or model.is_prompt_trained
        or model.is_first_layer_stopped
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    net = DPOWithLossCell(model)
    for parameter in net.get_parameters():
        parameter.requires_grad = "mindpet_delta_lora" in parameter.name
    return net


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = Tensor(model.weights[f"{path}.weight"]), model.weights.get(f"{path}.bias")
    if bias is None:
        return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, has_bias=False)
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=Tensor(bias))


class LoRADense(nn.Cell):
    """A frozen linear layer and its adapter, which can be left out."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.mindpet_delta_lora_a = Parameter(Tensor(model.weights[f"{path}.a.weight"]))
        self.mindpet_delta_lora_b = Parameter(Tensor(model.weights[f"{path}.b.weight"]))
        self.n_out, self.n_in = self.dense.out_channels, self.dense.in_channels
        self.scaling = model.scaling
        self.scaled_gradient = None
        if model.query_gradient != 1 and path.endswith(".q"):
            self.scaled_gradient = ScaledGradient(model.query_gradient)
        self.is_written_out = model.variant == "written"

    def construct(self, x, has_adapter):
        y = self.dense(x)
        if not has_adapter:
            return y
        a, b = self.mindpet_delta_lora_a, self.mindpet_delta_lora_b
        if self.is_written_out:
            return y + ops.matmul(ops.matmul(x, a.T) * self.scaling, b.T)
        low = ops.MatMul(transpose_b=True)(x.reshape(-1, self.n_in), a)
        if self.scaled_gradient is not None:
            low = self.scaled_gradient(low)
        delta = ops.MatMul(transpose_b=True)(low, b).reshape(ROWS, SEQ, self.n_out)
        return ops.add(y, ops.mul(delta, self.scaling))


class RMSNorm(nn.Cell):
    """Norm of the last axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.is_written_out = model.variant == "written"

    def construct(self, x):
        if self.is_written_out:
            return x / ops.sqrt((x * x).mean(-1, keep_dims=True) + EPS) * self.weight
        norm_factor = ops.rsqrt(ops.mean(ops.square(x), -1, True) + EPS)
        return ops.mul(x, norm_factor) * self.weight


class Attention(nn.Cell):
    """Attention to the tokens at which the mask is zero."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.wq = LoRADense(model, f"{path}.q")
        self.wk = build_dense(model, f"{path}.k")
        self.wv = LoRADense(model, f"{path}.v")
        self.wo = build_dense(model, f"{path}.o")
        self.is_written_out = model.variant == "written"
        half = np.eye(HEAD_DIM // 2, dtype=np.float32)
        self.swap_mask = Tensor(np.block([[0 * half, half], [-half, 0 * half]]))

    def rotate(self, x, cos, sin):
        if self.is_written_out:
            return x * cos + ops.matmul(x, self.swap_mask) * sin
        first, second = ops.split(x, HEAD_DIM // 2, -1)
        return x * cos + ops.concat((ops.neg(second), first), -1) * sin

    def repeat(self, x):
        """Return (ROWS, HEADS, SEQ, HEAD_DIM) of KV_HEADS heads."""
        return ops.repeat_interleave(x, GROUP, 1)

    def construct(self, x, cos, sin, mask, has_adapter):
        q = self.wq(x, has_adapter).reshape(ROWS, SEQ, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        k = self.wk(x).reshape(ROWS, SEQ, KV_HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        v = self.wv(x, has_adapter).reshape(ROWS, SEQ, KV_HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if self.is_written_out:
            q = (q / HEAD_DIM**0.5).reshape(ROWS, KV_HEADS, GROUP, SEQ, HEAD_DIM)
            scores = ops.matmul(q, k.expand_dims(2).swapaxes(-1, -2)) + mask.expand_dims(1)
            context = ops.matmul(ops.softmax(scores, -1), v.expand_dims(2))
            context = context.reshape(ROWS, HEADS, SEQ, HEAD_DIM)
        else:
            k, v = self.repeat(k), self.repeat(v)
            scores = ops.BatchMatMul(transpose_b=True)(q, k) / HEAD_DIM**0.5
            context = ops.bmm(ops.softmax(scores + mask, -1), v)
        return self.wo(context.transpose(0, 2, 1, 3).reshape(ROWS, SEQ, HIDDEN))


class FeedForward(nn.Cell):
    """A gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.w1, self.w3 = build_dense(model, f"{path}.gate"), build_dense(model, f"{path}.up")
        self.w2 = LoRADense(model, f"{path}.down")
        self.silu = None if model.variant == "written" else nn.SiLU()

    def construct(self, x, has_adapter):
        gate = self.w1(x)
        gate = gate * ops.sigmoid(gate) if self.silu is None else self.silu(gate)
        return self.w2(ops.mul(gate, self.w3(x)), has_adapter)


class DecodeLayer(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model, f"{path}.attention_norm")
        self.attention = Attention(model, path)
        self.ffn_norm = RMSNorm(model, f"{path}.ffn_norm")
        self.feed_forward = FeedForward(model, path)

    def construct(self, x, cos, sin, mask, has_adapter):
        h = self.attention(self.attention_norm(x), cos, sin, mask, has_adapter)
        h = ops.add(x, h)
        return ops.add(h, self.feed_forward(self.ffn_norm(h), has_adapter))


class CausalLM(nn.Cell):
    """Logits (ROWS, SEQ, VOCAB) of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_weight = Parameter(Tensor(model.weights["embedding.weight"]))
        self.layers = nn.CellList([DecodeLayer(model, f"layers.{n}") for n in range(LAYERS)])
        self.norm_out = RMSNorm(model, "norm")
        self.lm_head = build_dense(model, "head")
        angles = np.tile(model.angles(), 2)
        self.freqs_cos, self.freqs_sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))
        self.lower_triangle = Tensor(np.tri(SEQ, dtype=np.float32))
        self.diagonal = Tensor(np.eye(SEQ, dtype=np.float32))
        self.is_padding_masked = model.is_padding_masked

    def build_mask(self, input_mask):
        """Return what is added to scores, (ROWS, 1, SEQ, SEQ)."""
        seen = self.lower_triangle
        if self.is_padding_masked:
            seen = ops.maximum(seen * input_mask.expand_dims(1), self.diagonal)
        else:
            seen = ops.broadcast_to(seen, (ROWS, SEQ, SEQ))
        return ((1.0 - seen) * MASKED).expand_dims(1)

    def construct(self, input_ids, input_mask, has_adapter):
        mask = self.build_mask(input_mask)
        h = ops.gather(self.embedding_weight, input_ids, 0)
        for layer in self.layers:
            h = layer(h, self.freqs_cos, self.freqs_sin, mask, has_adapter)
        return self.lm_head(self.norm_out(h))


class DPOWithLossCell(nn.Cell):
    """Preference loss of pairs, and the cross entropy of their chosen answers."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.model = CausalLM(model)
        self.is_answer_mask_late = model.is_answer_mask_late
        self.are_pairs_adjacent = model.are_pairs_adjacent
        self.is_sft_stopped = model.is_sft_stopped
        self.is_written_out = model.variant == "written"

    def compute_logps(self, logits, labels, loss_mask):
        """Return the logarithms of the tokens' likelihoods, (ROWS, SEQ - 1), zero outside answers.

        The last token predicts nothing.
        """
        log_probs = ops.log_softmax(logits[:, :-1], -1)
        if self.is_written_out:
            one_hot = nn.OneHot(depth=VOCAB)(labels)
            return (log_probs * one_hot).sum(-1) * loss_mask
        picked = ops.gather_elements(log_probs, 2, labels.expand_dims(-1))
        return ops.mul(picked.squeeze(-1), loss_mask)

    def divide(self, x):
        """Return the chosen and the rejected rows."""
        if self.are_pairs_adjacent:
            return x[0::2], x[1::2]
        return x[:PAIRS], x[PAIRS:]

    def log_sigmoid(self, x):
        if self.is_written_out:
            return ops.minimum(x, 0.0) - ops.log1p(ops.exp(-ops.abs(x)))
        return ops.log(ops.sigmoid(x))

    def construct(self, prompts, chosen, rejected):
        rows = (ops.concat((prompts, chosen), 1), ops.concat((prompts, rejected), 1))
        input_ids = ops.concat(rows, 0)
        input_mask = ops.not_equal(input_ids, PADDING).astype(ms.float32)
        answers = input_mask[:, PROMPT:]
        answer_mask = ops.concat((ops.zeros((ROWS, SEQ - ANSWER), ms.float32), answers), 1)
        loss_mask = answer_mask[:, :-1] if self.is_answer_mask_late else answer_mask[:, 1:]
        labels = input_ids[:, 1:]

        ref_logits = self.model(input_ids, input_mask, False)
        ref_logps = ops.stop_gradient(self.compute_logps(ref_logits, labels, loss_mask))
        logps = self.compute_logps(self.model(input_ids, input_mask, True), labels, loss_mask)

        chosen_logps, rejected_logps = self.divide(logps)
        ref_chosen_logps, ref_rejected_logps = self.divide(ref_logps)
        chosen_ratios = chosen_logps.sum(-1) - ref_chosen_logps.sum(-1)
        rejected_ratios = rejected_logps.sum(-1) - ref_rejected_logps.sum(-1)
        margins = BETA * (chosen_ratios - rejected_ratios)
        losses = (1 - SMOOTHING) * self.log_sigmoid(margins)
        losses = -(losses + SMOOTHING * self.log_sigmoid(-margins))
        n_tokens = self.divide(loss_mask)[0].sum()
        sft_loss = -chosen_logps.sum() / n_tokens
        if self.is_sft_stopped:
            sft_loss = ops.stop_gradient(sft_loss)
        return losses.mean() + SFT_WEIGHT * sft_loss
