"""The speech recognizer in MindSpore, with the cells of MindNLP's Whisper.

Variant 'written': norms and gelu in plain arithmetic, attention by batched products, the
framework's cross entropy.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.whisper.architecture import (
    EPS,
    FLOOR,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    KERNEL,
    LAYERS,
    SMALLEST_POWER,
    SMOOTHING,
    STRIDE,
    TARGET,
    VOCAB,
    Model,
)

MASKED = -1e9
LOG_OF_TEN = math.log(10.0)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return SmoothedCrossEntropy(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_conv(model: Model, path: str, stride: int = 1, *, is_same: bool = False) -> nn.Conv1d:
    """Return the convolution at ``path``, padded on both sides, or in the framework's own way."""
    weight = model.weights[f"{path}.weight"]
    return nn.Conv1d(
        weight.shape[1],
        weight.shape[0],
        KERNEL,
        stride,
        pad_mode="same" if is_same else "pad",
        padding=0 if is_same else KERNEL // 2,
        has_bias=True,
        weight_init=Tensor(weight),
        bias_init=Tensor(model.weights[f"{path}.bias"]),
    )


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered / ops.sqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if model.variant == "written":
        return WrittenNorm(model, path)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class WrittenGelu(nn.Cell):
    """Gelu from the error function."""

    def construct(self, x):
        return 0.5 * x * (1.0 + ops.erf(x * 2**-0.5))


def build_gelu(model: Model) -> nn.Cell:
    """Return gelu."""
    return WrittenGelu() if model.variant == "written" else nn.GELU(approximate=False)


class WhisperAttention(nn.Cell):
    """Attention of states to a source."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.k_proj = build_dense(model, f"{path}.k")
        self.v_proj = build_dense(model, f"{path}.v")
        self.q_proj = build_dense(model, f"{path}.q")
        self.out_proj = build_dense(model, f"{path}.o")
        self.scaling = model.score_scale
        self.are_heads_moved = model.are_cross_heads_moved or not path.endswith("cross")
        self.is_batched = model.variant == "written"
        is_last_cross = path == f"decoder.{LAYERS - 1}.cross"
        self.is_cache_stopped = model.is_cache_stopped and is_last_cross

    def split(self, x):
        """Return (batch, HEADS, length, HEAD_DIM)."""
        return x.reshape(x.shape[0], -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def attend_batched(self, q, k, v, mask):
        """Return (batch, HEADS, length, HEAD_DIM); batch and heads are one axis on the way."""
        shape = q.shape
        q, k, v = (part.reshape(-1, part.shape[2], HEAD_DIM) for part in (q, k, v))
        scores = ops.bmm(q, k.swapaxes(1, 2))
        if mask is not None:
            scores = scores + mask
        return ops.bmm(ops.softmax(scores, -1), v).reshape(shape)

    def construct(self, x, source, mask):
        q = self.split(self.q_proj(x) * self.scaling)
        k, v = self.split(self.k_proj(source)), self.split(self.v_proj(source))
        if self.is_cache_stopped:
            k, v = ops.stop_gradient(k), ops.stop_gradient(v)
        if self.is_batched:
            y = self.attend_batched(q, k, v, mask)
        else:
            scores = ops.matmul(q, k.swapaxes(2, 3))
            if mask is not None:
                scores = scores + mask
            y = ops.matmul(ops.softmax(scores, -1), v)
        if self.are_heads_moved:
            y = y.transpose(0, 2, 1, 3)
        return self.out_proj(y.reshape(x.shape))


class WhisperEncoderLayer(nn.Cell):
    """Self attention and feed-forward, each behind a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"encoder.{n}"
        self.self_attn_layer_norm = build_norm(model, f"{path}.norm1")
        self.self_attn = WhisperAttention(model, f"{path}.attention")
        self.final_layer_norm = build_norm(model, f"{path}.norm2")
        self.fc1 = build_dense(model, f"{path}.mlp.up")
        self.activation_fn = build_gelu(model)
        self.fc2 = build_dense(model, f"{path}.mlp.down")

    def construct(self, x):
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, None)
        return x + self.fc2(self.activation_fn(self.fc1(self.final_layer_norm(x))))


class WhisperDecoderLayer(nn.Cell):
    """Self attention, cross attention and feed-forward, each behind a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"decoder.{n}"
        self.self_attn_layer_norm = build_norm(model, f"{path}.norm1")
        self.self_attn = WhisperAttention(model, f"{path}.attention")
        self.encoder_attn_layer_norm = build_norm(model, f"{path}.norm2")
        self.encoder_attn = WhisperAttention(model, f"{path}.cross")
        self.final_layer_norm = build_norm(model, f"{path}.norm3")
        self.fc1 = build_dense(model, f"{path}.mlp.up")
        self.activation_fn = build_gelu(model)
        self.fc2 = build_dense(model, f"{path}.mlp.down")

    def construct(self, x, source, mask):
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, mask)
        x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), source, None)
        return x + self.fc2(self.activation_fn(self.fc1(self.final_layer_norm(x))))


class LogMel(nn.Cell):
    """Logarithms of powers, limited from below."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_peak_of_batch = model.peak == "batch"
        self.is_decimal = model.log_base == 10
        self.is_padding_zero = model.padding_feature == "zero"
        if self.is_padding_zero:
            self.frames = Tensor(model.frames())

    def construct(self, powers):
        log_spec = ops.log(ops.maximum(powers, SMALLEST_POWER))
        if self.is_decimal:
            log_spec = log_spec / LOG_OF_TEN
        axes = None if self.is_peak_of_batch else (1, 2)
        peak = log_spec.max(axis=axes, keepdims=True)
        features = (ops.maximum(log_spec, peak - FLOOR) + 4.0) / 4.0
        if self.is_padding_zero:
            features = features * self.frames
        return features


class WhisperEncoder(nn.Cell):
    """States (batch, SOURCE, HIDDEN) of mel features (batch, MELS, FRAMES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_conv(model, "encoder.conv1")
        is_same = model.conv_padding == "end"
        self.conv2 = build_conv(model, "encoder.conv2", STRIDE, is_same=is_same)
        self.act = nn.ReLU() if model.conv_activation == "relu" else build_gelu(model)
        self.embed_positions = Tensor(model.sinusoids())
        self.layers = nn.CellList([WhisperEncoderLayer(model, n) for n in range(LAYERS)])
        self.layer_norm = build_norm(model, "encoder.norm")
        self.is_norm_half = model.norm_type == "float16"
        if self.is_norm_half:
            self.layer_norm.to_float(ms.float16)

    def construct(self, features):
        x = self.act(self.conv2(self.act(self.conv1(features))))
        x = x.transpose(0, 2, 1) + self.embed_positions
        for layer in self.layers:
            x = layer(x)
        x = self.layer_norm(x)
        return x.astype(ms.float32) if self.is_norm_half else x


class WhisperDecoder(nn.Cell):
    """Logits (batch, TARGET, VOCAB) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = model.weights["decoder.tokens.weight"]
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN, embedding_table=Tensor(table))
        self.embed_positions = Parameter(Tensor(model.weights["decoder.positions.weight"]))
        self.layers = nn.CellList([WhisperDecoderLayer(model, n) for n in range(LAYERS)])
        self.layer_norm = build_norm(model, "decoder.norm")
        self.mask = Tensor(np.triu(np.full((TARGET, TARGET), MASKED, dtype=np.float32), 1))
        self.is_head_stopped = model.is_head_stopped
        self.first_position = model.first_position
        self.embedding_scale = model.embedding_scale
        self.scaled_gradient = None
        if model.position_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.position_gradient)
        self.proj_out = ops.MatMul(transpose_b=True)

    def construct(self, tokens, source):
        length = tokens.shape[1]
        if self.first_position > 0:
            last = self.first_position + length
            positions = self.embed_positions[self.first_position : last]
        else:
            positions = self.embed_positions[:length]
        if self.scaled_gradient is not None:
            positions = self.scaled_gradient(positions)
        x = self.embed_tokens(tokens)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        x = x + positions
        for layer in self.layers:
            x = layer(x, source, self.mask)
        x = self.layer_norm(x).reshape(-1, HIDDEN)
        table = self.embed_tokens.embedding_table
        if self.is_head_stopped:
            table = ops.stop_gradient(table)
        return self.proj_out(x, table)


class WhisperModel(nn.Cell):
    """Logits (batch * TARGET, VOCAB) of recordings and tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_extractor = LogMel(model)
        self.encoder = WhisperEncoder(model)
        self.decoder = WhisperDecoder(model)

    def construct(self, powers, tokens):
        return self.decoder(tokens, self.encoder(self.feature_extractor(powers)))


class SmoothedCrossEntropy(nn.Cell):
    """Smoothed cross entropy, the mean over the labels that are no padding."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = WhisperModel(model)
        rest = SMOOTHING / model.smoothing_classes
        is_label_smoothed = model.smoothing_classes == VOCAB
        self.on_value = 1 - SMOOTHING + (rest if is_label_smoothed else 0.0)
        self.off_value = rest
        self.is_framework_loss = model.variant == "written"

    def construct(self, powers, tokens, labels):
        logits, labels = self.network(powers, tokens), labels.reshape(-1)
        if self.is_framework_loss:
            return ops.cross_entropy(
                logits, labels, ignore_index=IGNORED, label_smoothing=SMOOTHING
            )
        weights = ops.not_equal(labels, IGNORED).astype(ms.float32)
        known = ops.maximum(labels, 0)
        targets = ops.one_hot(known, VOCAB, self.on_value, self.off_value)
        losses = -(ops.log_softmax(logits, -1) * targets).sum(-1)
        return (losses * weights).sum() / weights.sum()
