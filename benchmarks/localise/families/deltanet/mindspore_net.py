"""The hybrid in MindSpore for graph mode, with cells named as in MindSpore Transformers.

Variant 'parallel': all steps of the delta rule at once by the inverse of a triangular matrix, the
framework's convolutions, one layer for gate and up, the experts' weights stacked, operators of
mint, and the losses written out.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.deltanet.architecture import (
    BATCH,
    EPS,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    K_HEADS,
    KERNEL,
    KEY_DIM,
    KV_HEADS,
    LAYERS,
    MOE_LAYER,
    MTP_WEIGHT,
    ROTARY_DIM,
    SEQ,
    TOP_K,
    V_HEADS,
    VALUE_DIM,
    VALUES,
    Model,
    is_attention,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return LossWithMTP(model)


def build_dense(model: Model, *paths: str) -> nn.Dense:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=Tensor(weight), has_bias=False)


class RMSNorm(nn.Cell):
    """Norm of the last axis; the weight is added to an offset, 1 or 0."""

    def __init__(self, model: Model, path: str, offset: float = 1.0) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.offset = offset
        self.is_root_divided = model.variant == "parallel"

    def construct(self, x):
        if self.is_root_divided:
            x = x / mint.sqrt(mint.mean(x * x, dim=-1, keepdim=True) + EPS)
        else:
            x = x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + EPS)
        return x * (self.weight + self.offset) if self.offset else x * self.weight


class ShortConvolution(nn.Cell):
    """A causal depthwise convolution of (BATCH, SEQ, channels), tap by tap, and SiLU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        kernel = model.weights[f"{path}.weight"]
        self.weight = Parameter(Tensor(kernel.reshape(-1, KERNEL)))
        self.before = Tensor(np.zeros((BATCH, KERNEL - 1, len(kernel)), np.float32))

    def construct(self, x):
        padded = ops.concat((self.before, x), 1)
        y = padded[:, :SEQ] * self.weight[:, 0]
        for tap in range(1, KERNEL):
            y = y + padded[:, tap : tap + SEQ] * self.weight[:, tap]
        return ops.silu(y)


class PaddedConvolution(nn.Cell):
    """The same with the framework's convolution."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        kernel = model.weights[f"{path}.weight"]
        n = len(kernel)
        self.pad = nn.ConstantPad1d((KERNEL - 1, 0), 0.0)
        self.conv = nn.Conv1d(
            n, n, KERNEL, pad_mode="valid", group=n, has_bias=False, weight_init=Tensor(kernel)
        )

    def construct(self, x):
        y = self.conv(self.pad(x.transpose(0, 2, 1)))
        return (y * mint.sigmoid(y)).transpose(0, 2, 1)


class RecurrentDeltaRule(nn.Cell):
    """What the state returns, (BATCH, SEQ, V_HEADS, VALUE_DIM), step by step."""

    def construct(self, q, k, v, log_decay, beta):
        decay = ops.exp(log_decay).reshape(BATCH, SEQ, V_HEADS, 1, 1)
        beta = beta.reshape(BATCH, SEQ, V_HEADS, 1, 1)
        q = q * KEY_DIM**-0.5
        state = ops.zeros((BATCH, V_HEADS, KEY_DIM, VALUE_DIM), ms.float32)
        outputs = ()
        for step in range(SEQ):
            key = k[:, step].expand_dims(2)
            state = state * decay[:, step]
            error = v[:, step].expand_dims(2) - ops.matmul(key, state)
            state = state + ops.matmul(key.swapaxes(2, 3), error * beta[:, step])
            outputs += (ops.matmul(q[:, step].expand_dims(2), state).squeeze(2),)
        return ops.stack(outputs, 1)


class ParallelDeltaRule(nn.Cell):
    """The same for all steps at once: the deltas solve (1 + A) deltas = beta v."""

    def __init__(self) -> None:
        super().__init__()
        ones = np.ones((SEQ, SEQ), np.float32)
        self.is_seen, self.is_earlier = Tensor(np.tril(ones)), Tensor(np.tril(ones, -1))
        self.eye = Tensor(np.eye(SEQ, dtype=np.float32))

    def construct(self, q, k, v, log_decay, beta):
        q, k, v = (mint.permute(x, (0, 2, 1, 3)) for x in (q, k, v))
        total = ops.cumsum(mint.permute(log_decay, (0, 2, 1)), -1)
        since = (total.expand_dims(-1) - total.expand_dims(-2)) * self.is_seen
        decay = mint.exp(since) * self.is_seen
        beta = mint.permute(beta, (0, 2, 1)).expand_dims(-1)
        keys = mint.transpose(k, -1, -2)
        power = -mint.matmul(k * beta, keys) * decay * self.is_earlier
        inverse = self.eye + power
        for _ in range(SEQ.bit_length() - 2):  # (1 + A)^-1 = (1 - A)(1 + A^2)(1 + A^4)
            power = mint.matmul(power, power)
            inverse = mint.matmul(inverse, self.eye + power)
        deltas = mint.matmul(inverse, v * beta)
        y = mint.matmul(mint.matmul(q, keys) * decay, deltas) / KEY_DIM**0.5
        return mint.permute(y, (0, 2, 1, 3))


class GatedDeltaNet(nn.Cell):
    """Convolutions, gated delta rule, gated norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        is_parallel = model.variant == "parallel"
        self.wq = build_dense(model, f"{path}.q")
        self.wk = build_dense(model, f"{path}.k")
        self.wv = build_dense(model, f"{path}.v")
        self.w_gate = build_dense(model, f"{path}.z")
        self.w_alpha = build_dense(model, f"{path}.a")
        self.w_beta = build_dense(model, f"{path}.b")
        conv_class = PaddedConvolution if is_parallel else ShortConvolution
        self.q_conv = conv_class(model, f"{path}.conv.q")
        self.k_conv = conv_class(model, f"{path}.conv.k")
        self.v_conv = conv_class(model, f"{path}.conv.v")
        self.A_log = Parameter(Tensor(model.weights[f"{path}.A_log"]))
        self.dt_bias = Parameter(Tensor(model.weights[f"{path}.dt_bias"]))
        self.delta_rule = ParallelDeltaRule() if is_parallel else RecurrentDeltaRule()
        self.out_norm = RMSNorm(model, f"{path}.norm", offset=0.0)
        self.wo = build_dense(model, f"{path}.o")
        self.is_softplus_written = is_parallel
        self.are_heads_joined = model.are_heads_joined
        self.are_heads_tiled = model.are_heads_tiled
        self.beta_factor = model.beta_factor
        self.scaled_gradient = None
        if model.decay_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.decay_gradient)

    def normalize(self, x):
        return x * ops.rsqrt(ops.square(x).sum(-1, keepdims=True) + EPS)

    def prepare(self, x):
        """Return queries or keys (BATCH, SEQ, V_HEADS, KEY_DIM) of length 1."""
        if self.are_heads_joined:
            x = self.normalize(x).reshape(BATCH, SEQ, K_HEADS, 1, KEY_DIM)
        else:
            x = self.normalize(x.reshape(BATCH, SEQ, K_HEADS, 1, KEY_DIM))
        if self.are_heads_tiled:
            x = ops.tile(x, (1, 1, V_HEADS // K_HEADS, 1, 1))
        else:
            x = ops.tile(x, (1, 1, 1, V_HEADS // K_HEADS, 1))
        return x.reshape(BATCH, SEQ, V_HEADS, KEY_DIM)

    def construct(self, x):
        q = self.prepare(self.q_conv(self.wq(x)))
        k = self.prepare(self.k_conv(self.wk(x)))
        v = self.v_conv(self.wv(x)).reshape(BATCH, SEQ, V_HEADS, VALUE_DIM)
        beta = ops.sigmoid(self.w_beta(x))
        if self.beta_factor != 1:
            beta = beta * self.beta_factor
        dt = self.w_alpha(x) + self.dt_bias
        dt = mint.log1p(mint.exp(dt)) if self.is_softplus_written else ops.softplus(dt)
        log_decay = -ops.exp(self.A_log) * dt
        if self.scaled_gradient is not None:
            log_decay = self.scaled_gradient(log_decay)
        y = self.delta_rule(q, k, v, log_decay, beta)
        gate = self.w_gate(x).reshape(BATCH, SEQ, V_HEADS, VALUE_DIM)
        y = self.out_norm(y) * ops.silu(gate)
        return self.wo(y.reshape(BATCH, SEQ, VALUES))


class PartialRotaryEmbedding(nn.Cell):
    """Turn the first dimensions of (BATCH, heads, SEQ, HEAD_DIM)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        angles = np.outer(np.arange(SEQ), model.frequencies()).astype(np.float32)
        self.cos, self.sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))

    def construct(self, x):
        half = ROTARY_DIM // 2
        first, second = x[..., :half], x[..., half:ROTARY_DIM]
        turned = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return ops.concat((*turned, x[..., ROTARY_DIM:]), -1)


class GatedAttention(nn.Cell):
    """Causal attention with a gate on its output; a group of queries is an axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.wq = build_dense(model, f"{path}.q")
        self.wk = build_dense(model, f"{path}.k")
        self.wv = build_dense(model, f"{path}.v")
        self.w_gate = build_dense(model, f"{path}.gate")
        self.wo = build_dense(model, f"{path}.o")
        self.q_norm = RMSNorm(model, f"{path}.q_norm")
        self.k_norm = RMSNorm(model, f"{path}.k_norm")
        self.rotary_embedding = PartialRotaryEmbedding(model)
        self.mask = Tensor(np.triu(np.full((SEQ, SEQ), MASKED, np.float32), 1))

    def split_heads(self, x, heads):
        return x.reshape(BATCH, SEQ, heads, HEAD_DIM)

    def construct(self, x):
        q = self.q_norm(self.split_heads(self.wq(x), HEADS)).transpose(0, 2, 1, 3)
        k = self.k_norm(self.split_heads(self.wk(x), KV_HEADS)).transpose(0, 2, 1, 3)
        v = self.split_heads(self.wv(x), KV_HEADS).transpose(0, 2, 1, 3)
        q, k = self.rotary_embedding(q), self.rotary_embedding(k)
        q = (q * HEAD_DIM**-0.5).reshape(BATCH, KV_HEADS, -1, SEQ, HEAD_DIM)
        scores = ops.matmul(q, k.swapaxes(2, 3).expand_dims(2)) + self.mask
        y = ops.matmul(ops.softmax(scores, -1), v.expand_dims(2))
        y = y.reshape(BATCH, HEADS, SEQ, HEAD_DIM).transpose(0, 2, 1, 3)
        y = y.reshape(BATCH, SEQ, HEADS * HEAD_DIM)
        return self.wo(y * ops.sigmoid(self.w_gate(x)))


class FeedForward(nn.Cell):
    """A gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.w1 = build_dense(model, f"{path}.gate")
        self.w2 = build_dense(model, f"{path}.down")
        self.w3 = build_dense(model, f"{path}.up")

    def construct(self, x):
        return self.w2(ops.silu(self.w1(x)) * self.w3(x))


class JoinedFeedForward(nn.Cell):
    """The same with one layer for gate and up."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.w13 = build_dense(model, f"{path}.gate", f"{path}.up")
        self.w2 = build_dense(model, f"{path}.down")

    def construct(self, x):
        gate, up = mint.chunk(self.w13(x), 2, dim=-1)
        return self.w2(gate * mint.sigmoid(gate) * up)


def build_feed_forward(model: Model, path: str) -> nn.Cell:
    """Return the gated layer at ``path``."""
    return (JoinedFeedForward if model.variant == "parallel" else FeedForward)(model, path)


class StackedExperts(nn.Cell):
    """The outputs (EXPERTS, tokens, HIDDEN) of all experts."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        stacks = [
            np.stack([model.weights[f"{path}.{n}.{name}.weight"] for n in range(EXPERTS)])
            for name in ("gate", "down", "up")
        ]
        self.w1, self.w2, self.w3 = (Parameter(Tensor(stack)) for stack in stacks)
        self.bmm = ops.BatchMatMul(transpose_b=True)

    def construct(self, tokens):
        tokens = mint.broadcast_to(tokens.expand_dims(0), (EXPERTS, *tokens.shape))
        return self.bmm(ops.silu(self.bmm(tokens, self.w1)) * self.bmm(tokens, self.w3), self.w2)


class SharedExpertMoE(nn.Cell):
    """All experts on all tokens, weighted, and a shared one with a gate."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.router = build_dense(model, f"{path}.router")
        self.is_stacked = model.variant == "parallel"
        if self.is_stacked:
            self.experts = StackedExperts(model, f"{path}.experts")
        else:
            self.experts = nn.CellList(
                [build_feed_forward(model, f"{path}.experts.{n}") for n in range(EXPERTS)]
            )
        self.shared_experts = build_feed_forward(model, f"{path}.shared")
        self.shared_experts_gate = build_dense(model, f"{path}.shared_gate")

    def route(self, tokens):
        """Return the share of each expert, (tokens, EXPERTS)."""
        probabilities = ops.softmax(self.router(tokens), -1)
        _, chosen = ops.topk(probabilities, TOP_K)
        shares = probabilities * ops.one_hot(chosen, EXPERTS, 1.0, 0.0).sum(1)
        return shares / shares.sum(-1, keepdims=True)

    def construct(self, x):
        tokens = x.reshape(-1, HIDDEN)
        shares = self.route(tokens)
        if self.is_stacked:
            y = (self.experts(tokens) * shares.transpose(1, 0).expand_dims(-1)).sum(0)
        else:
            y = self.experts[0](tokens) * shares[:, :1]
            for n in range(1, EXPERTS):
                y = y + self.experts[n](tokens) * shares[:, n : n + 1]
        shared = self.shared_experts(tokens) * ops.sigmoid(self.shared_experts_gate(tokens))
        return (y + shared).reshape(x.shape)


class TransformerLayer(nn.Cell):
    """A layer that mixes tokens, then a gated layer or experts."""

    def __init__(self, model: Model, path: str, *, is_linear: bool, is_sparse: bool) -> None:
        super().__init__()
        self.input_norm = RMSNorm(model, f"{path}.norm1")
        if is_linear:
            self.mixer = GatedDeltaNet(model, f"{path}.delta")
        else:
            self.mixer = GatedAttention(model, f"{path}.attention")
        self.ffn_norm = RMSNorm(model, f"{path}.norm2")
        if is_sparse:
            self.feed_forward = SharedExpertMoE(model, f"{path}.moe")
        else:
            self.feed_forward = build_feed_forward(model, f"{path}.mlp")

    def construct(self, x):
        x = x + self.mixer(self.input_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class MultiTokenPrediction(nn.Cell):
    """States for the prediction of the token after the next one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.enorm = RMSNorm(model, "mtp.embedding_norm")
        self.hnorm = RMSNorm(model, "mtp.hidden_norm")
        self.eh_proj = build_dense(model, "mtp.join")
        self.transformer_layer = TransformerLayer(
            model, "mtp.layer", is_linear=False, is_sparse=False
        )
        self.final_norm = RMSNorm(model, "mtp.norm")

    def construct(self, embedded, hidden):
        joined = ops.concat((self.enorm(embedded), self.hnorm(hidden)), -1)
        return self.final_norm(self.transformer_layer(self.eh_proj(joined)))


class HybridModel(nn.Cell):
    """Logits (BATCH * SEQ, VOCAB) of the next token and of the one after it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = Parameter(Tensor(model.weights["embedding.weight"]))
        self.layers = nn.CellList(
            [
                TransformerLayer(
                    model, f"layers.{n}", is_linear=not is_attention(n), is_sparse=n == MOE_LAYER
                )
                for n in range(LAYERS)
            ]
        )
        self.final_norm = RMSNorm(model, "norm")
        self.mtp = MultiTokenPrediction(model)
        self.output_layer = build_dense(model, "head")
        self.is_next_embedded = model.is_next_embedded
        self.is_mtp_detached = model.is_mtp_detached

    def construct(self, tokens):
        embedded = ops.gather(self.word_embeddings, tokens, 0)
        x = embedded[:, :SEQ]
        joined = embedded[:, 1:] if self.is_next_embedded else x
        for layer in self.layers:
            x = layer(x)
        predicted = self.mtp(joined, ops.stop_gradient(x) if self.is_mtp_detached else x)
        logits = self.output_layer(self.final_norm(x).reshape(-1, HIDDEN))
        return logits, self.output_layer(predicted.reshape(-1, HIDDEN))


class LossWithMTP(nn.Cell):
    """Mean losses of both heads over the answers."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = HybridModel(model)
        self.is_written = model.variant == "parallel"

    def compute_loss(self, logits, labels):
        labels = labels.reshape(-1)
        loss_mask = ops.not_equal(labels, IGNORED).astype(ms.float32)
        labels = ops.maximum(labels, 0)
        if self.is_written:
            log_probs = ops.log_softmax(logits, -1)
            losses = -ops.gather_elements(log_probs, 1, labels.expand_dims(1)).squeeze(1)
        else:
            losses = ops.cross_entropy(logits, labels, reduction="none")
        return (losses * loss_mask).sum() / loss_mask.sum()

    def construct(self, tokens, labels):
        logits, mtp_logits = self.network(tokens)
        loss = self.compute_loss(logits, labels[:, :SEQ])
        return loss + self.compute_loss(mtp_logits, labels[:, 1:]) * MTP_WEIGHT
