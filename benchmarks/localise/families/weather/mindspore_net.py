"""Weather forecasting in MindSpore; tokens are (batch, depth, row, column, channels).

Variant 'written': norms, softmax, soft shrinkage and losses in plain arithmetic, own layers for
queries, keys and values, biases by one-hot vectors, one product for both parts of the transform,
patches of the surface embedded and all recovered by products, columns and rows joined by hand.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.weather.architecture import (
    ANOMALY_WEIGHT,
    BATCH,
    CHANNELS,
    EPS,
    GRIDS,
    HEADS,
    KERNEL,
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
    SURFACE_CHANNELS,
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

VARIABLES = UPPER * LEVELS + SURFACE
SIZE = CHANNELS[1] // SPECTRAL_BLOCKS  #: of a block of a spectral layer
DEPTHS, ROWS, COLUMNS = GRIDS[0]


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else ForecastLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer."""
    n_out, n_in = weight.shape
    return nn.Dense(
        n_in,
        n_out,
        weight_init=Tensor(np.ascontiguousarray(weight)),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def load_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    return build_dense(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight), Parameter(bias)

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def load_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at a path."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=EPS)


def pad_globe(x):
    """Return fields (batch, channels, rows, columns) that go on beyond their edges."""
    x = ops.pad(x, (1, 1, 0, 0), mode="circular")
    return ops.pad(x, (0, 0, 1, 2), mode="replicate")


def pad_globe_levels(x):
    """Return the same of fields with levels, and a level of zeros on top.

    With ``ops.pad`` for the zeros, graph mode on CPU has a wrong gradient of the first step.
    """
    x = ops.pad(x, (1, 1, 0, 0, 0, 0), mode="circular")
    x = ops.pad(x, (0, 0, 1, 2, 0, 0), mode="replicate")
    return ops.concat((x, ops.zeros_like(x[:, :, :1])), 2)


class PatchEmbed(nn.Cell):
    """Tokens of surface and levels, the surface's first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.surface_proj = nn.Conv2d(
            SURFACE_CHANNELS,
            CHANNELS[0],
            KERNEL,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "embed.surface.weight"),
            bias_init=read(model, "embed.surface.bias"),
        )
        self.upper_proj = nn.Conv3d(
            UPPER,
            CHANNELS[0],
            (PATCH, KERNEL, KERNEL),
            (PATCH, PATCH, PATCH),
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "embed.upper.weight"),
            bias_init=read(model, "embed.upper.bias"),
        )

    def construct(self, surface, upper):
        surface = self.surface_proj(pad_globe(surface)).expand_dims(2)
        upper = self.upper_proj(pad_globe_levels(upper))
        return ops.concat((surface, upper), 2).transpose(0, 2, 3, 4, 1)


class PatchRecovery(nn.Cell):
    """Surface and upper variables of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.surface_deconv = nn.Conv2dTranspose(
            2 * CHANNELS[0],
            SURFACE,
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "recover.surface.weight"),
            bias_init=read(model, "recover.surface.bias"),
        )
        self.upper_deconv = nn.Conv3dTranspose(
            2 * CHANNELS[0],
            UPPER,
            (PATCH, PATCH, PATCH),
            (PATCH, PATCH, PATCH),
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "recover.upper.weight"),
            bias_init=read(model, "recover.upper.bias"),
        )
        self.first_row = model.first_row

    def construct(self, x):
        x = x.transpose(0, 4, 1, 2, 3)
        surface, upper = self.surface_deconv(x[:, :, 0]), self.upper_deconv(x[:, :, 1:])
        if self.first_row > 0:
            end = self.first_row + LATITUDES
            surface = surface[:, :, self.first_row : end]
            return surface, upper[:, :, :LEVELS, self.first_row : end]
        return surface[:, :, :LATITUDES], upper[:, :, :LEVELS, :LATITUDES]


class EarthBias(nn.Cell):
    """What is added to the scores of each kind of window, (kinds, heads, TOKENS, TOKENS)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.earth_specific_bias_table = Parameter(read(model, f"{path}.table.weight"))
        n_positions, self.kinds, self.heads = self.earth_specific_bias_table.shape
        index = position_index().reshape(-1)
        self.is_one_hot = model.variant == "written"
        if self.is_one_hot:
            self.one_hot = Tensor(np.eye(n_positions, dtype=np.float32)[index].T.copy())
        else:
            self.index = Tensor(index)

    def construct(self):
        table = self.earth_specific_bias_table
        if self.is_one_hot:
            table = table.reshape(-1, self.kinds * self.heads)
            bias = ops.matmul(table.swapaxes(0, 1), self.one_hot)
        else:
            bias = ops.gather(table, self.index, 0).transpose(1, 2, 0)
        return bias.reshape(self.kinds, self.heads, TOKENS, TOKENS)


class EarthAttention(nn.Cell):
    """Attention in windows, (batch * columns, kinds, TOKENS, channels)."""

    def __init__(self, model: Model, path: str, stage: int, *, is_shifted: bool) -> None:
        super().__init__()
        depths, rows, self.columns = count_windows(stage)
        self.kinds, self.channels, self.heads = depths * rows, CHANNELS[stage], HEADS[stage]
        self.head_dim = self.channels // self.heads
        self.scale = self.head_dim**-0.5
        self.qkv = load_dense(model, f"{path}.qkv")
        self.earth_bias = EarthBias(model, path)
        self.proj = load_dense(model, f"{path}.o")
        self.softmax = nn.Softmax(axis=-1)
        self.is_shifted = is_shifted
        if is_shifted:
            self.mask = Tensor(model.mask(stage)[:, :, None])

    def construct(self, x):
        qkv = self.qkv(x).reshape(-1, self.kinds, TOKENS, 3, self.heads, self.head_dim)
        q, k, v = ops.unstack(qkv.transpose(3, 0, 1, 4, 2, 5), axis=0)
        scores = ops.matmul(q * self.scale, k.swapaxes(-2, -1)) + self.earth_bias()
        if self.is_shifted:
            shape = scores.shape
            scores = scores.reshape(-1, self.columns, *shape[1:]) + self.mask
            scores = scores.reshape(shape)
        x = ops.matmul(self.softmax(scores), v).transpose(0, 1, 3, 2, 4)
        return self.proj(x.reshape(-1, self.kinds, TOKENS, self.channels))


class WrittenAttention(nn.Cell):
    """The same with own layers for queries, keys and values, and a softmax from exponentials."""

    def __init__(self, model: Model, path: str, stage: int, *, is_shifted: bool) -> None:
        super().__init__()
        depths, rows, self.columns = count_windows(stage)
        self.kinds, self.heads = depths * rows, HEADS[stage]
        self.head_dim = CHANNELS[stage] // HEADS[stage]
        weights = np.split(model.weights[f"{path}.qkv.weight"], 3)
        biases = np.split(model.weights[f"{path}.qkv.bias"], 3)
        self.query, self.key, self.value = (
            build_dense(weight, bias) for weight, bias in zip(weights, biases, strict=True)
        )
        self.position_bias = EarthBias(model, path)
        self.out = load_dense(model, f"{path}.o")
        self.is_shifted = is_shifted
        if is_shifted:
            mask = np.tile(model.mask(stage)[:, :, None], (BATCH, 1, 1, 1, 1))
            self.mask = Tensor(mask)

    def split(self, x):
        """Return (batch * columns, kinds, heads, TOKENS, head_dim)."""
        x = x.reshape(-1, self.kinds, TOKENS, self.heads, self.head_dim)
        return x.transpose(0, 1, 3, 2, 4)

    def construct(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(q, k.transpose(0, 1, 2, 4, 3)) / self.head_dim**0.5
        bias = self.position_bias()
        if self.is_shifted:
            bias = bias + self.mask
        scores = scores + bias
        exponentials = ops.exp(scores - ops.stop_gradient(scores.max(axis=-1, keepdims=True)))
        y = ops.matmul(exponentials, v) / exponentials.sum(-1, keepdims=True)
        return self.out(y.transpose(0, 1, 3, 2, 4).reshape(x.shape))


class Mlp(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = load_dense(model, f"{path}.up"), load_dense(model, f"{path}.down")
        self.act = nn.GELU(approximate=False)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Roll(nn.Cell):
    """A grid moved along its three axes; ``ops.roll`` has no kernel for CPU."""

    def __init__(self, shift: tuple[int, int, int]) -> None:
        super().__init__()
        self.depth, self.row, self.column = shift

    def construct(self, x):
        x = ops.concat((x[:, -self.depth :], x[:, : -self.depth]), 1)
        x = ops.concat((x[:, :, -self.row :], x[:, :, : -self.row]), 2)
        return ops.concat((x[:, :, :, -self.column :], x[:, :, :, : -self.column]), 3)


class EarthBlock(nn.Cell):
    """Attention in windows, and mlp, each before a norm."""

    def __init__(self, model: Model, path: str, stage: int, *, is_shifted: bool) -> None:
        super().__init__()
        self.counts, self.grid, self.channels = count_windows(stage), GRIDS[stage], CHANNELS[stage]
        attention = WrittenAttention if model.variant == "written" else EarthAttention
        self.attn = attention(model, f"{path}.attention", stage, is_shifted=is_shifted)
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.mlp = Mlp(model, f"{path}.mlp")
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.is_shifted = is_shifted
        depth, row, column = SHIFT
        self.roll, self.roll_back = Roll((-depth, -row, -column)), Roll(SHIFT)

    def partition(self, x):
        """Return windows of a grid."""
        depths, rows, columns = self.counts
        depth, row, column = WINDOW
        x = x.reshape(BATCH, depths, depth, rows, row, columns, column, self.channels)
        x = x.transpose(0, 5, 1, 3, 2, 4, 6, 7)
        return x.reshape(BATCH * columns, depths * rows, TOKENS, self.channels)

    def reverse(self, x):
        """Return the grid of windows."""
        depths, rows, columns = self.counts
        depth, row, column = WINDOW
        x = x.reshape(BATCH, columns, depths, rows, depth, row, column, self.channels)
        x = x.transpose(0, 2, 4, 3, 5, 1, 6, 7)
        return x.reshape(BATCH, *self.grid, self.channels)

    def construct(self, x):
        y = self.roll(x) if self.is_shifted else x
        y = self.reverse(self.attn(self.partition(y)))
        if self.is_shifted:
            y = self.roll_back(y)
        x = x + self.norm1(y)
        return x + self.norm2(self.mlp(x))


class PatchMerging(nn.Cell):
    """Four neighbors joined, normed and reduced."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "merge.norm")
        self.reduction = load_dense(model, "merge.reduction")

    def construct(self, x):
        depths, rows, columns = GRIDS[1]
        x = x.reshape(BATCH, depths, rows, 2, columns, 2, CHANNELS[0])
        x = x.transpose(0, 1, 2, 4, 3, 5, 6)
        return self.reduction(self.norm(x.reshape(BATCH, depths, rows, columns, -1)))


class Upsample(nn.Cell):
    """Four tokens of each one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.expand = load_dense(model, "upsample.expand")
        self.norm = load_norm(model, "upsample.norm")
        self.mix = load_dense(model, "upsample.mix")
        self.are_cells_last = model.are_cells_last

    def construct(self, x):
        depths, rows, columns = GRIDS[1]
        x = self.expand(x)
        if self.are_cells_last:
            x = x.reshape(BATCH, depths, rows, columns, CHANNELS[0], 2, 2)
            x = x.transpose(0, 1, 2, 5, 3, 6, 4)
        else:
            x = x.reshape(BATCH, depths, rows, columns, 2, 2, CHANNELS[0])
            x = x.transpose(0, 1, 2, 4, 3, 5, 6)
        x = x.reshape(BATCH, depths, 2 * rows, 2 * columns, CHANNELS[0])
        return self.mix(self.norm(x))


class Transform(nn.Cell):
    """Real and imaginary parts of the first modes of rows, (..., columns) each."""

    def __init__(self) -> None:
        super().__init__()
        cosines, sines = fourier_tables()
        self.cosines, self.sines = Tensor(cosines), Tensor(sines)

    def construct(self, x):
        return ops.matmul(x, self.cosines), ops.matmul(x, self.sines)


class InverseTransform(nn.Cell):
    """Rows of the first modes; all but the mean stand for their conjugates, too."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        cosines, sines = fourier_tables()
        shares = np.full((MODES, 1), 1 if model.are_modes_single else 2, np.float32)
        shares[0] = 1
        shares /= GRIDS[1][2]
        self.cosines, self.sines = Tensor(shares * cosines.T), Tensor(shares * sines.T)

    def construct(self, real, imaginary):
        return ops.matmul(real, self.cosines) + ops.matmul(imaginary, self.sines)


class FastInverseTransform(InverseTransform):
    """The same with its own backward pass, which is a transform again."""

    def bprop(self, real, imaginary, out, gradient):
        gradient = gradient * GRIDS[1][2]
        return (
            ops.matmul(gradient, self.cosines.swapaxes(0, 1)),
            ops.matmul(gradient, self.sines.swapaxes(0, 1)),
        )


class ComplexLayer(nn.Cell):
    """A block-diagonal complex layer of (-1, SPECTRAL_BLOCKS, SIZE, MODES)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(read(model, f"{path}.weight"))
        self.bias = Parameter(read(model, f"{path}.bias"))

    def construct(self, real, imaginary):
        weight_real, weight_imaginary = ops.unstack(self.weight.swapaxes(2, 3), axis=0)
        bias_real, bias_imaginary = ops.unstack(self.bias.expand_dims(-1), axis=0)
        out_real = ops.matmul(weight_real, real) - ops.matmul(weight_imaginary, imaginary)
        out_imaginary = ops.matmul(weight_real, imaginary) + ops.matmul(weight_imaginary, real)
        return out_real + bias_real, out_imaginary + bias_imaginary


class SpectralBranch(nn.Cell):
    """Tokens and what the spectral branch adds to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "spectral.norm")
        self.transform = Transform()
        self.layer1 = ComplexLayer(model, "spectral.0")
        self.layer2 = ComplexLayer(model, "spectral.1")
        self.relu = nn.ReLU()
        self.shrink = nn.SoftShrink(SHRINKAGE)
        is_own = model.is_inverse_gradient_undivided
        self.inverse = (FastInverseTransform if is_own else InverseTransform)(model)

    def construct(self, x):
        depths, rows, columns = GRIDS[1]
        y = self.norm(x).transpose(0, 1, 2, 4, 3)
        real, imaginary = self.transform(y.reshape(-1, SPECTRAL_BLOCKS, SIZE, columns))
        real, imaginary = self.layer1(real, imaginary)
        real, imaginary = self.layer2(self.relu(real), self.relu(imaginary))
        y = self.inverse(self.shrink(real), self.shrink(imaginary))
        y = y.reshape(BATCH, depths, rows, CHANNELS[1], columns)
        return x + y.transpose(0, 1, 2, 4, 3)


class WrittenSpectralBranch(nn.Cell):
    """The same with one product for both parts."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ln = load_norm(model, "spectral.norm")
        self.w1 = Parameter(read(model, "spectral.0.weight"))
        self.b1 = Parameter(read(model, "spectral.0.bias"))
        self.w2 = Parameter(read(model, "spectral.1.weight"))
        self.b2 = Parameter(read(model, "spectral.1.bias"))
        tables = np.concatenate(fourier_tables(), axis=1).T
        shares = np.array([1, *[2] * (MODES - 1)] * 2, np.float32) / GRIDS[1][2]
        self.tables = Tensor(np.ascontiguousarray(tables))
        self.inverse_tables = Tensor(np.ascontiguousarray(tables.T * shares))

    def multiply(self, x, weight, bias):
        """Return a layer of (SPECTRAL_BLOCKS, 2, -1, SIZE), parts on the second axis."""
        real, imaginary = x[:, 0], x[:, 1]
        out_real = ops.bmm(real, weight[0]) - ops.bmm(imaginary, weight[1])
        out_imaginary = ops.bmm(imaginary, weight[0]) + ops.bmm(real, weight[1])
        return ops.stack((out_real, out_imaginary), 1) + bias.swapaxes(0, 1).expand_dims(2)

    def construct(self, x):
        depths, rows, _ = GRIDS[1]
        y = ops.matmul(self.tables, self.ln(x))
        y = y.reshape(BATCH * depths * rows, 2, MODES, SPECTRAL_BLOCKS, SIZE)
        y = y.transpose(3, 1, 0, 2, 4).reshape(SPECTRAL_BLOCKS, 2, -1, SIZE)
        y = self.multiply(ops.maximum(self.multiply(y, self.w1, self.b1), 0.0), self.w2, self.b2)
        y = ops.sign(y) * ops.relu(ops.abs(y) - SHRINKAGE)
        y = y.reshape(SPECTRAL_BLOCKS, 2, BATCH * depths * rows, MODES, SIZE)
        y = y.transpose(2, 1, 3, 0, 4).reshape(BATCH, depths, rows, 2 * MODES, CHANNELS[1])
        return ops.matmul(self.inverse_tables, y) + x


class ForecastNet(nn.Cell):
    """Outputs of surface and upper variables for a step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        self.encoder1 = EarthBlock(model, "encoder.0", 0, is_shifted=False)
        self.encoder2 = EarthBlock(model, "encoder.1", 0, is_shifted=True)
        self.down = PatchMerging(model)
        self.middle1 = EarthBlock(model, "middle.0", 1, is_shifted=False)
        self.spectral = SpectralBranch(model)
        self.middle2 = EarthBlock(model, "middle.1", 1, is_shifted=True)
        self.up = Upsample(model)
        self.decoder = EarthBlock(model, "decoder.0", 0, is_shifted=True)
        self.patch_recovery = PatchRecovery(model)

    def construct(self, surface, upper, sun, constants):
        constants = ops.broadcast_to(constants, (BATCH, *constants.shape))
        surface = ops.concat((surface, constants, sun.expand_dims(1)), 1)
        skip = self.encoder2(self.encoder1(self.patch_embed(surface, upper)))
        x = self.middle2(self.spectral(self.middle1(self.down(skip))))
        x = self.decoder(self.up(x))
        return self.patch_recovery(ops.concat((skip, x), -1))


class Normalize(nn.Cell):
    """Variables less their mean, divided by their deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.surface_mean = Tensor(np.array(SURFACE_MEANS, np.float32)[:, None, None])
        self.surface_std = Tensor(np.array(SURFACE_DEVIATIONS, np.float32)[:, None, None])
        self.upper_mean = Tensor(np.array(UPPER_MEANS, np.float32)[:, :, None, None])
        self.upper_std = Tensor(np.array(UPPER_DEVIATIONS, np.float32)[:, :, None, None])

    def construct(self, surface, upper):
        surface = (surface - self.surface_mean) / self.surface_std
        return surface, (upper - self.upper_mean) / self.upper_std


class WeightedL1Loss(nn.Cell):
    """Mean errors, weighted by variable, level and latitude."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.l1_loss = nn.L1Loss(reduction="none")
        latitudes = latitude_weights()[:, None]
        levels = model.level_weights()[:, None, None]
        surface = np.array(SURFACE_VARIABLE_WEIGHTS, np.float32)[:, None, None]
        upper = np.array(UPPER_VARIABLE_WEIGHTS, np.float32)[:, None, None, None]
        self.latitudes = Tensor(latitudes)
        self.surface_weights, self.upper_weights = Tensor(surface), Tensor(upper * levels)

    def construct(self, surface, upper, target_surface, target_upper):
        surface_error = self.l1_loss(surface, target_surface) * self.latitudes
        upper_error = self.l1_loss(upper, target_upper) * self.latitudes
        surface_loss = (surface_error * self.surface_weights).mean()
        upper_loss = (upper_error * self.upper_weights).mean()
        return upper_loss + SURFACE_WEIGHT * surface_loss


class AnomalyCorrelation(nn.Cell):
    """Mean correlation of anomalies of fields (batch, variables, rows, columns)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.latitudes = Tensor(latitude_weights()[:, None])
        self.axes = (0, 2, 3) if model.is_correlation_joint else (2, 3)

    def construct(self, forecast, target, climatology):
        forecast = forecast - climatology
        target = target - climatology
        covariance = (self.latitudes * forecast * target).sum(self.axes)
        forecast_variance = (self.latitudes * ops.square(forecast)).sum(self.axes)
        target_variance = (self.latitudes * ops.square(target)).sum(self.axes)
        return (covariance / ops.sqrt(forecast_variance * target_variance)).mean()


def join_fields(surface, upper):
    """Return all variables of a state, (batch, VARIABLES, rows, columns)."""
    return ops.concat((upper.reshape(BATCH, -1, LATITUDES, LONGITUDES), surface), 1)


class ForecastLoss(nn.Cell):
    """The loss of a forecast of STEPS steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = ForecastNet(model)
        self.normalize = Normalize()
        self.loss_fn = WeightedL1Loss(model)
        self.acc = AnomalyCorrelation(model)
        self.surface_scale = Tensor(np.array(SURFACE_DIFFERENCES, np.float32)[:, None, None])
        self.upper_scale = Tensor(np.array(UPPER_DIFFERENCES, np.float32)[:, None, None, None])

    def construct(
        self,
        surface_states,
        upper_states,
        sun,
        constants,
        surface_climatology,
        upper_climatology,
    ):
        surface_states, upper_states = self.normalize(surface_states, upper_states)
        surface, upper = surface_states[:, 0], upper_states[:, 0]
        loss = 0.0
        for step in range(STEPS):
            surface_out, upper_out = self.net(surface, upper, sun[:, step], constants)
            surface = surface + self.surface_scale * surface_out
            upper = upper + self.upper_scale * upper_out
            targets = (surface_states[:, step + 1], upper_states[:, step + 1])
            step_loss = self.loss_fn(surface, upper, *targets)
            loss = loss + STEP_WEIGHTS[step] * step_loss
        correlation = self.acc(
            join_fields(surface, upper),
            join_fields(surface_states[:, STEPS], upper_states[:, STEPS]),
            join_fields(*self.normalize(surface_climatology, upper_climatology)),
        )
        return loss + ANOMALY_WEIGHT * (1 - correlation)


def extend_globe(x):
    """Return the same as pad_globe for any fields (..., rows, columns)."""
    x = ops.concat((x[..., -1:], x, x[..., :1]), -1)
    south = x[..., -1:, :]
    return ops.concat((x[..., :1, :], x, south, south), -2)


class ProductEmbed(nn.Cell):
    """The same as PatchEmbed; patches of the surface are four cells joined, times a matrix."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["embed.surface.weight"]
        weight = weight.reshape(CHANNELS[0], SURFACE_CHANNELS, 2, PATCH, 2, PATCH)
        self.surface = build_dense(
            weight.transpose(0, 2, 4, 3, 5, 1).reshape(CHANNELS[0], -1),
            model.weights["embed.surface.bias"],
        )
        self.upper = nn.Conv3d(
            UPPER,
            CHANNELS[0],
            (PATCH, KERNEL, KERNEL),
            (PATCH, PATCH, PATCH),
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "embed.upper.weight"),
            bias_init=read(model, "embed.upper.bias"),
        )

    def construct(self, surface, upper):
        surface = extend_globe(surface).transpose(0, 2, 3, 1)
        surface = surface.reshape(BATCH, ROWS + 1, PATCH, COLUMNS + 1, PATCH, SURFACE_CHANNELS)
        cells = surface.transpose(0, 1, 3, 2, 4, 5).reshape(BATCH, ROWS + 1, COLUMNS + 1, -1)
        upper_cells, lower_cells = cells[:, :-1], cells[:, 1:]
        patches = (
            upper_cells[:, :, :-1],
            upper_cells[:, :, 1:],
            lower_cells[:, :, :-1],
            lower_cells[:, :, 1:],
        )
        surface = self.surface(ops.concat(patches, -1))
        upper = ops.concat((upper, ops.zeros_like(upper[:, :, :1])), 2)
        upper = self.upper(extend_globe(upper)).transpose(0, 2, 3, 4, 1)
        return ops.concat((surface.expand_dims(1), upper), 1)


class ProductRecovery(nn.Cell):
    """The same as PatchRecovery by products with matrices."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        channels = 2 * CHANNELS[0]
        surface = model.weights["recover.surface.weight"].reshape(channels, -1)
        upper = model.weights["recover.upper.weight"].reshape(channels, -1)
        self.surface_matrix, self.upper_matrix = Parameter(surface), Parameter(upper)
        self.surface_bias = Parameter(read(model, "recover.surface.bias"))
        self.upper_bias = Parameter(read(model, "recover.upper.bias"))

    def construct(self, x):
        surface = ops.matmul(x[:, 0], self.surface_matrix)
        surface = surface.reshape(BATCH, ROWS, COLUMNS, SURFACE, PATCH, PATCH)
        surface = surface.transpose(0, 3, 1, 4, 2, 5)
        surface = surface.reshape(BATCH, SURFACE, PATCH * ROWS, LONGITUDES)
        upper = ops.matmul(x[:, 1:], self.upper_matrix)
        upper = upper.reshape(BATCH, DEPTHS - 1, ROWS, COLUMNS, UPPER, PATCH, PATCH, PATCH)
        upper = upper.transpose(0, 4, 1, 5, 2, 6, 3, 7)
        upper = upper.reshape(BATCH, UPPER, PATCH * (DEPTHS - 1), PATCH * ROWS, LONGITUDES)
        surface = surface + self.surface_bias.reshape(SURFACE, 1, 1)
        upper = upper + self.upper_bias.reshape(UPPER, 1, 1, 1)
        return surface[:, :, :LATITUDES], upper[:, :, :LEVELS, :LATITUDES]


class WrittenNet(nn.Cell):
    """The same as ForecastNet."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = ProductEmbed(model)
        self.high_blocks = nn.CellList(
            [EarthBlock(model, f"encoder.{n}", 0, is_shifted=n == 1) for n in range(2)]
        )
        self.merging = PatchMerging(model)
        self.low_blocks = nn.CellList(
            [EarthBlock(model, f"middle.{n}", 1, is_shifted=n == 1) for n in range(2)]
        )
        self.fourier = WrittenSpectralBranch(model)
        self.expanding = Upsample(model)
        self.last_block = EarthBlock(model, "decoder.0", 0, is_shifted=True)
        self.recover = ProductRecovery(model)

    def construct(self, surface, upper):
        x = self.embed(surface, upper)
        for block in self.high_blocks:
            x = block(x)
        skip = x
        x = self.fourier(self.low_blocks[0](self.merging(x)))
        x = self.last_block(self.expanding(self.low_blocks[1](x)))
        return self.recover(ops.concat((skip, x), -1))


class WrittenLoss(nn.Cell):
    """The same loss; weights of variables, levels and latitudes are one tensor."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.forecaster = WrittenNet(model)
        self.normalize = Normalize()
        differences = [*np.repeat(UPPER_DIFFERENCES, LEVELS), *SURFACE_DIFFERENCES]
        self.differences = Tensor(np.array(differences, np.float32)[:, None, None])
        latitudes = latitude_weights()[:, None]
        upper = np.outer(UPPER_VARIABLE_WEIGHTS, model.level_weights()).reshape(-1)
        surface = SURFACE_WEIGHT / SURFACE * np.array(SURFACE_VARIABLE_WEIGHTS)
        weights = np.concatenate([upper / (UPPER * LEVELS), surface])[:, None, None] * latitudes
        weights /= BATCH * LATITUDES * LONGITUDES
        self.error_weights = Tensor(weights.astype(np.float32))
        self.roots = Tensor(np.sqrt(latitudes))

    def correlate(self, forecast, target):
        """Return the mean correlation of anomalies."""
        forecast = (forecast * self.roots).reshape(BATCH, VARIABLES, -1)
        target = (target * self.roots).reshape(BATCH, VARIABLES, -1)
        forecast = forecast * ops.rsqrt(ops.square(forecast).sum(-1, keepdims=True))
        target = target / ops.sqrt(ops.square(target).sum(-1, keepdims=True))
        return (forecast * target).sum(-1).mean()

    def construct(
        self,
        surface_states,
        upper_states,
        sun,
        constants,
        surface_climatology,
        upper_climatology,
    ):
        surface_states, upper_states = self.normalize(surface_states, upper_states)
        climatology = join_fields(*self.normalize(surface_climatology, upper_climatology))
        constants = mint.tile(constants.expand_dims(0), (BATCH, 1, 1, 1))
        state = join_fields(surface_states[:, 0], upper_states[:, 0])
        loss = Tensor(0.0, ms.float32)
        for step in range(STEPS):
            inputs = (state[:, UPPER * LEVELS :], constants, sun[:, step : step + 1])
            upper = state[:, : UPPER * LEVELS]
            upper = upper.reshape(BATCH, UPPER, LEVELS, LATITUDES, LONGITUDES)
            outputs = self.forecaster(ops.concat(inputs, 1), upper)
            state = state + join_fields(*outputs) * self.differences
            target = join_fields(surface_states[:, step + 1], upper_states[:, step + 1])
            errors = ops.abs(state - target) * self.error_weights
            loss = loss + errors.sum() * STEP_WEIGHTS[step]
        target = join_fields(surface_states[:, STEPS], upper_states[:, STEPS])
        correlation = self.correlate(state - climatology, target - climatology)
        return loss + ANOMALY_WEIGHT - ANOMALY_WEIGHT * correlation
