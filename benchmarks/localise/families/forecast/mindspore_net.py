"""The forecaster in MindSpore, with the cells of a port of PatchTST and of the Temporal Fusion
Transformer.

Variant 'written': norms and gates in plain arithmetic, moving average and patches from slices.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.forecast.architecture import (
    AVERAGED,
    CHANNELS,
    CONTEXT,
    DECODER,
    DILATIONS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    HORIZON,
    KERNEL,
    LAYERS,
    MOMENTUM,
    PATCH,
    PATCHES,
    QUANTILES,
    REALS,
    STATIC,
    STRIDE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.is_context_tiled:
        raise SystemExit("a fault of the PyTorch net")
    return QuantileLoss(model)


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


class WrittenNorm(nn.Cell):
    """Batch norm of rows, or layer norm, from means."""

    def __init__(self, model: Model, path: str, *, is_over_rows: bool) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.axis = 0 if is_over_rows else -1

    def construct(self, x):
        centered = x - x.mean(self.axis, keep_dims=True)
        variance = ops.square(centered).mean(self.axis, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def build_layer_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if model.variant == "written":
        return WrittenNorm(model, path, is_over_rows=False)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm(weight.shape, gamma_init=weight, beta_init=bias, epsilon=EPS)


def build_batch_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm at ``path``, of (rows, HIDDEN)."""
    if model.variant == "written":
        return WrittenNorm(model, path, is_over_rows=True)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm1d(HIDDEN, eps=EPS, momentum=1 - MOMENTUM, gamma_init=weight, beta_init=bias)


class RevIN(nn.Cell):
    """Each series normalized by its own observed steps, and back."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.affine_weight = Parameter(Tensor(model.weights["revin.weight"]))
        self.affine_bias = Parameter(Tensor(model.weights["revin.bias"]))
        self.are_all_steps_counted = model.are_all_steps_counted
        self.is_affine_inverted_late = model.is_affine_inverted_late
        self.is_deviation_unbiased = model.is_deviation_unbiased
        self.are_missing_cleared = model.are_missing_cleared

    def construct(self, x, observed):
        """Return normalized (batch, CONTEXT, CHANNELS), and mean and deviation of each series."""
        n_steps = CONTEXT if self.are_all_steps_counted else observed.sum(1, keepdims=True)
        mean = (x * observed).sum(1, keepdims=True) / n_steps
        centered = (x - mean) * observed
        divisor = n_steps - 1 if self.is_deviation_unbiased else n_steps
        stdev = ops.sqrt(ops.square(centered).sum(1, keepdims=True) / divisor + EPS)
        if not self.are_missing_cleared:
            centered = x - mean
        x = centered / stdev * self.affine_weight + self.affine_bias
        return x, mean, stdev

    def denormalize(self, y, mean, stdev):
        """Return forecasts (batch, CHANNELS, HORIZON, quantiles) in the units of the series."""
        shape = (-1, CHANNELS, 1, 1)
        weight, bias = self.affine_weight.reshape(shape), self.affine_bias.reshape(shape)
        mean, stdev = mean.reshape(shape), stdev.reshape(shape)
        if self.is_affine_inverted_late:
            return (y * stdev + mean - bias) / (weight + EPS * EPS)
        return (y - bias) / (weight + EPS * EPS) * stdev + mean


class SeriesDecomposition(nn.Cell):
    """The moving average of (batch, CHANNELS, CONTEXT), and what is left."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.width = AVERAGED // 2
        self.has_edge = model.average_padding == "edge"
        self.is_written = model.variant == "written"
        if self.has_edge:
            self.avg = nn.AvgPool1d(kernel_size=AVERAGED, stride=1)
        else:
            self.avg = nn.AvgPool1d(
                kernel_size=AVERAGED, stride=1, pad_mode="pad", padding=self.width
            )

    def construct(self, x):
        if self.has_edge:
            front = ops.tile(x[:, :, :1], (1, 1, self.width))
            end = ops.tile(x[:, :, -1:], (1, 1, self.width))
            padded = ops.concat((front, x, end), 2)
        else:
            padded = x
        trend = self.average(padded) if self.is_written else self.avg(padded)
        return x - trend, trend

    def average(self, padded):
        """Return the mean of AVERAGED shifted copies."""
        total = padded[:, :, :CONTEXT]
        for shift in range(1, AVERAGED):
            total = total + padded[:, :, shift : shift + CONTEXT]
        return total * (1 / AVERAGED)


class PatchEmbedding(nn.Cell):
    """Patches of (batch, CHANNELS, CONTEXT), embedded: (batch * CHANNELS, PATCHES, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        starts = STRIDE * np.arange(PATCHES)[:, None]
        self.index = Tensor((starts + np.arange(PATCH)[None, :]).astype(np.int32))
        self.proj = build_dense(model, "patch")
        self.pos_embed = Parameter(Tensor(model.weights["positions.weight"]))
        self.is_written = model.variant == "written"

    def construct(self, x):
        x = ops.concat((x, ops.tile(x[:, :, -1:], (1, 1, STRIDE))), 2)
        if self.is_written:
            patches = ()
            for n in range(PATCHES):
                patches += (x[:, :, n * STRIDE : n * STRIDE + PATCH],)
            patches = ops.stack(patches, 2)
        else:
            patches = ops.gather(x, self.index, 2)
        return self.proj(patches.reshape(-1, PATCHES, PATCH)) + self.pos_embed


class ResidualAttention(nn.Cell):
    """Attention whose scores are added to those of the layer before."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj = build_dense(model, f"{path}.q")
        self.k_proj = build_dense(model, f"{path}.k")
        self.v_proj = build_dense(model, f"{path}.v")
        self.out_proj = build_dense(model, f"{path}.o")
        self.softmax = nn.Softmax(axis=-1)
        self.has_score_residual = model.has_score_residual

    def split(self, x):
        """Return (rows, HEADS, PATCHES, HEAD_DIM)."""
        return x.reshape(-1, PATCHES, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, previous):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = ops.matmul(q, k.swapaxes(2, 3)) * (HEAD_DIM**-0.5)
        if previous is not None and self.has_score_residual:
            scores = scores + previous
        y = ops.matmul(self.softmax(scores), v)
        return self.out_proj(y.transpose(0, 2, 1, 3).reshape(-1, PATCHES, HIDDEN)), scores


class EncoderLayer(nn.Cell):
    """Attention and feed-forward, a norm behind each sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attn = ResidualAttention(model, path)
        self.norm1 = build_batch_norm(model, f"{path}.norm1")
        self.fc1 = build_dense(model, f"{path}.ffn.up")
        self.fc2 = build_dense(model, f"{path}.ffn.down")
        is_layer_norm = model.last_norm == "layer" and n == LAYERS - 1
        build_norm = build_layer_norm if is_layer_norm else build_batch_norm
        self.norm2 = build_norm(model, f"{path}.norm2")

    def construct(self, x, previous):
        y, scores = self.attn(x, previous)
        x = self.norm1((x + y).reshape(-1, HIDDEN))
        x = self.norm2(x + self.fc2(ops.gelu(self.fc1(x), approximate="none")))
        return x.reshape(-1, PATCHES, HIDDEN), scores


class GatedResidualNetwork(nn.Cell):
    """Two linear layers, gated, added to the input, and a layer norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = build_dense(model, f"{path}.first")
        self.fc2 = build_dense(model, f"{path}.second")
        self.glu_fc = build_dense(model, f"{path}.gate")
        self.has_context = f"{path}.context.weight" in model.weights
        if self.has_context:
            self.context_fc = build_dense(model, f"{path}.context")
        self.has_skip = f"{path}.skip.weight" in model.weights
        if self.has_skip:
            self.skip_fc = build_dense(model, f"{path}.skip")
        self.layer_norm = build_layer_norm(model, f"{path}.norm")
        self.elu = nn.ELU()
        self.is_written = model.variant == "written"
        self.is_gate_first = model.is_gate_first

    def construct(self, x, context=None):
        y = self.fc1(x)
        if self.has_context:
            y = y + self.context_fc(context)
        y = self.glu_fc(self.fc2(self.elu(y)))
        if self.is_gate_first:
            gates, values = ops.chunk(y, 2, axis=-1)
            y = values * ops.sigmoid(gates)
        elif self.is_written:
            values, gates = ops.chunk(y, 2, axis=-1)
            y = values * ops.sigmoid(gates)
        else:
            y = ops.glu(y, axis=-1)
        return self.layer_norm((self.skip_fc(x) if self.has_skip else x) + y)


class StaticCovariates(nn.Cell):
    """The static context (batch, HIDDEN): the covariates, each weighted, in one vector."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = model.weights["static.category.weight"]
        self.embedding = nn.Embedding(*table.shape, embedding_table=Tensor(table))
        self.real_fcs = nn.CellList([build_dense(model, f"static.reals.{n}") for n in range(REALS)])
        self.weight_grn = GatedResidualNetwork(model, "static.selection")
        self.variable_grns = nn.CellList(
            [GatedResidualNetwork(model, f"static.variables.{n}") for n in range(STATIC)]
        )
        self.context_grn = GatedResidualNetwork(model, "static.context")
        self.softmax = nn.Softmax(axis=model.selection_axis)
        self.is_selection_stopped = model.is_selection_stopped

    def construct(self, category, reals):
        variables = (self.embedding(category),)
        for n in range(REALS):
            variables += (self.real_fcs[n](reals[:, n : n + 1]),)
        logits = self.weight_grn(ops.concat(variables, -1))
        weights = self.softmax(logits.expand_dims(-1))
        if self.is_selection_stopped:
            weights = ops.stop_gradient(weights)
        transformed = ()
        for n in range(STATIC):
            transformed += (self.variable_grns[n](variables[n]),)
        selected = (weights * ops.stack(transformed, 1)).sum(1)
        return self.context_grn(selected)


class TemporalBlock(nn.Cell):
    """Causal convolutions of each series; what they compute at the last step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_centered = model.is_local_centered
        self.pad1, self.pad2 = (
            nn.Identity()
            if self.is_centered
            else nn.ConstantPad1d(((KERNEL - 1) * dilation, 0), 0.0)
            for dilation in DILATIONS
        )
        self.conv1 = self.build_convolution(model, "local.0", DILATIONS[0])
        self.conv2 = self.build_convolution(model, "local.1", DILATIONS[1])
        self.downsample = self.build_convolution(model, "local.shortcut", 1)

    def build_convolution(self, model: Model, path: str, dilation: int) -> nn.Conv1d:
        weight = model.weights[f"{path}.weight"]
        n_out, n_in, kernel = weight.shape
        return nn.Conv1d(
            n_in,
            n_out,
            kernel,
            pad_mode="same" if self.is_centered else "valid",
            dilation=dilation,
            has_bias=True,
            weight_init=Tensor(weight),
            bias_init=Tensor(model.weights[f"{path}.bias"]),
        )

    def construct(self, x):
        x = x.reshape(-1, 1, CONTEXT)
        y = ops.relu(self.conv1(self.pad1(x)))
        y = ops.relu(self.conv2(self.pad2(y)))
        return ops.relu(y + self.downsample(x))[:, :, -1]


class ForecastNet(nn.Cell):
    """Quantiles (batch, CHANNELS, HORIZON, quantiles) of the steps of the horizon."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.revin = RevIN(model)
        self.decomposition = SeriesDecomposition(model)
        self.trend_fc = build_dense(model, "trend")
        self.patch_embed = PatchEmbedding(model)
        self.blocks = nn.CellList([EncoderLayer(model, n) for n in range(LAYERS)])
        self.static_encoder = StaticCovariates(model)
        self.enrich_grn = GatedResidualNetwork(model, "enrichment")
        self.tcn = TemporalBlock(model)
        self.flatten_head = build_dense(model, "head")
        self.calendar_fc = build_dense(model, "calendar")
        self.decoder_grn = GatedResidualNetwork(model, "decoder")
        self.quantile_fc = build_dense(model, "quantiles")
        self.calendar_divisor = model.calendar_divisor
        self.is_head_by_patch = model.is_head_by_patch
        self.scaled_gradient = None
        if model.context_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.context_gradient)

    def construct(self, history, observed, category, reals, hours):
        batch = history.shape[0]
        x, mean, stdev = self.revin(history, observed)
        x = x.transpose(0, 2, 1)
        season, trend = self.decomposition(x)
        encoded, scores = self.patch_embed(season), None
        for block in self.blocks:
            encoded, scores = block(encoded, scores)
        context = self.static_encoder(category, reals)
        if self.scaled_gradient is not None:
            context = self.scaled_gradient(context)
        context = ops.tile(context.expand_dims(1), (1, CHANNELS, 1)).reshape(-1, 1, HIDDEN)
        encoded = self.enrich_grn(encoded, context)
        if not self.is_head_by_patch:
            encoded = encoded.swapaxes(1, 2)
        flat = encoded.reshape(-1, HIDDEN * PATCHES)
        steps = self.flatten_head(ops.concat((flat, self.tcn(x)), -1))
        hours = hours.astype(ms.float32) / self.calendar_divisor - 0.5
        calendar = self.calendar_fc(hours.expand_dims(-1))
        steps = steps.reshape(batch, CHANNELS, HORIZON, DECODER) + calendar.expand_dims(1)
        y = self.quantile_fc(self.decoder_grn(steps)) + self.trend_fc(trend).expand_dims(-1)
        return self.revin.denormalize(y, mean, stdev)


class QuantileLoss(nn.Cell):
    """Pinball loss of the quantiles, the mean over observed targets."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ForecastNet(model)
        self.quantiles = Tensor(np.array(QUANTILES, dtype=np.float32))
        self.horizon_weights = Tensor(model.horizon_weights())
        self.is_error_negated = model.is_error_negated
        self.is_mean_weighted = model.is_mean_weighted

    def construct(self, history, observed, category, reals, hours, targets, target_mask):
        forecast = self.network(history, observed, category, reals, hours)
        targets = targets.transpose(0, 2, 1).expand_dims(-1)
        errors = forecast - targets if self.is_error_negated else targets - forecast
        losses = ops.maximum(self.quantiles * errors, (self.quantiles - 1) * errors).sum(-1)
        mask = target_mask.transpose(0, 2, 1)
        divisor = mask * self.horizon_weights if self.is_mean_weighted else mask
        return (losses * self.horizon_weights * mask).sum() / divisor.sum()
