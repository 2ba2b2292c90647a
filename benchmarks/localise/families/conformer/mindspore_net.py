"""The speech encoder in MindSpore, with the cells of MindAudio's Conformer.

Variant 'linear': linear layers in place of convolutions of one step, and gates by split.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.conformer.architecture import (
    CHANNELS,
    EPS,
    FRAMES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KERNEL,
    LAYERS,
    MASKED,
    MOMENTUM,
    SEQ,
    STRIDE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.embedding_scale != HIDDEN**0.5 or model.are_lengths_floored:
        raise SystemExit("embedding_scale and are_lengths_floored are knobs of the PyTorch net")
    if not model.are_logits_normalized:
        raise SystemExit("are_logits_normalized is a knob of the PyTorch net")
    return CTCLoss(model)


def build_linear(model: Model, path: str, *, has_bias: bool = True) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight = model.weights[f"{path}.weight"].squeeze()
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=Tensor(model.weights[f"{path}.bias"]) if has_bias else None,
        has_bias=has_bias,
    )


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class Conv2dSubsampling(nn.Cell):
    """Two strided convolutions: (batch, FRAMES, MELS) to (batch, SEQ, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = self.build_convolution(model, "subsampling.0", 1)
        self.conv2 = self.build_convolution(model, "subsampling.1", CHANNELS)
        self.out = build_linear(model, "projection")
        self.are_mels_first = model.are_mels_first

    def build_convolution(self, model: Model, path: str, channels: int) -> nn.Conv2d:
        is_same = model.subsampling_padding == "same"
        return nn.Conv2d(
            channels,
            CHANNELS,
            3,
            2,
            pad_mode="same" if is_same else "pad",
            padding=0 if is_same else 1,
            has_bias=True,
            weight_init=Tensor(model.weights[f"{path}.weight"]),
            bias_init=Tensor(model.weights[f"{path}.bias"]),
        )

    def construct(self, features):
        x = ops.relu(self.conv1(features.expand_dims(1)))
        x = ops.relu(self.conv2(x))
        x = x.transpose(0, 2, 3, 1) if self.are_mels_first else x.transpose(0, 2, 1, 3)
        return self.out(x.reshape(x.shape[0], x.shape[1], -1))


class PositionwiseFeedForward(nn.Cell):
    """Two linear layers around swish."""

    def __init__(self, model: Model, path: str, activation: str = "silu") -> None:
        super().__init__()
        self.w_1 = build_linear(model, f"{path}.up")
        self.w_2 = build_linear(model, f"{path}.down")
        self.is_relu = activation == "relu"

    def construct(self, x):
        x = self.w_1(x)
        return self.w_2(ops.relu(x) if self.is_relu else ops.silu(x))


class RelPositionMultiHeadedAttention(nn.Cell):
    """Attention by contents and relative positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear_q = build_linear(model, f"{path}.q")
        self.linear_k = build_linear(model, f"{path}.k")
        self.linear_v = build_linear(model, f"{path}.v")
        self.linear_out = build_linear(model, f"{path}.o")
        self.linear_pos = build_linear(model, f"{path}.position", has_bias=False)
        self.pos_bias_u = Parameter(Tensor(model.weights[f"{path}.content_bias"]))
        self.pos_bias_v = Parameter(Tensor(model.weights[f"{path}.position_bias"]))
        self.scale = model.score_dim**-0.5
        self.is_position_stopped = model.is_position_stopped
        self.are_scores_shifted = model.are_scores_shifted

    def rel_shift(self, x):
        """Move (batch, heads, SEQ, 2 * SEQ - 1) scores by distance to their keys."""
        batch, heads, queries, distances = x.shape
        zeros = ops.zeros((batch, heads, queries, 1), x.dtype)
        padded = ops.concat((zeros, x), -1).reshape(batch, heads, distances + 1, queries)
        return padded[:, :, 1:].reshape(batch, heads, queries, distances)[:, :, :, :queries]

    def construct(self, x, positions, mask_bias):
        batch, seq, _ = x.shape
        q = self.linear_q(x).reshape(batch, seq, HEADS, HEAD_DIM)
        k = self.linear_k(x).reshape(batch, seq, HEADS, HEAD_DIM).transpose(0, 2, 3, 1)
        v = self.linear_v(x).reshape(batch, seq, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        p = self.linear_pos(positions).reshape(1, -1, HEADS, HEAD_DIM).transpose(0, 2, 3, 1)
        q_with_bias_u = (q + self.pos_bias_u).transpose(0, 2, 1, 3)
        q_with_bias_v = (q + self.pos_bias_v).transpose(0, 2, 1, 3)
        matrix_ac = ops.matmul(q_with_bias_u, k)
        matrix_bd = ops.matmul(q_with_bias_v, p)
        if self.are_scores_shifted:
            matrix_bd = self.rel_shift(matrix_bd)
        else:
            matrix_bd = matrix_bd[:, :, :, :SEQ]
        if self.is_position_stopped:
            matrix_bd = ops.stop_gradient(matrix_bd)
        scores = (matrix_ac + matrix_bd) * self.scale + mask_bias
        y = ops.matmul(ops.softmax(scores, -1), v)
        return self.linear_out(y.transpose(0, 2, 1, 3).reshape(batch, seq, HIDDEN))


class ConvolutionModule(nn.Cell):
    """Gated convolution of one step, depthwise convolution, batch norm, convolution of one step."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weights = model.weights
        self.is_linear = model.variant == "linear"
        if self.is_linear:
            self.pointwise_conv1 = build_linear(model, f"{path}.in")
            self.pointwise_conv2 = build_linear(model, f"{path}.out")
        else:
            self.pointwise_conv1 = self.build_convolution(model, f"{path}.in")
            self.pointwise_conv2 = self.build_convolution(model, f"{path}.out")
        padding = (KERNEL - 1, 0) if model.is_conv_causal else (KERNEL // 2, KERNEL // 2)
        self.pad = nn.ConstantPad1d(padding, 0.0)
        self.depthwise_conv = self.build_convolution(model, f"{path}.depthwise", HIDDEN)
        self.norm = nn.BatchNorm2d(
            HIDDEN,
            eps=EPS,
            momentum=1 - MOMENTUM,
            gamma_init=Tensor(weights[f"{path}.norm.weight"]),
            beta_init=Tensor(weights[f"{path}.norm.bias"]),
            moving_mean_init=Tensor(weights[f"{path}.norm.mean"]),
            moving_var_init=Tensor(weights[f"{path}.norm.variance"]),
            use_batch_statistics=False if model.are_statistics_running else None,
        )
        self.is_layer_normed = model.conv_norm == "layer"
        if self.is_layer_normed:
            self.norm = build_norm(model, f"{path}.norm")
        self.are_gates_first = model.are_gates_first
        self.is_masked = model.is_convolution_masked

    def build_convolution(self, model: Model, path: str, groups: int = 1) -> nn.Conv1d:
        weight = model.weights[f"{path}.weight"]
        return nn.Conv1d(
            HIDDEN,
            weight.shape[0],
            weight.shape[2],
            pad_mode="valid",
            group=groups,
            has_bias=True,
            weight_init=Tensor(weight),
            bias_init=Tensor(model.weights[f"{path}.bias"]),
        )

    def apply_gates(self, x):
        """Return half the channels of (batch, 2 * HIDDEN, seq), each multiplied by its gate."""
        if self.are_gates_first:
            return ops.sigmoid(x[:, :HIDDEN]) * x[:, HIDDEN:]
        if self.is_linear:
            values, gates = ops.split(x, HIDDEN, axis=1)
            return values * ops.sigmoid(gates)
        return ops.glu(x, axis=1)

    def construct(self, x, keep):
        if self.is_linear:
            x = self.pointwise_conv1(x).transpose(0, 2, 1)
        else:
            x = self.pointwise_conv1(x.transpose(0, 2, 1))
        x = self.apply_gates(x)
        if self.is_masked:
            x = x * keep
        x = self.depthwise_conv(self.pad(x))
        if self.is_layer_normed:
            x = self.norm(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        else:
            x = self.norm(x.expand_dims(2)).squeeze(2)
        x = ops.silu(x)
        if self.is_linear:
            return self.pointwise_conv2(x.transpose(0, 2, 1))
        return self.pointwise_conv2(x).transpose(0, 2, 1)


class ConformerEncoderLayer(nn.Cell):
    """Half a feed-forward, attention, convolution, half a feed-forward, norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        model, path = model.block(n), f"layers.{n}"
        self.norm_ff_macaron = build_norm(model, f"{path}.norm1")
        self.feed_forward_macaron = PositionwiseFeedForward(model, f"{path}.ffn1")
        self.norm_mha = build_norm(model, f"{path}.norm2")
        self.self_attn = RelPositionMultiHeadedAttention(model, f"{path}.attention")
        self.norm_conv = build_norm(model, f"{path}.norm3")
        self.conv_module = ConvolutionModule(model, f"{path}.conv")
        self.norm_ff = build_norm(model, f"{path}.norm4")
        self.feed_forward = PositionwiseFeedForward(model, f"{path}.ffn2", model.activation)
        self.norm_final = build_norm(model, f"{path}.norm5")
        self.half_step = model.half_step
        self.scaled_gradient = None
        if model.step_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.step_gradient)

    def construct(self, x, positions, mask_bias, keep):
        x = x + self.half_step * self.feed_forward_macaron(self.norm_ff_macaron(x))
        x = x + self.self_attn(self.norm_mha(x), positions, mask_bias)
        x = x + self.conv_module(self.norm_conv(x), keep)
        fed = self.feed_forward(self.norm_ff(x))
        if self.scaled_gradient is not None:
            fed = self.scaled_gradient(fed)
        x = x + 0.5 * fed
        return self.norm_final(x)


class ConvolutionFirstLayer(ConformerEncoderLayer):
    """The same with the convolution before attention."""

    def construct(self, x, positions, mask_bias, keep):
        x = x + self.half_step * self.feed_forward_macaron(self.norm_ff_macaron(x))
        x = x + self.conv_module(self.norm_conv(x), keep)
        x = x + self.self_attn(self.norm_mha(x), positions, mask_bias)
        x = x + 0.5 * self.feed_forward(self.norm_ff(x))
        return self.norm_final(x)


def build_layer(model: Model, n: int) -> ConformerEncoderLayer:
    """Return a layer of the encoder."""
    is_convolution_first = model.block(n).is_convolution_first
    return (ConvolutionFirstLayer if is_convolution_first else ConformerEncoderLayer)(model, n)


def make_chunk_bias(chunk: int) -> Tensor:
    """Return what is added to scores (SEQ, SEQ): MASKED where a key is in a later chunk."""
    chunks = np.arange(SEQ) // chunk
    return Tensor(np.where(chunks > chunks[:, None], MASKED, 0.0).astype(np.float32))


class ConformerEncoder(nn.Cell):
    """Logits (batch, SEQ, vocab) of features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = Conv2dSubsampling(model)
        self.pos_emb = Tensor(model.relative_positions())
        self.encoders = nn.CellList([build_layer(model, n) for n in range(LAYERS)])
        self.ctc_lo = build_linear(model, "head")
        self.frames = Tensor(list(range(FRAMES)), ms.int32)
        self.first_frame = model.first_frame
        self.chunk_bias = make_chunk_bias(model.chunk) if model.chunk < SEQ else None
        self.scaled_gradient = None
        if model.frontend_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.frontend_gradient)

    def construct(self, features, lengths):
        is_frame = ops.less(self.frames.expand_dims(0), lengths.expand_dims(1))
        keep = is_frame[:, self.first_frame :: STRIDE].astype(features.dtype)
        mask_bias = (1.0 - keep).reshape(-1, 1, 1, SEQ) * MASKED
        if self.chunk_bias is not None:
            mask_bias = ops.minimum(mask_bias, self.chunk_bias)
        x = self.embed(features)
        if self.scaled_gradient is not None:
            x = self.scaled_gradient(x)
        x = x * HIDDEN**0.5
        for layer in self.encoders:
            x = layer(x, self.pos_emb, mask_bias, keep.expand_dims(1))
        return self.ctc_lo(x)


class CTCLoss(nn.Cell):
    """CTC loss of the labels."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ConformerEncoder(model)
        self.is_mean_of_sequences = model.loss_reduction == "sequences"
        reduction = "none" if self.is_mean_of_sequences else "mean"
        self.loss = nn.CTCLoss(blank=model.blank, reduction=reduction)

    def construct(self, features, lengths, labels, label_lengths):
        logits = self.network(features, lengths)
        log_probs = ops.log_softmax(logits, -1).transpose(1, 0, 2)
        seq_lengths = (lengths + STRIDE - 1) // STRIDE
        loss = self.loss(log_probs, labels, seq_lengths, label_lengths)
        return loss.mean() if self.is_mean_of_sequences else loss
