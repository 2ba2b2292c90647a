"""RWKV-5 in MindSpore, with the cells of BlinkDL's code; the recurrence is unrolled.

Variant 'matrix': no loop, as RetNet's parallel form (https://arxiv.org/abs/2307.08621, section
2.1); norm of the heads and channel mixing in other operators.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.rwkv.architecture import (
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    SEQ,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.is_state_shared:
        raise SystemExit("a fault of the PyTorch net")
    return AnswerLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight = Tensor(model.weights[f"{path}.weight"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, has_bias=False)


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class TokenShift(nn.Cell):
    """The token before each token of (batch, seq, HIDDEN); zeros before the first one."""

    def __init__(self, *, is_cyclic: bool = False, is_first_repeated: bool = False) -> None:
        super().__init__()
        self.is_cyclic, self.is_first_repeated = is_cyclic, is_first_repeated
        self.steps_before = Tensor(np.maximum(np.arange(SEQ) - 1, 0), ms.int32)

    def construct(self, x):
        if self.is_first_repeated:
            return ops.gather(x, self.steps_before, 1)
        first = x[:, -1:] if self.is_cyclic else ops.zeros_like(x[:, :1])
        return ops.concat((first, x[:, :-1]), 1)


class HeadNorm(nn.Cell):
    """The norm of each head from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.eps = model.head_eps

    def construct(self, x):
        heads = x.reshape(-1, HEADS, HEAD_DIM)
        centered = heads - heads.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        normed = (centered * ops.rsqrt(variance + self.eps)).reshape(-1, HIDDEN)
        return normed * self.gamma + self.beta


class HeadGroupNorm(nn.Cell):
    """The same with the framework's cell, which wants images."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        self.norm = nn.GroupNorm(
            HEADS, HIDDEN, eps=model.head_eps, gamma_init=weight, beta_init=bias
        )

    def construct(self, x):
        return self.norm(x.reshape(-1, HIDDEN, 1, 1)).reshape(-1, HIDDEN)


class StraightExp(nn.Cell):
    """An exponential whose gradient passes as it is."""

    def construct(self, x):
        return ops.exp(x)

    def bprop(self, x, out, gradient):
        return (gradient,)


class TimeMix(nn.Cell):
    """Linear attention with a decay for each row of the state."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.time_shift = TokenShift(is_first_repeated=model.is_first_repeated)
        self.time_mix_r, self.time_mix_k, self.time_mix_v, self.time_mix_g = (
            Parameter(Tensor(model.weights[f"{path}.mix_{name}"])) for name in "rkvg"
        )
        self.time_decay = Parameter(Tensor(model.weights[f"{path}.decay"]))
        self.time_faaaa = Parameter(Tensor(model.weights[f"{path}.bonus"]))
        self.receptance = build_dense(model, f"{path}.r")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.gate = build_dense(model, f"{path}.g")
        self.output = build_dense(model, f"{path}.o")
        self.is_matrix = model.variant == "matrix"
        norm_class = HeadNorm if self.is_matrix else HeadGroupNorm
        self.ln_x = norm_class(model, f"{path}.norm")
        self.are_mixtures_exchanged = model.are_mixtures_exchanged
        self.is_state_late, self.is_shift_stopped = model.is_state_late, model.is_shift_stopped
        self.head_divisor = model.head_divisor
        self.is_decay_softplus = model.is_decay_softplus
        self.straight_exp = StraightExp() if model.is_decay_straight else None
        self.is_gate_first = model.is_gate_first
        self.decay_shape = (HEADS, HEAD_DIM, 1)
        if model.is_decay_of_values:
            self.decay_shape = (HEADS, 1, HEAD_DIM)
        self.decay_gradient = None
        if model.decay_gradient != 1:
            self.decay_gradient = ScaledGradient(model.decay_gradient)
        # (later step, earlier step): steps between them, and 1 where the later one is later
        between = np.arange(SEQ)[:, None] - np.arange(SEQ) - 1
        is_later = (between >= 0).astype(np.float32)
        self.between = Tensor(np.maximum(between, 0).astype(np.float32).reshape(SEQ, SEQ, 1))
        self.is_later = Tensor(is_later.reshape(SEQ, SEQ, 1))
        self.is_same = Tensor(np.eye(SEQ, dtype=np.float32).reshape(SEQ, SEQ, 1))

    def mix(self, x, before, share):
        if self.are_mixtures_exchanged:
            return x * (1 - share) + before * share
        return x * share + before * (1 - share)

    def split(self, x):
        return x.reshape(x.shape[0], SEQ, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def run_loop(self, r, k, v, decay):
        """Return the outputs (batch, HEADS, SEQ, HEAD_DIM) step by step."""
        rate = ops.softplus(decay) if self.is_decay_softplus else ops.exp(decay)
        w = ops.exp(-rate) if self.straight_exp is None else self.straight_exp(-rate)
        w = w.reshape(self.decay_shape)
        u = self.time_faaaa.reshape(HEADS, HEAD_DIM, 1)
        k = k.transpose(0, 1, 3, 2)
        state = ops.zeros((r.shape[0], HEADS, HEAD_DIM, HEAD_DIM), ms.float32)
        outputs = ()
        for step in range(SEQ):
            kv = ops.matmul(k[:, :, :, step : step + 1], v[:, :, step : step + 1])
            next_state = kv + w * state
            if self.is_state_late:
                state = next_state
            outputs = (*outputs, ops.matmul(r[:, :, step : step + 1], u * kv + state))
            state = next_state
        return ops.concat(outputs, 2)

    def run_at_once(self, r, k, v, decay):
        """Return the same by a decay for each two steps."""
        rate = ops.exp(decay).reshape(HEADS, 1, 1, HEAD_DIM)
        u = self.time_faaaa.reshape(HEADS, 1, 1, HEAD_DIM)
        weights = ops.exp(-rate * self.between) * self.is_later + u * self.is_same
        products = r.expand_dims(3) * k.expand_dims(2)
        return ops.matmul((products * weights).sum(-1), v)

    def construct(self, x):
        before = self.time_shift(x)
        if self.is_shift_stopped:
            before = ops.stop_gradient(before)
        r = self.split(self.receptance(self.mix(x, before, self.time_mix_r)))
        k = self.split(self.key(self.mix(x, before, self.time_mix_k)))
        v = self.split(self.value(self.mix(x, before, self.time_mix_v)))
        g = ops.silu(self.gate(self.mix(x, before, self.time_mix_g)))
        decay = self.time_decay
        if self.decay_gradient is not None:
            decay = self.decay_gradient(decay)
        y = self.run_at_once(r, k, v, decay) if self.is_matrix else self.run_loop(r, k, v, decay)
        if self.head_divisor != 1:
            y = y / self.head_divisor
        y = y.transpose(0, 2, 1, 3).reshape(-1, HIDDEN)
        if self.is_gate_first:
            return self.output(self.ln_x(y * g.reshape(-1, HIDDEN)).reshape(x.shape))
        return self.output(self.ln_x(y).reshape(x.shape) * g)


class ChannelMix(nn.Cell):
    """Squared relu between two linear layers, with a gate."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.time_shift = TokenShift(is_cyclic=model.is_shift_cyclic)
        self.time_mix_k = Parameter(Tensor(model.weights[f"{path}.mix_k"]))
        self.time_mix_r = Parameter(Tensor(model.weights[f"{path}.mix_r"]))
        self.key = build_dense(model, f"{path}.key")
        self.value = build_dense(model, f"{path}.value")
        self.receptance = build_dense(model, f"{path}.r")
        self.are_mixtures_exchanged = model.are_mixtures_exchanged
        self.is_relu_squared = model.is_relu_squared
        self.is_relative = model.variant == "matrix"

    def mix(self, x, before, share):
        if self.is_relative:
            return before + (x - before) * share
        if self.are_mixtures_exchanged:
            return x * (1 - share) + before * share
        return x * share + before * (1 - share)

    def construct(self, x):
        before = self.time_shift(x)
        k = ops.relu(self.key(self.mix(x, before, self.time_mix_k)))
        if self.is_relu_squared:
            k = k * k if self.is_relative else ops.square(k)
        r = ops.sigmoid(self.receptance(self.mix(x, before, self.time_mix_r)))
        return r * self.value(k)


class Block(nn.Cell):
    """Time mixing and channel mixing."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.ln1 = build_norm(model, f"blocks.{n}.norm1")
        self.att = TimeMix(model.block(n), f"blocks.{n}.time")
        self.ln2 = build_norm(model, f"blocks.{n}.norm2")
        self.ffn = ChannelMix(model.block(n), f"blocks.{n}.channel")

    def construct(self, x):
        x = x + self.att(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class RWKV(nn.Cell):
    """Logits (batch, SEQ, VOCAB) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["embedding.weight"])
        self.emb = nn.Embedding(VOCAB, HIDDEN, embedding_table=table)
        self.ln0 = build_norm(model, "norm_in")
        self.blocks = nn.CellList([Block(model, n) for n in range(LAYERS)])
        self.ln_out = build_norm(model, "norm_out")
        self.head = build_dense(model, "head")

    def construct(self, tokens):
        x = self.ln0(self.emb(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_out(x))


class AnswerLoss(nn.Cell):
    """Cross entropy of the tokens of answers."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = RWKV(model)
        self.are_all_counted = model.loss_reduction == "all"
        self.is_answer_late = model.is_answer_late

    def construct(self, tokens, labels, is_answer):
        logits = self.network(tokens).reshape(-1, VOCAB)
        losses = ops.cross_entropy(logits, labels.reshape(-1), reduction="none")
        if self.is_answer_late:
            is_answer = ops.concat((ops.zeros_like(is_answer[:, :1]), is_answer[:, :-1]), 1)
        mask = is_answer.reshape(-1)
        if self.are_all_counted:
            return (losses * mask).mean()
        return (losses * mask).sum() / mask.sum()
