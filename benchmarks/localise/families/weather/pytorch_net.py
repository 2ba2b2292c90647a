"""Weather forecasting in PyTorch, with modules named as those of Pangu-Weather's code.

Variant 'fused': modules named as those of Swin and FourCastNet, tokens stay on their grid, patches
are unfolded and folded around linear layers, fused attention gets bias and mask as one tensor,
queries, keys and values have own layers, surface and levels are one stack in the loss.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.weather.architecture import (
    ANOMALY_WEIGHT,
    CHANNELS,
    EPS,
    GRIDS,
    HEADS,
    LATITUDES,
    LEVELS,
    LONGITUDES,
    MODES,
    PATCH,
    SHIFT,
    SHRINKAGE,
    SPECTRAL_BLOCKS,
    STEP_WEIGHTS,
    STEPS,
    SURFACE,
    SURFACE_DEVIATIONS,
    SURFACE_DIFFERENCES,
    SURFACE_MEANS,
    SURFACE_VARIABLE_WEIGHTS,
    SURFACE_WEIGHT,
    TOKENS,
    UPPER,
    UPPER_DEVIATIONS,
    UPPER_DIFFERENCES,
    UPPER_MEANS,
    UPPER_VARIABLE_WEIGHTS,
    WINDOW,
    Model,
    count_windows,
    fourier_tables,
    latitude_weights,
    position_index,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else ForecastLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(np.ascontiguousarray(model.weights[name])).clone()


def fill(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Give a module the weight, and the bias, at a path."""
    module.weight.data.copy_(read(model, f"{path}.weight").view_as(module.weight))
    if f"{path}.bias" in model.weights:
        module.bias.data.copy_(read(model, f"{path}.bias"))
    return module


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    linear = nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights)
    return fill(linear, model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return fill(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


class CroppedCircularPad(Function):
    """Columns from around the globe, with its own backward pass."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return torch.cat([x[..., -1:], x, x[..., :1]], dim=-1)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient[..., 1:-1].contiguous()


class GlobePad(nn.Module):
    """A column on both sides from around the globe, latitudes repeated at the poles."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mode = model.longitude_padding
        self.is_gradient_cropped = model.is_padding_gradient_cropped

    def forward(self, x: Tensor) -> Tensor:
        others = (0, 0) * (x.dim() - 4)  # of levels
        if self.is_gradient_cropped:
            x = CroppedCircularPad.apply(x)
        else:
            x = F.pad(x, (1, 1, 0, 0, *others), mode=self.mode)
        return F.pad(x, (0, 0, 1, 2, *others), mode="replicate")


class PatchEmbedding(nn.Module):
    """Tokens (batch, tokens, channels), those of the surface first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        n_out, n_in, *kernel = model.weights["embed.upper.weight"].shape
        self.conv = fill(nn.Conv3d(n_in, n_out, kernel, stride=PATCH), model, "embed.upper")
        n_out, n_in, *kernel = model.weights["embed.surface.weight"].shape
        self.conv_surface = fill(
            nn.Conv2d(n_in, n_out, kernel, stride=PATCH), model, "embed.surface"
        )
        self.pad = GlobePad(model)

    def forward(self, surface: Tensor, upper: Tensor) -> Tensor:
        upper = F.pad(self.pad(upper), (0, 0, 0, 0, 0, 1))
        upper, surface = self.conv(upper), self.conv_surface(self.pad(surface))
        x = torch.cat([surface.unsqueeze(2), upper], dim=2)
        return x.flatten(2).transpose(1, 2)


class PatchRecovery(nn.Module):
    """Surface and upper variables of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        n_in, n_out, *kernel = model.weights["recover.upper.weight"].shape
        self.conv = nn.ConvTranspose3d(n_in, n_out, kernel, stride=PATCH)
        fill(self.conv, model, "recover.upper")
        n_in, n_out, *kernel = model.weights["recover.surface.weight"].shape
        self.conv_surface = nn.ConvTranspose2d(n_in, n_out, kernel, stride=PATCH)
        fill(self.conv_surface, model, "recover.surface")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.transpose(1, 2).unflatten(2, GRIDS[0])
        upper = self.conv(x[:, :, 1:])[:, :, :LEVELS, :LATITUDES]
        surface = self.conv_surface(x[:, :, 0])[:, :, :LATITUDES]
        return surface, upper


class EarthAttention3D(nn.Module):
    """Attention in windows, (batch * columns, kinds, TOKENS, channels)."""

    def __init__(self, model: Model, path: str, stage: int) -> None:
        super().__init__()
        self.head_number = HEADS[stage]
        self.scale = (CHANNELS[stage] // HEADS[stage]) ** -0.5
        self.linear1 = load_linear(model, f"{path}.qkv")
        self.linear2 = load_linear(model, f"{path}.o")
        self.softmax = nn.Softmax(dim=-1)
        self.earth_specific_bias = nn.Parameter(read(model, f"{path}.table.weight"))
        index = torch.from_numpy(position_index()).long().flatten()
        self.register_buffer("position_index", index, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        windows, kinds, tokens, channels = x.shape
        qkv = self.linear1(x).reshape(windows, kinds, tokens, 3, self.head_number, -1)
        query, key, value = qkv.permute(3, 0, 1, 4, 2, 5)
        attention = (query * self.scale) @ key.transpose(-2, -1)

        bias = self.earth_specific_bias[self.position_index]
        bias = bias.view(tokens, tokens, kinds, self.head_number).permute(2, 3, 0, 1)
        attention = attention + bias.unsqueeze(0)
        if mask is not None:
            attention = attention.unflatten(0, (-1, len(mask))) + mask.unsqueeze(2)
            attention = attention.flatten(0, 1)
        x = self.softmax(attention) @ value
        return self.linear2(x.transpose(2, 3).reshape(windows, kinds, tokens, channels))


class Mlp(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear1 = load_linear(model, f"{path}.up")
        self.activation = nn.GELU()
        self.linear2 = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.activation(self.linear1(x)))


class EarthSpecificBlock(nn.Module):
    """Attention in windows, and mlp, each before a norm."""

    def __init__(self, model: Model, path: str, stage: int, *, roll: bool) -> None:
        super().__init__()
        self.attention = EarthAttention3D(model, f"{path}.attention", stage)
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.linear = Mlp(model, f"{path}.mlp")
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.grid, self.counts = GRIDS[stage], count_windows(stage)
        self.roll = roll
        mask = torch.from_numpy(model.mask(stage)) if roll else None
        self.register_buffer("mask", mask, persistent=False)

    def partition(self, x: Tensor) -> Tensor:
        """Return windows of a grid."""
        depths, rows, columns = self.counts
        x = x.view(len(x), depths, WINDOW[0], rows, WINDOW[1], columns, WINDOW[2], -1)
        x = x.permute(0, 5, 1, 3, 2, 4, 6, 7)
        return x.reshape(len(x) * columns, depths * rows, TOKENS, -1)

    def reverse(self, x: Tensor) -> Tensor:
        """Return the grid of windows."""
        depths, rows, columns = self.counts
        x = x.view(-1, columns, depths, rows, *WINDOW, x.shape[-1])
        return x.permute(0, 2, 4, 3, 5, 1, 6, 7).reshape(len(x), *self.grid, -1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = x.unflatten(1, self.grid)
        if self.roll:
            x = torch.roll(x, shifts=[-shift for shift in SHIFT], dims=(1, 2, 3))
        x = self.reverse(self.attention(self.partition(x), self.mask))
        if self.roll:
            x = torch.roll(x, shifts=SHIFT, dims=(1, 2, 3))
        x = shortcut + self.norm1(x.flatten(1, 3))
        return x + self.norm2(self.linear(x))


class DownSample(nn.Module):
    """Four neighbors joined, normed and reduced."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "merge.norm")
        self.linear = load_linear(model, "merge.reduction")

    def forward(self, x: Tensor) -> Tensor:
        depths, rows, columns = GRIDS[1]
        x = x.view(len(x), depths, rows, 2, columns, 2, -1).permute(0, 1, 2, 4, 3, 5, 6)
        return self.linear(self.norm(x.reshape(len(x), depths * rows * columns, -1)))


class UpSample(nn.Module):
    """Four tokens of each one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear1 = load_linear(model, "upsample.expand")
        self.norm = load_norm(model, "upsample.norm")
        self.linear2 = load_linear(model, "upsample.mix")

    def forward(self, x: Tensor) -> Tensor:
        depths, rows, columns = GRIDS[1]
        x = self.linear1(x).view(len(x), depths, rows, columns, 2, 2, -1)
        x = x.permute(0, 1, 2, 4, 3, 5, 6).reshape(len(x), -1, CHANNELS[0])
        return self.linear2(self.norm(x))


class SpectralFilter(nn.Module):
    """What the spectral branch adds, (batch, depth, row, column, channels)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.w1 = nn.Parameter(read(model, "spectral.0.weight"))
        self.b1 = nn.Parameter(read(model, "spectral.0.bias"))
        self.w2 = nn.Parameter(read(model, "spectral.1.weight"))
        self.b2 = nn.Parameter(read(model, "spectral.1.bias"))
        cosines, sines = (torch.from_numpy(table) for table in fourier_tables())
        shares = torch.tensor([1.0] + [2.0] * (MODES - 1)) / GRIDS[1][2]
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.register_buffer("inverse_cosines", shares * cosines, persistent=False)
        self.register_buffer("inverse_sines", shares * sines, persistent=False)

    @staticmethod
    def multiply(real: Tensor, imag: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return real and imaginary part of a block-diagonal layer."""
        equation = "...bi,bio->...bo"
        out_real = torch.einsum(equation, real, weight[0]) - torch.einsum(equation, imag, weight[1])
        out_imag = torch.einsum(equation, imag, weight[0]) + torch.einsum(equation, real, weight[1])
        return out_real + bias[0], out_imag + bias[1]

    def forward(self, x: Tensor) -> Tensor:
        real = torch.einsum("bzhwc,wk->bzhkc", x, self.cosines)
        imag = torch.einsum("bzhwc,wk->bzhkc", x, self.sines)
        real, imag = (part.unflatten(-1, (SPECTRAL_BLOCKS, -1)) for part in (real, imag))
        real, imag = self.multiply(real, imag, self.w1, self.b1)
        real, imag = self.multiply(F.relu(real), F.relu(imag), self.w2, self.b2)
        real = F.softshrink(real, lambd=SHRINKAGE).flatten(-2)
        imag = F.softshrink(imag, lambd=SHRINKAGE).flatten(-2)
        x = torch.einsum("bzhkc,wk->bzhwc", real, self.inverse_cosines)
        return x + torch.einsum("bzhkc,wk->bzhwc", imag, self.inverse_sines)


class SpectralBlock(nn.Module):
    """Tokens and what the spectral branch adds to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "spectral.norm")
        self.filter = SpectralFilter(model)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.filter(self.norm(x).unflatten(1, GRIDS[1])).flatten(1, 3)


class PanguModel(nn.Module):
    """Outputs of surface and upper variables for a step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._input_layer = PatchEmbedding(model)
        self.layer1 = nn.Sequential(
            EarthSpecificBlock(model, "encoder.0", 0, roll=False),
            EarthSpecificBlock(model, "encoder.1", 0, roll=True),
        )
        self.downsample = DownSample(model)
        self.layer2 = nn.Sequential(
            EarthSpecificBlock(model, "middle.0", 1, roll=False),
            SpectralBlock(model),
            EarthSpecificBlock(model, "middle.1", 1, roll=True),
        )
        self.upsample = UpSample(model)
        self.layer3 = EarthSpecificBlock(model, "decoder.0", 0, roll=True)
        self._output_layer = PatchRecovery(model)

    def forward(
        self, surface: Tensor, upper: Tensor, sun: Tensor, constants: Tensor
    ) -> tuple[Tensor, Tensor]:
        constants = constants.expand(len(surface), -1, -1, -1)
        surface = torch.cat([surface, constants, sun.unsqueeze(1)], dim=1)
        skip = self.layer1(self._input_layer(surface, upper))
        x = self.layer3(self.upsample(self.layer2(self.downsample(skip))))
        return self._output_layer(torch.cat([skip, x], dim=-1))


class Normalizer(nn.Module):
    """Mean and deviation of the variables of surface and levels."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in (
            ("surface_mean", SURFACE_MEANS),
            ("surface_std", SURFACE_DEVIATIONS),
            ("upper_mean", UPPER_MEANS),
            ("upper_std", UPPER_DEVIATIONS),
        ):
            self.register_buffer(name, torch.tensor(values)[..., None, None], persistent=False)

    def forward(self, surface: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        surface = (surface - self.surface_mean) / self.surface_std
        return surface, (upper - self.upper_mean) / self.upper_std


class WeightedL1(nn.Module):
    """Mean errors, weighted by variable, level and latitude."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        latitudes = torch.from_numpy(latitude_weights()).view(-1, 1)
        levels = torch.from_numpy(model.level_weights()).view(-1, 1, 1)
        surface = torch.tensor(SURFACE_VARIABLE_WEIGHTS).view(-1, 1, 1)
        upper = torch.tensor(UPPER_VARIABLE_WEIGHTS).view(-1, 1, 1, 1)
        self.register_buffer("surface_weights", surface * latitudes, persistent=False)
        self.register_buffer("upper_weights", upper * levels * latitudes, persistent=False)

    def forward(
        self, surface: Tensor, upper: Tensor, target_surface: Tensor, target_upper: Tensor
    ) -> Tensor:
        surface_loss = F.l1_loss(surface, target_surface, reduction="none") * self.surface_weights
        upper_loss = F.l1_loss(upper, target_upper, reduction="none") * self.upper_weights
        return upper_loss.mean() + SURFACE_WEIGHT * surface_loss.mean()


class AnomalyCorrelation(nn.Module):
    """Correlations (batch, variables) of the anomalies of fields."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.from_numpy(latitude_weights()).view(-1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, forecast: Tensor, target: Tensor, climatology: Tensor) -> Tensor:
        forecast, target = forecast - climatology, target - climatology
        covariance = (self.weights * forecast * target).sum(dim=(-2, -1))
        forecast_power = (self.weights * forecast.square()).sum(dim=(-2, -1))
        target_power = (self.weights * target.square()).sum(dim=(-2, -1))
        return covariance / torch.sqrt(forecast_power * target_power)


class ForecastLoss(nn.Module):
    """The loss of a forecast of STEPS steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = PanguModel(model)
        self.normalize = Normalizer()
        self.criterion = WeightedL1(model)
        self.acc = AnomalyCorrelation()
        self.are_differences_scaled = model.are_differences_scaled
        self.is_state_detached = model.is_state_detached
        self.is_sun_still = model.is_sun_still
        surface = torch.tensor(SURFACE_DIFFERENCES).view(-1, 1, 1)
        upper = torch.tensor(UPPER_DIFFERENCES).view(-1, 1, 1, 1)
        self.register_buffer("surface_diff_std", surface, persistent=False)
        self.register_buffer("upper_diff_std", upper, persistent=False)

    def forward(
        self,
        surface_states: Tensor,
        upper_states: Tensor,
        sun: Tensor,
        constants: Tensor,
        surface_climatology: Tensor,
        upper_climatology: Tensor,
    ) -> Tensor:
        surface_states, upper_states = self.normalize(surface_states, upper_states)
        surface, upper = surface_states[:, 0], upper_states[:, 0]
        loss = 0.0
        for step in range(STEPS):
            if step > 0 and self.is_state_detached:
                surface, upper = surface.detach(), upper.detach()
            height = sun[:, 0 if self.is_sun_still else step]
            surface_out, upper_out = self.model(surface, upper, height, constants)
            if self.are_differences_scaled:
                surface_out = surface_out * self.surface_diff_std
                upper_out = upper_out * self.upper_diff_std
            surface, upper = surface + surface_out, upper + upper_out
            targets = surface_states[:, step + 1], upper_states[:, step + 1]
            loss = loss + STEP_WEIGHTS[step] * self.criterion(surface, upper, *targets)

        climatology = self.normalize(surface_climatology, upper_climatology)
        pairs = ((surface, upper), targets, climatology)
        fields = [torch.cat([upper.flatten(1, 2), surface], dim=1) for surface, upper in pairs]
        return loss + ANOMALY_WEIGHT * (1 - self.acc(*fields).mean())


class UnfoldedEmbed(nn.Module):
    """Tokens (batch, *grid, channels), of unfolded patches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.shapes = [model.weights[f"embed.{k}.weight"].shape for k in ("surface", "upper")]
        self.proj_surface, self.proj_upper = (
            fill(nn.Linear(int(np.prod(shape[1:])), shape[0]), model, f"embed.{kind}")
            for kind, shape in zip(("surface", "upper"), self.shapes, strict=True)
        )
        columns = torch.arange(-1, LONGITUDES + 1) % LONGITUDES
        rows = torch.arange(-1, LATITUDES + 2).clamp(0, LATITUDES - 1)
        self.register_buffer("columns", columns, persistent=False)
        self.register_buffer("rows", rows, persistent=False)

    def unfold(self, x: Tensor) -> Tensor:
        """Return the patches of rows and columns, (..., row, column, KERNEL, KERNEL)."""
        x = x.index_select(-1, self.columns).index_select(-2, self.rows)
        kernel = self.shapes[0][-1]
        return x.unfold(-2, kernel, PATCH).unfold(-2, kernel, PATCH)

    def forward(self, surface: Tensor, upper: Tensor) -> Tensor:
        patches = self.unfold(surface).permute(0, 2, 3, 1, 4, 5).flatten(3)
        surface = self.proj_surface(patches)
        upper = torch.cat([upper, torch.zeros_like(upper[:, :, :1])], dim=2)
        patches = self.unfold(upper).unflatten(2, (-1, PATCH))
        upper = self.proj_upper(patches.permute(0, 2, 4, 5, 1, 3, 6, 7).flatten(4))
        return torch.cat([surface.unsqueeze(1), upper], dim=1)


class FusedWindowAttention(nn.Module):
    """Attention in windows of a grid, rolled before and back behind it."""

    def __init__(self, model: Model, path: str, stage: int, *, is_shifted: bool) -> None:
        super().__init__()
        self.heads, self.counts = HEADS[stage], count_windows(stage)
        for n, name in enumerate(("q", "k", "v")):
            rows = slice(n * CHANNELS[stage], (n + 1) * CHANNELS[stage])
            layer = nn.Linear(CHANNELS[stage], CHANNELS[stage])
            layer.weight.data.copy_(read(model, f"{path}.qkv.weight")[rows])
            layer.bias.data.copy_(read(model, f"{path}.qkv.bias")[rows])
            self.add_module(name, layer)
        self.proj = load_linear(model, f"{path}.o")
        self.bias_table = nn.Parameter(read(model, f"{path}.table.weight"))
        index = torch.from_numpy(position_index()).long()
        self.register_buffer("index", index, persistent=False)
        self.shifts = SHIFT if is_shifted else None
        if is_shifted:
            mask = torch.from_numpy(model.mask(stage)).unsqueeze(2)
            self.register_buffer("mask", mask, persistent=False)

    def split(self, x: Tensor) -> Tensor:
        """Return (batch, columns, kinds, heads, TOKENS, width) of a head."""
        depths, rows, columns = self.counts
        x = x.unflatten(3, (columns, WINDOW[2])).unflatten(2, (rows, WINDOW[1]))
        x = x.unflatten(1, (depths, WINDOW[0])).unflatten(-1, (self.heads, -1))
        x = x.permute(0, 5, 1, 3, 7, 2, 4, 6, 8)
        return x.flatten(2, 3).flatten(4, 6)

    def join(self, x: Tensor) -> Tensor:
        """Return the grid of that."""
        x = x.unflatten(4, WINDOW).unflatten(2, self.counts[:2])
        x = x.permute(0, 2, 5, 3, 6, 1, 7, 4, 8)
        return x.flatten(7, 8).flatten(5, 6).flatten(3, 4).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.shifts is not None:
            x = x.roll([-shift for shift in self.shifts], (1, 2, 3))
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        bias = F.embedding(self.index, self.bias_table.flatten(1))
        bias = bias.movedim(-1, 0).unflatten(0, (-1, self.heads)).unsqueeze(0)
        if self.shifts is not None:
            bias = bias + self.mask
        x = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.expand(len(q), *q.shape[1:4], -1, -1)
        )
        x = self.proj(self.join(x))
        return x if self.shifts is None else x.roll(self.shifts, (1, 2, 3))


class GridBlock(nn.Module):
    """The same as EarthSpecificBlock, of a grid."""

    def __init__(self, model: Model, path: str, stage: int, *, is_shifted: bool) -> None:
        super().__init__()
        self.attn = FusedWindowAttention(model, f"{path}.attention", stage, is_shifted=is_shifted)
        self.attn_norm = load_norm(model, f"{path}.norm1")
        self.fc1 = load_linear(model, f"{path}.mlp.up")
        self.fc2 = load_linear(model, f"{path}.mlp.down")
        self.mlp_norm = load_norm(model, f"{path}.norm2")

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn_norm(self.attn(x)) + x
        return self.mlp_norm(self.fc2(F.gelu(self.fc1(x)))) + x


class AfnoFilter(nn.Module):
    """The same as SpectralBlock, with both parts stacked: complex layers are one matrix."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "spectral.norm")
        self.weights = nn.ParameterList(read(model, f"spectral.{n}.weight") for n in range(2))
        self.biases = nn.ParameterList(read(model, f"spectral.{n}.bias") for n in range(2))
        tables = torch.from_numpy(np.stack(fourier_tables(), axis=1))
        shares = torch.tensor([1.0] + [2.0] * (MODES - 1)) / GRIDS[1][2]
        self.register_buffer("tables", tables, persistent=False)
        self.register_buffer("inverse_tables", shares * tables, persistent=False)

    def multiply(self, parts: Tensor, n: int) -> Tensor:
        """Return a layer of (batch, depth, row, mode, blocks, 2 * size), real parts first."""
        real, imag = self.weights[n]
        matrix = torch.cat([torch.cat([real, imag], dim=-1), torch.cat([-imag, real], dim=-1)], -2)
        bias = torch.cat(tuple(self.biases[n]), dim=-1)
        return (parts.unsqueeze(-2) @ matrix).squeeze(-2) + bias

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.einsum(
            "bzhwgc,wpk->bzhkgpc", self.norm(x).unflatten(-1, (SPECTRAL_BLOCKS, -1)), self.tables
        )
        parts = self.multiply(parts.flatten(-2), 0).relu()
        parts = F.softshrink(self.multiply(parts, 1), SHRINKAGE).unflatten(-1, (2, -1))
        return x + torch.einsum("bzhkgpc,wpk->bzhwgc", parts, self.inverse_tables).flatten(-2)


class FoldedHead(nn.Module):
    """Surface and upper variables of tokens, by linear layers whose outputs are patches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name in ("surface", "upper"):
            weight = read(model, f"recover.{name}.weight")
            self.register_parameter(f"{name}_weight", nn.Parameter(weight.flatten(1)))
            self.register_parameter(
                f"{name}_bias", nn.Parameter(read(model, f"recover.{name}.bias"))
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        surface = (x[:, 0] @ self.surface_weight).unflatten(-1, (SURFACE, PATCH, PATCH))
        surface = surface.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        upper = (x[:, 1:] @ self.upper_weight).unflatten(-1, (UPPER, PATCH, PATCH, PATCH))
        upper = upper.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        surface = surface[:, :, :LATITUDES] + self.surface_bias.view(-1, 1, 1)
        return surface, upper[:, :, :LEVELS, :LATITUDES] + self.upper_bias.view(-1, 1, 1, 1)


class GridForecaster(nn.Module):
    """The same as PanguModel."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = UnfoldedEmbed(model)
        self.enc0 = GridBlock(model, "encoder.0", 0, is_shifted=False)
        self.enc1 = GridBlock(model, "encoder.1", 0, is_shifted=True)
        self.merge_norm = load_norm(model, "merge.norm")
        self.merge = load_linear(model, "merge.reduction")
        self.mid0 = GridBlock(model, "middle.0", 1, is_shifted=False)
        self.afno = AfnoFilter(model)
        self.mid1 = GridBlock(model, "middle.1", 1, is_shifted=True)
        self.expand = load_linear(model, "upsample.expand")
        self.expand_norm = load_norm(model, "upsample.norm")
        self.expand_mix = load_linear(model, "upsample.mix")
        self.dec0 = GridBlock(model, "decoder.0", 0, is_shifted=True)
        self.head = FoldedHead(model)

    def forward(self, surface: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        x = skip = self.enc1(self.enc0(self.patch_embed(surface, upper)))
        cells = [x[:, :, row::2, column::2] for row in range(2) for column in range(2)]
        x = self.merge(self.merge_norm(torch.cat(cells, dim=-1)))
        x = self.expand(self.mid1(self.afno(self.mid0(x))))
        upper_row, lower_row = (
            torch.stack(cells.chunk(2, dim=-1), dim=4).flatten(3, 4) for cells in x.chunk(2, dim=-1)
        )
        x = torch.stack([upper_row, lower_row], dim=3).flatten(2, 3)
        x = self.dec0(self.expand_mix(self.expand_norm(x)))
        return self.head(torch.cat([skip, x], dim=-1))


class FusedLoss(nn.Module):
    """The same loss; the variables of surface and levels are one stack."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = GridForecaster(model)
        mean = torch.cat([torch.tensor(UPPER_MEANS).flatten(), torch.tensor(SURFACE_MEANS)])
        std = torch.cat(
            [torch.tensor(UPPER_DEVIATIONS).flatten(), torch.tensor(SURFACE_DEVIATIONS)]
        )
        difference = [x for x in UPPER_DIFFERENCES for _ in range(LEVELS)]
        difference = torch.tensor([*difference, *SURFACE_DIFFERENCES])
        self.n_upper = UPPER * LEVELS
        levels = np.outer(UPPER_VARIABLE_WEIGHTS, model.level_weights()).ravel() / self.n_upper
        surface = SURFACE_WEIGHT * np.array(SURFACE_VARIABLE_WEIGHTS) / SURFACE
        weights = torch.tensor(np.concatenate([levels, surface]), dtype=torch.float32)
        globe = torch.from_numpy(latitude_weights()) / (LATITUDES * LONGITUDES)
        for name, values in (("mean", mean), ("std", std), ("difference", difference)):
            self.register_buffer(name, values.view(-1, 1, 1), persistent=False)
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("globe", globe, persistent=False)

    def stack(self, surface: Tensor, upper: Tensor) -> Tensor:
        """Return the normalized variables, (..., variables, LATITUDES, LONGITUDES)."""
        return (torch.cat([upper.flatten(-4, -3), surface], dim=-3) - self.mean) / self.std

    def average(self, x: Tensor) -> Tensor:
        """Return the globe's mean of each field."""
        return torch.einsum("bvhw,h->bv", x, self.globe)

    def forward(
        self,
        surface_states: Tensor,
        upper_states: Tensor,
        sun: Tensor,
        constants: Tensor,
        surface_climatology: Tensor,
        upper_climatology: Tensor,
    ) -> Tensor:
        states = self.stack(surface_states, upper_states)
        climatology = self.stack(surface_climatology, upper_climatology)
        state, losses = states[:, 0], []
        for step in range(STEPS):
            forcing = torch.cat([constants.repeat(len(state), 1, 1, 1), sun[:, step : step + 1]], 1)
            surface = torch.cat([state[:, self.n_upper :], forcing], dim=1)
            upper = state[:, : self.n_upper].unflatten(1, (UPPER, LEVELS))
            surface, upper = self.net(surface, upper)
            state = torch.addcmul(
                state, torch.cat([upper.flatten(1, 2), surface], 1), self.difference
            )
            errors = self.average((state - states[:, step + 1]).abs())
            losses.append((errors @ self.weights).mean())
        loss = torch.stack(losses) @ torch.tensor(STEP_WEIGHTS)

        forecast, target = state - climatology, states[:, -1] - climatology
        correlation = self.average(forecast * target) * torch.rsqrt(
            self.average(forecast**2) * self.average(target**2)
        )
        return loss + ANOMALY_WEIGHT - ANOMALY_WEIGHT * correlation.mean()
