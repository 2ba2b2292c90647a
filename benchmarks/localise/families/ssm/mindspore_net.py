"""The state-space model for graph mode: the scan is unrolled, and the convolution written out.

Variant 'cumulative': no loop. Variant 'operators': the framework's convolution; softplus, norm and
outputs of the scan in other forms.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.ssm.architecture import (
    DT_RANK,
    EPS,
    HIDDEN,
    INNER,
    KERNEL,
    LAYERS,
    SEQ,
    STATE,
    VOCAB,
    Model,
)


def make_dense(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Dense:
    rows, columns = weight.shape
    return nn.Dense(
        columns,
        rows,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


class RMSNorm(nn.Cell):
    def __init__(
        self,
        weight: np.ndarray,
        eps: float = EPS,
        kind: str = "rms",
        *,
        is_root_divided: bool = False,
    ) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(weight))
        self.eps, self.is_centered = eps, kind == "layer"
        self.is_root_divided = is_root_divided

    def construct(self, x):
        if self.is_root_divided:
            return x / ops.sqrt((x * x).mean(-1, keep_dims=True) + self.eps) * self.weight
        if self.is_centered:
            x = x - ops.mean(x, -1, True)
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps) * self.weight


class CausalConv1d(nn.Cell):
    """Each channel of (batch, seq, INNER) convolved with its own kernel, tap by tap."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{prefix}.weight"].reshape(INNER, KERNEL)))
        self.bias = Parameter(Tensor(model.weights[f"{prefix}.bias"]))
        self.before = Tensor(np.zeros((1, KERNEL - 1, INNER), np.float32))
        self.shift, self.is_flipped = model.conv_shift, model.is_kernel_flipped

    def construct(self, x):
        batch, seq, _ = x.shape
        padding = ops.tile(self.before, (batch, 1, 1))
        padded = ops.concat((padding, x), 1)
        if self.shift:
            padded = ops.concat((padded, padding), 1)
        out = self.bias
        for tap in range(KERNEL):
            begin = tap + self.shift
            column = KERNEL - 1 - tap if self.is_flipped else tap
            out = out + padded[:, begin : begin + seq] * self.weight[:, column]
        return out


class PaddedConv1d(nn.Cell):
    """The same with the framework's operator."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            INNER,
            INNER,
            KERNEL,
            pad_mode="valid",
            group=INNER,
            has_bias=True,
            weight_init=Tensor(model.weights[f"{prefix}.weight"]),
            bias_init=Tensor(model.weights[f"{prefix}.bias"]),
        )
        self.pad = nn.ConstantPad1d((KERNEL - 1, 0), 0.0)

    def construct(self, x):
        return self.conv(self.pad(x.transpose(0, 2, 1))).transpose(0, 2, 1)


class SelectiveScan(nn.Cell):
    """The outputs (batch, seq, INNER) of the recurrence."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.A_log = Parameter(Tensor(model.weights[f"{prefix}.A_log"]))
        self.is_cumulative = model.variant == "cumulative"
        self.is_output_product = model.variant == "operators"
        self.is_decay_exponential = model.is_decay_exponential
        self.is_euler = model.discretization == "euler"
        self.is_bilinear = model.discretization == "bilinear"
        self.is_decay_stopped = model.is_decay_stopped
        self.is_reversed, self.is_stopped = model.is_reversed, model.is_state_stopped
        self.chunk = model.chunk
        # (later step, earlier step): 1 where the earlier one comes after it or is the same
        is_later = np.tril(np.ones((SEQ, SEQ), np.float32))
        self.is_later = Tensor(is_later.reshape(1, SEQ, SEQ, 1, 1))
        self.fill = Tensor((is_later - 1).reshape(1, SEQ, SEQ, 1, 1) * np.float32(1e4))

    def sum_all(self, exponents, entering, c):
        """Sum over all earlier steps, each with the decay since then."""
        total = ops.cumsum(exponents, 1)
        since = (total.expand_dims(2) - total.expand_dims(1)) * self.is_later + self.fill
        states = (ops.exp(since) * entering.expand_dims(1)).sum(2)
        return (states * c.expand_dims(2)).sum(-1)

    def construct(self, x, dt, b, c):
        a = -ops.exp(self.A_log) if self.is_decay_exponential else -self.A_log
        exponents = dt.expand_dims(-1) * a
        decay = ops.exp(exponents)
        if self.is_decay_stopped:
            decay = ops.stop_gradient(decay)
        if self.is_bilinear:
            decay = (1 + exponents / 2) / (1 - exponents / 2)
            entering = (dt * x).expand_dims(-1) / (1 - exponents / 2) * b.expand_dims(2)
        elif self.is_euler:
            entering = (dt * x).expand_dims(-1) * b.expand_dims(2)
        else:
            entering = (decay - 1) / a * b.expand_dims(2) * x.expand_dims(-1)
        if self.is_cumulative:
            return self.sum_all(exponents, entering, c)
        state = ops.zeros((x.shape[0], INNER, STATE), x.dtype)
        outputs = ()
        for number in range(SEQ):
            step = SEQ - 1 - number if self.is_reversed else number
            if number > 0 and number % self.chunk == 0:
                state = ops.zeros_like(state)
            if self.is_stopped:
                state = ops.stop_gradient(state)
            state = decay[:, step] * state + entering[:, step]
            if self.is_output_product:
                output = ops.bmm(state, c[:, step].expand_dims(-1)).squeeze(-1)
            else:
                output = (state * c[:, step].expand_dims(1)).sum(-1)
            outputs = (output, *outputs) if self.is_reversed else (*outputs, output)
        return ops.stack(outputs, 1)


class MambaMixer(nn.Cell):
    """Convolution, selective scan, gate."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        weights = model.weights
        self.in_proj = make_dense(weights[f"{prefix}.in_proj.weight"])
        self.is_softplus_written = model.variant == "operators"
        conv_class = PaddedConv1d if self.is_softplus_written else CausalConv1d
        self.conv = conv_class(model, f"{prefix}.conv")
        self.x_proj = make_dense(weights[f"{prefix}.x_proj.weight"])
        self.dt_proj = make_dense(
            weights[f"{prefix}.dt_proj.weight"],
            weights[f"{prefix}.dt_proj.bias"] if model.has_dt_bias else None,
        )
        self.scan = SelectiveScan(model, prefix)
        self.has_skip = model.has_skip
        if self.has_skip:
            self.D = Parameter(Tensor(weights[f"{prefix}.D"]))
        self.out_proj = make_dense(weights[f"{prefix}.out_proj.weight"])
        self.is_silu, self.is_gate_activated = model.activation == "silu", model.is_gate_activated
        self.are_b_c_swapped = model.are_b_c_swapped
        self.has_softplus, self.step_limit = model.has_softplus, model.step_limit
        self.is_skip_early = model.is_skip_early

    def construct(self, x):
        both = self.in_proj(x)
        u = self.conv(both[..., :INNER])
        u = ops.silu(u) if self.is_silu else ops.gelu(u, approximate="none")
        gate = both[..., INNER:]
        selected = self.x_proj(u)
        b = selected[..., DT_RANK : DT_RANK + STATE]
        c = selected[..., DT_RANK + STATE :]
        if self.are_b_c_swapped:
            b, c = c, b
        dt = self.dt_proj(selected[..., :DT_RANK])
        if self.is_softplus_written:
            dt = ops.log1p(ops.exp(dt))
        elif self.has_softplus:
            dt = ops.softplus(dt)
        if self.step_limit:
            dt = ops.clamp(dt, 0.0, self.step_limit)
        y = self.scan(u, dt, b, c)
        if self.has_skip:
            y = y + self.D * (both[..., :INNER] if self.is_skip_early else u)
        if self.is_gate_activated:
            gate = ops.silu(gate)
        return self.out_proj(y * gate)


class MambaBlock(nn.Cell):
    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.norm = RMSNorm(
            model.weights[f"layers.{n}.norm.weight"],
            model.block(n).eps,
            is_root_divided=model.variant == "operators",
        )
        self.mixer = MambaMixer(model.block(n), f"layers.{n}")
        self.is_residual_normed = model.block(n).residual == "after"

    def construct(self, x):
        y = self.norm(x)
        return (y if self.is_residual_normed else x) + self.mixer(y)


class Mamba(nn.Cell):
    """Logits (batch, seq, vocab) of tokens; the head is the embedding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["embedding.weight"])
        self.embedding = nn.Embedding(VOCAB, HIDDEN, embedding_table=table)
        self.layers = nn.CellList([MambaBlock(model, n) for n in range(LAYERS)])
        self.norm_out = None
        if model.has_final_norm:
            self.norm_out = RMSNorm(model.weights["norm.weight"], kind=model.norm_kind)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        if self.norm_out is not None:
            x = self.norm_out(x)
        return self.matmul(x.reshape(-1, HIDDEN), self.embedding.embedding_table)


class TokenLoss(nn.Cell):
    """Cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Mamba(model)
        self.are_labels_shifted = model.are_labels_shifted_twice

    def construct(self, tokens, labels):
        if self.are_labels_shifted:
            logits = self.network(tokens).reshape(-1, SEQ, VOCAB)[:, :-1]
            return ops.cross_entropy(logits.reshape(-1, VOCAB), labels[:, 1:].reshape(-1))
        return ops.cross_entropy(self.network(tokens), labels.reshape(-1))


def build_loss(model: Model) -> nn.Cell:
    """Return the loss with the weights and knobs of the model."""
    if model.is_decay_half or model.gate_gradient != 1 or model.is_dt_bias_late:
        raise SystemExit("a fault of the PyTorch net")
    return TokenLoss(model)
