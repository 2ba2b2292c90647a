"""The forecaster in PyTorch, with the modules of PatchTST and of the Temporal Fusion Transformer.

Variant 'fused': queries, keys and values from one layer, fused attention where no later layer reads
the scores, averages and patches as windows, quantile losses by where.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

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


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return Forecaster(model)


def copy_tensor(values: np.ndarray) -> Tensor:
    """Return a tensor with these values."""
    return torch.from_numpy(np.array(values))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(copy_tensor(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``, with the bias if there is one."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_conv(model: Model, path: str, dilation: int = 1) -> nn.Module:
    """Return the convolution at ``path``."""
    n_out, n_in, kernel = model.weights[f"{path}.weight"].shape
    return load(nn.Conv1d(n_in, n_out, kernel, dilation=dilation), model, path)


class RevIN(nn.Module):
    """Each series normalized by its own observed steps, and back."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.affine_weight = nn.Parameter(copy_tensor(model.weights["revin.weight"]))
        self.affine_bias = nn.Parameter(copy_tensor(model.weights["revin.bias"]))

    def norm(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return normalized (batch, CONTEXT, CHANNELS); keep mean and deviation."""
        n_steps = observed.sum(dim=1, keepdim=True)
        if self.model.are_all_steps_counted:
            n_steps = x.shape[1]
        self.mean = ((x * observed).sum(dim=1, keepdim=True) / n_steps).detach()
        x = (x - self.mean) * observed
        divisor = n_steps - 1 if self.model.is_deviation_unbiased else n_steps
        variance = x.pow(2).sum(dim=1, keepdim=True) / divisor
        self.stdev = torch.sqrt(variance + EPS).detach()
        return x / self.stdev * self.affine_weight + self.affine_bias

    def denorm(self, y: Tensor) -> Tensor:
        """Return forecasts (quantiles, batch, HORIZON, CHANNELS) in the units of the series."""
        if self.model.is_affine_inverted_late:
            y = y * self.stdev + self.mean
            return (y - self.affine_bias) / (self.affine_weight + EPS * EPS)
        y = (y - self.affine_bias) / (self.affine_weight + EPS * EPS)
        return y * self.stdev + self.mean


class MovingAverage(nn.Module):
    """The moving average of (batch, CONTEXT, CHANNELS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.has_edge = model.average_padding == "edge"
        self.is_windowed = model.variant == "fused"
        self.avg = nn.AvgPool1d(AVERAGED, 1, padding=0 if self.has_edge else AVERAGED // 2)

    def forward(self, x: Tensor) -> Tensor:
        width = AVERAGED // 2
        if self.is_windowed:
            x = F.pad(x.transpose(1, 2), (width, width), mode="replicate")
            return x.unfold(-1, AVERAGED, 1).mean(dim=-1).transpose(1, 2)
        if self.has_edge:
            front, end = x[:, :1].repeat(1, width, 1), x[:, -1:].repeat(1, width, 1)
            x = torch.cat([front, x, end], dim=1)
        return self.avg(x.permute(0, 2, 1)).permute(0, 2, 1)


class MultiheadAttention(nn.Module):
    """Attention whose scores are added to those of the layer before."""

    def __init__(self, model: Model, path: str, *, is_last: bool) -> None:
        super().__init__()
        self.model, self.is_last = model, is_last
        self.is_fused = model.variant == "fused"
        if self.is_fused:
            self.in_proj = nn.Linear(HIDDEN, 3 * HIDDEN)
            for name, parameter in self.in_proj.named_parameters():
                parts = [model.weights[f"{path}.{projection}.{name}"] for projection in "qkv"]
                parameter.data.copy_(copy_tensor(np.concatenate(parts)))
        else:
            self.W_Q, self.W_K, self.W_V = (load_linear(model, f"{path}.{name}") for name in "qkv")
        self.to_out = load_linear(model, f"{path}.o")

    def forward(self, x: Tensor, previous: Tensor | None) -> tuple[Tensor, Tensor | None]:
        rows = x.shape[0]
        parts = self.in_proj(x).chunk(3, dim=-1) if self.is_fused else None
        q, k, v = parts or (self.W_Q(x), self.W_K(x), self.W_V(x))
        q, k, v = (part.view(rows, -1, HEADS, HEAD_DIM).transpose(1, 2) for part in (q, k, v))
        if not self.model.has_score_residual:
            previous = None
        if self.is_fused and self.is_last:
            y, scores = F.scaled_dot_product_attention(q, k, v, attn_mask=previous), None
        else:
            scores = torch.matmul(q, k.transpose(-2, -1)) * HEAD_DIM**-0.5
            if previous is not None:
                if self.model.are_previous_scores_stopped:
                    previous = previous.detach()
                scores = scores + previous
            y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.to_out(y.transpose(1, 2).reshape(rows, -1, HIDDEN)), scores


class TSTEncoderLayer(nn.Module):
    """Attention and feed-forward, a norm behind each sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, is_last = f"layers.{n}", n == LAYERS - 1
        self.self_attn = MultiheadAttention(model, path, is_last=is_last)
        self.norm_attn = self.load_batch_norm(model, f"{path}.norm1")
        self.ff = nn.Sequential(
            load_linear(model, f"{path}.ffn.up"), nn.GELU(), load_linear(model, f"{path}.ffn.down")
        )
        self.is_last_norm_layer = is_last and model.last_norm == "layer"
        if self.is_last_norm_layer:
            self.norm_ffn = load(nn.LayerNorm(HIDDEN, eps=EPS), model, f"{path}.norm2")
        else:
            self.norm_ffn = self.load_batch_norm(model, f"{path}.norm2")

    def load_batch_norm(self, model: Model, path: str) -> nn.Module:
        return load(nn.BatchNorm1d(HIDDEN, eps=EPS, momentum=MOMENTUM), model, path)

    def forward(self, x: Tensor, previous: Tensor | None) -> tuple[Tensor, Tensor | None]:
        y, scores = self.self_attn(x, previous)
        x = self.norm_attn((x + y).transpose(1, 2)).transpose(1, 2)
        x = x + self.ff(x)
        if self.is_last_norm_layer:
            return self.norm_ffn(x), scores
        return self.norm_ffn(x.transpose(1, 2)).transpose(1, 2), scores


class GatedResidualNetwork(nn.Module):
    """Two linear layers, gated, added to the input, and a layer norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.lin_a, self.lin_i, self.gate = (
            load_linear(model, f"{path}.{name}") for name in ("first", "second", "gate")
        )
        self.lin_c = self.out_proj = None
        if f"{path}.context.weight" in model.weights:
            self.lin_c = load_linear(model, f"{path}.context")
        if f"{path}.skip.weight" in model.weights:
            self.out_proj = load_linear(model, f"{path}.skip")
        self.is_gate_first = model.is_gate_first
        n_out = len(model.weights[f"{path}.norm.weight"])
        self.layer_norm = load(nn.LayerNorm(n_out, eps=EPS), model, f"{path}.norm")

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.lin_a(x)
        if context is not None and self.lin_c is not None:
            y = y + self.lin_c(context)
        y = self.lin_i(F.elu(y))
        if self.is_gate_first:
            gates, values = self.gate(y).chunk(2, dim=-1)
            y = torch.sigmoid(gates) * values
        else:
            y = F.glu(self.gate(y), dim=-1)
        return self.layer_norm(y + (x if self.out_proj is None else self.out_proj(x)))


class VariableSelectionNetwork(nn.Module):
    """The weighted sum of the static covariates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.joint_grn = GatedResidualNetwork(model, "static.selection")
        self.var_grns = nn.ModuleList(
            GatedResidualNetwork(model, f"static.variables.{n}") for n in range(STATIC)
        )

    def forward(self, variables: list[Tensor]) -> Tensor:
        logits = self.joint_grn(torch.cat(variables, dim=-1)).unsqueeze(-1)
        weights = F.softmax(logits, dim=self.model.selection_axis)
        if self.model.is_selection_stopped:
            weights = weights.detach()
        transformed = [
            grn(variable) for grn, variable in zip(self.var_grns, variables, strict=True)
        ]
        transformed_embeds = torch.stack(transformed, dim=-1)
        return torch.matmul(transformed_embeds, weights).squeeze(-1)


class StaticCovariateEncoder(nn.Module):
    """The static context (batch, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = copy_tensor(model.weights["static.category.weight"])
        self.e_cat = nn.Embedding.from_pretrained(table, freeze=False)
        self.e_cont = nn.ModuleList(load_linear(model, f"static.reals.{n}") for n in range(REALS))
        self.vsn = VariableSelectionNetwork(model)
        self.context_grn = GatedResidualNetwork(model, "static.context")

    def forward(self, category: Tensor, reals: Tensor) -> Tensor:
        columns = reals.split(1, dim=-1)
        embedded = [layer(column) for layer, column in zip(self.e_cont, columns, strict=True)]
        return self.context_grn(self.vsn([self.e_cat(category), *embedded]))


class TemporalBlock(nn.Module):
    """Causal convolutions of (rows, 1, CONTEXT)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            load_conv(model, f"local.{n}", dilation) for n, dilation in enumerate(DILATIONS)
        )
        self.downsample = load_conv(model, "local.shortcut")
        self.relu = nn.ReLU()
        self.is_centered = model.is_local_centered

    def pad(self, x: Tensor, dilation: int) -> Tensor:
        n_steps = (KERNEL - 1) * dilation
        behind = n_steps // 2 if self.is_centered else 0
        return F.pad(x, (n_steps - behind, behind))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv1(self.pad(x, DILATIONS[0])))
        y = self.relu(self.conv2(self.pad(y, DILATIONS[1])))
        return self.relu(y + self.downsample(x))


class Forecaster(nn.Module):
    """Pinball loss of the quantiles, the mean over observed targets."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.revin_layer = RevIN(model)
        self.moving_avg = MovingAverage(model)
        self.linear_trend = load_linear(model, "trend")
        self.padding_patch_layer = nn.ReplicationPad1d((0, STRIDE))
        self.W_P = load_linear(model, "patch")
        self.W_pos = nn.Parameter(copy_tensor(model.weights["positions.weight"]))
        self.layers = nn.ModuleList(TSTEncoderLayer(model, n) for n in range(LAYERS))
        self.static_encoder = StaticCovariateEncoder(model)
        self.enrichment_grn = GatedResidualNetwork(model, "enrichment")
        self.tcn = TemporalBlock(model)
        self.head = load_linear(model, "head")
        self.known_proj = load_linear(model, "calendar")
        self.positionwise_grn = GatedResidualNetwork(model, "decoder")
        self.quantile_proj = load_linear(model, "quantiles")
        self.register_buffer("quantiles", torch.tensor(QUANTILES))
        self.register_buffer("horizon_weights", copy_tensor(model.horizon_weights()))
        self.is_fused = model.variant == "fused"

    def create_patches(self, x: Tensor) -> Tensor:
        """Return the patches (batch * CHANNELS, PATCHES, PATCH) of (batch, CHANNELS, CONTEXT)."""
        if self.is_fused:
            x = torch.cat([x, x[..., -1:].expand(-1, -1, STRIDE)], dim=-1)
            windows = x.reshape(-1, 1, 1, CONTEXT + STRIDE)
            return F.unfold(windows, (1, PATCH), stride=(1, STRIDE)).transpose(1, 2)
        patches = self.padding_patch_layer(x).unfold(-1, PATCH, STRIDE)
        return patches.reshape(-1, PATCHES, PATCH)

    def forecast(
        self, history: Tensor, observed: Tensor, category: Tensor, reals: Tensor, hours: Tensor
    ) -> Tensor:
        """Return the quantiles (quantiles, batch, HORIZON, CHANNELS)."""
        model, batch = self.model, history.shape[0]
        x = self.revin_layer.norm(history, observed)
        trend = self.moving_avg(x)
        season = (x - trend).permute(0, 2, 1)
        z, scores = self.W_P(self.create_patches(season)) + self.W_pos, None
        for layer in self.layers:
            z, scores = layer(z, scores)
        context = self.static_encoder(category, reals)
        if model.context_gradient != 1:
            context = scaled_gradient(context, model.context_gradient)
        if model.is_context_tiled:
            context = context.repeat(CHANNELS, 1).unsqueeze(1)
        else:
            context = context.repeat_interleave(CHANNELS, dim=0).unsqueeze(1)
        z = self.enrichment_grn(z, context)
        if not model.is_head_by_patch:
            z = z.transpose(1, 2)
        z = z.flatten(start_dim=1)
        local = self.tcn(x.permute(0, 2, 1).reshape(-1, 1, CONTEXT))[..., -1]
        z = self.head(torch.cat([z, local], dim=1)).view(batch, CHANNELS, HORIZON, DECODER)
        known = hours.float() / model.calendar_divisor - 0.5
        z = self.positionwise_grn(z + self.known_proj(known[..., None])[:, None])
        y = self.quantile_proj(z) + self.linear_trend(trend.permute(0, 2, 1))[..., None]
        return self.revin_layer.denorm(y.permute(3, 0, 2, 1))

    def compute_losses(self, errors: Tensor) -> Tensor:
        """Return the pinball losses (batch, HORIZON, CHANNELS), the sum over the quantiles."""
        if self.is_fused:
            quantiles = self.quantiles[:, None, None, None]
            slopes = torch.where(errors >= 0, quantiles, quantiles - 1)
            return (slopes * errors).sum(dim=0)
        losses = [
            torch.max((quantile - 1) * error, quantile * error)
            for quantile, error in zip(QUANTILES, errors, strict=True)
        ]
        return torch.stack(losses).sum(dim=0)

    def forward(
        self,
        history: Tensor,
        observed: Tensor,
        category: Tensor,
        reals: Tensor,
        hours: Tensor,
        targets: Tensor,
        target_mask: Tensor,
    ) -> Tensor:
        forecast = self.forecast(history, observed, category, reals, hours)
        errors = forecast - targets if self.model.is_error_negated else targets - forecast
        losses = self.compute_losses(errors) * target_mask * self.horizon_weights[:, None]
        if self.model.is_mean_weighted:
            target_mask = target_mask * self.horizon_weights[:, None]
        return losses.sum() / target_mask.sum()
