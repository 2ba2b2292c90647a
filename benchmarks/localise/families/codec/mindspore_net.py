"""The codec in MindSpore for graph mode.

Variant 'products': channels last, convolutions and transposed ones as products of windows, the LSTM
step by step, distances from differences, codes by one-hot vectors.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.codec.architecture import (
    BATCH,
    CODEBOOKS,
    CODES,
    COMMITMENT_WEIGHT,
    DILATIONS,
    EMBED,
    HIDDEN,
    POWER_EPS,
    SPECTRAL_WEIGHT,
    STAGES,
    STEPS,
    STRIDES,
    WINDOWS,
    Model,
    get_fourier_matrix,
    get_frame_index,
    get_padding,
)

LSTM_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return ProductLoss(model) if model.variant == "products" else NetWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


class CausalConv1d(nn.Cell):
    """A convolution that is padded on the left, by reflection."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = read(model, f"{path}.weight")
        n_out, n_in, kernel = weight.shape
        self.pad = nn.ReflectionPad1d((get_padding(kernel), 0))
        self.conv = nn.Conv1d(
            n_in,
            n_out,
            kernel,
            pad_mode="valid",
            has_bias=True,
            weight_init=weight,
            bias_init=read(model, f"{path}.bias"),
        )

    def construct(self, x):
        return self.conv(self.pad(x))


class WeightNormConv1d(nn.Cell):
    """The same with a stride or a dilation, and with weight norm."""

    def __init__(self, model: Model, path: str, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.weight_g = Parameter(read(model, f"{path}.magnitude"))
        self.weight_v = Parameter(read(model, f"{path}.direction"))
        self.bias = Parameter(read(model, f"{path}.bias"))
        self.stride, self.dilation = stride, dilation
        padding = get_padding(self.weight_v.shape[2], stride, dilation)
        self.pad = nn.ReflectionPad1d((padding, 0)) if padding else None
        self.is_direction_norm_stopped = model.is_direction_norm_stopped

    def construct(self, x):
        norm = ops.sqrt(ops.square(self.weight_v).sum((1, 2), keepdims=True))
        if self.is_direction_norm_stopped:
            norm = ops.stop_gradient(norm)
        weight = self.weight_g * self.weight_v / norm
        if self.pad is not None:
            x = self.pad(x)
        return ops.conv1d(x, weight, self.bias, self.stride, "valid", 0, self.dilation)


class CausalConv1dTranspose(nn.Cell):
    """A transposed convolution that loses what its kernel adds behind the last step."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        weight = read(model, f"{path}.weight")
        n_in, n_out, kernel = weight.shape
        self.conv = nn.Conv1dTranspose(
            n_in,
            n_out,
            kernel,
            stride,
            pad_mode="valid",
            has_bias=True,
            weight_init=weight,
            bias_init=read(model, f"{path}.bias"),
        )
        n_trimmed = kernel - stride
        self.right = n_trimmed // 2 if model.is_trimmed_around else n_trimmed
        self.left = n_trimmed - self.right

    def construct(self, x):
        return self.conv(x)[:, :, self.left : -self.right]


class Snake(nn.Cell):
    """x + sin(alpha x)^2 / alpha."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.alpha = Parameter(read(model, name))

    def construct(self, x):
        return x + ops.square(ops.sin(self.alpha * x)) / self.alpha


class ResidualUnit(nn.Cell):
    """A dilated convolution and one of a single step, each behind its activation, and a skip."""

    def __init__(
        self, model: Model, path: str, dilation: int, activations: tuple[nn.Cell, nn.Cell]
    ) -> None:
        super().__init__()
        self.act1, self.act2 = activations
        self.conv1 = WeightNormConv1d(model, f"{path}.conv1", dilation=dilation)
        self.conv2 = WeightNormConv1d(model, f"{path}.conv2")

    def construct(self, x):
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class ResidualLSTM(nn.Cell):
    """An LSTM over the steps of (BATCH, HIDDEN, STEPS), cell by cell, with a skip."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        for name in LSTM_NAMES:
            getattr(self.cell, name).set_data(read(model, f"lstm.{name}"))
        self.zeros = Tensor(np.zeros((BATCH, HIDDEN), np.float32))
        self.has_skip = model.has_lstm_skip

    def construct(self, x):
        state, outputs = (self.zeros, self.zeros), ()
        for step in range(STEPS):
            state = self.cell(x[:, :, step], state)
            outputs += (state[0],)
        y = ops.stack(outputs, 2)
        return y + x if self.has_skip else y


class Encoder(nn.Cell):
    """Waves to (BATCH, EMBED, STEPS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = [CausalConv1d(model, "encoder.in")]
        for n in range(STAGES):
            path, activations = f"encoder.{n}", (nn.ELU(), nn.ELU())
            layers.append(ResidualUnit(model, f"{path}.unit", DILATIONS[n], activations))
            layers.append(nn.ELU())
            layers.append(WeightNormConv1d(model, f"{path}.down", STRIDES[n]))
        self.layers = nn.SequentialCell(layers)
        self.lstm = ResidualLSTM(model)
        self.act = nn.ELU()
        self.conv_out = CausalConv1d(model, "encoder.out")

    def construct(self, waves):
        return self.conv_out(self.act(self.lstm(self.layers(waves))))


class Decoder(nn.Cell):
    """(BATCH, EMBED, STEPS) to waves."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_in = CausalConv1d(model, "decoder.in")
        layers = []
        for n in range(STAGES):
            path = f"decoder.{n}"
            snakes = tuple(Snake(model, f"{path}.unit.alpha{number}") for number in (1, 2))
            layers.append(Snake(model, f"{path}.alpha"))
            layers.append(CausalConv1dTranspose(model, f"{path}.up", STRIDES[-1 - n]))
            layers.append(ResidualUnit(model, f"{path}.unit", DILATIONS[-1 - n], snakes))
        self.layers = nn.SequentialCell(layers)
        self.snake = Snake(model, "decoder.alpha")
        self.conv_out = CausalConv1d(model, "decoder.out")

    def construct(self, x):
        return self.conv_out(self.snake(self.layers(self.conv_in(x))))


class VectorQuantizer(nn.Cell):
    """The nearest codes of (BATCH, STEPS, EMBED)."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        table = read(model, f"codebooks.{n}.weight")
        self.codebook = nn.Embedding(CODES, EMBED, embedding_table=table)
        self.has_code_lengths = model.has_code_lengths

    def find_nearest(self, rows):
        """Return the number of the nearest code of each row."""
        table = self.codebook.embedding_table
        distances = ops.square(rows).sum(1, keepdims=True) - 2 * ops.matmul(rows, table.T)
        if self.has_code_lengths:
            distances = distances + ops.square(table).sum(1)
        return ops.argmin(distances, 1)

    def construct(self, x):
        indices = self.find_nearest(x.reshape(-1, EMBED))
        return self.codebook(indices).reshape(x.shape)


def compute_distances(x, y):
    """Return the mean squared difference of each example."""
    return ops.square(x - y).mean((1, 2))


class ResidualVectorQuantizer(nn.Cell):
    """Sums of codes, and the losses of codebooks and commitment."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.quantizers = nn.CellList([VectorQuantizer(model, n) for n in range(CODEBOOKS)])
        self.are_losses_masked = model.are_losses_masked

    def construct(self, encoded, counts):
        z = encoded.transpose(0, 2, 1)
        residual, quantized, loss = z, 0.0, 0.0
        for n in range(CODEBOOKS):
            codes = self.quantizers[n](residual)
            mask = ops.greater(counts, n).astype(ms.float32)
            quantized = quantized + codes * mask.reshape(-1, 1, 1)
            commitment_loss = compute_distances(residual, ops.stop_gradient(codes))
            codebook_loss = compute_distances(codes, ops.stop_gradient(residual))
            losses = codebook_loss + COMMITMENT_WEIGHT * commitment_loss
            if self.are_losses_masked:
                losses = losses * mask
            loss = loss + losses.mean()
            residual = residual - ops.stop_gradient(codes)
        quantized = z + ops.stop_gradient(quantized - z)
        return quantized.transpose(0, 2, 1), loss


class FusedRoot(nn.Cell):
    """A root whose gradient is divided by it, not by twice the root."""

    def construct(self, x):
        return ops.sqrt(x)

    def bprop(self, x, out, gradient):
        return (gradient / out,)


class SpectralLoss(nn.Cell):
    """Absolute error of the logarithms of magnitudes."""

    def __init__(self, model: Model, window: int, hop: int) -> None:
        super().__init__()
        self.index = Tensor(get_frame_index(window, hop))
        self.fourier = Tensor(get_fourier_matrix(window))
        self.root = ops.Sqrt() if model.is_root_halved else FusedRoot()

    def compute_log_magnitude(self, waves):
        frames = ops.gather(waves.squeeze(1), self.index, 1)
        real, imaginary = ops.chunk(ops.matmul(frames, self.fourier), 2, axis=-1)
        power = ops.square(real) + ops.square(imaginary)
        return ops.log(self.root(power + POWER_EPS))

    def construct(self, decoded, waves):
        return ops.l1_loss(self.compute_log_magnitude(decoded), self.compute_log_magnitude(waves))


class NetWithLoss(nn.Cell):
    """The codec and the sum of its losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(model), Decoder(model)
        self.quantizer = ResidualVectorQuantizer(model)
        self.spectral_losses = nn.CellList([SpectralLoss(model, *sizes) for sizes in WINDOWS])
        self.wave_loss = nn.L1Loss()
        self.are_spectra_stopped = model.are_spectra_stopped

    def construct(self, waves, counts):
        quantized, loss = self.quantizer(self.encoder(waves), counts)
        decoded = self.decoder(quantized)
        analysed = ops.stop_gradient(decoded) if self.are_spectra_stopped else decoded
        spectral_loss = 0.0
        for compute_loss in self.spectral_losses:
            spectral_loss = spectral_loss + compute_loss(analysed, waves)
        return self.wave_loss(decoded, waves) + SPECTRAL_WEIGHT * spectral_loss + loss


class WindowConvolution(nn.Cell):
    """A causal convolution of (BATCH, steps, channels) as a product of gathered windows."""

    def __init__(
        self, model: Model, path: str, length: int, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        self.has_norm = f"{path}.direction" in model.weights
        name = f"{path}.direction" if self.has_norm else f"{path}.weight"
        self.kernel = Parameter(read(model, name))
        if self.has_norm:
            self.gain = Parameter(read(model, f"{path}.magnitude"))
        self.offset = Parameter(read(model, f"{path}.bias"))
        kernel = self.kernel.shape[2]
        steps = np.arange(0, length, stride)[:, None] + dilation * np.arange(kernel)
        steps = np.abs(steps - get_padding(kernel, stride, dilation))  # reflected at the first one
        self.steps = Tensor(steps.astype(np.int32)) if kernel > 1 else None

    def construct(self, x):
        kernel = self.kernel
        if self.has_norm:
            kernel = kernel * mint.rsqrt(mint.sum(kernel * kernel, (1, 2), True)) * self.gain
        kernel = mint.permute(kernel, (2, 1, 0)).reshape(-1, kernel.shape[0])
        if self.steps is not None:
            x = ops.gather(x, self.steps, 1).reshape(BATCH, self.steps.shape[0], -1)
        return mint.matmul(x, kernel) + self.offset


class OverlapConvolution(nn.Cell):
    """A transposed convolution whose kernel has two strides: halves of products overlap."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        self.kernel = Parameter(read(model, f"{path}.weight"))
        self.offset = Parameter(read(model, f"{path}.bias"))
        self.stride = stride

    def construct(self, x):
        n_in, n_out, kernel = self.kernel.shape
        flat = mint.permute(self.kernel, (0, 2, 1)).reshape(n_in, kernel * n_out)
        early, late = mint.chunk(mint.matmul(x, flat), 2, dim=-1)
        late = mint.nn.functional.pad(late[:, :-1], (0, 0, 1, 0))
        return (early + late).reshape(BATCH, -1, n_out) + self.offset


class ChannelsLastSnake(nn.Cell):
    """Snake of (BATCH, steps, channels), with the sine's square by a cosine."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.alpha = Parameter(read(model, name).reshape(-1))

    def construct(self, x):
        return x + (1 - mint.cos(2 * self.alpha * x)) / (2 * self.alpha)


def rectify(x):
    """Return ELU."""
    return mint.nn.functional.relu(x) + mint.exp(ops.minimum(x, 0.0)) - 1


class ProductEncoder(nn.Cell):
    """Waves to (BATCH, STEPS, EMBED)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        length = STEPS * STRIDES[0] * STRIDES[1]
        self.entry = WindowConvolution(model, "encoder.in", length)
        dilated, pointwise, strided = [], [], []
        for n, stride in enumerate(STRIDES):
            unit = f"encoder.{n}.unit"
            dilated.append(WindowConvolution(model, f"{unit}.conv1", length, dilation=DILATIONS[n]))
            pointwise.append(WindowConvolution(model, f"{unit}.conv2", length))
            strided.append(WindowConvolution(model, f"encoder.{n}.down", length, stride))
            length //= stride
        self.dilated, self.pointwise = nn.CellList(dilated), nn.CellList(pointwise)
        self.strided = nn.CellList(strided)
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = (
            Parameter(read(model, f"lstm.{name}")) for name in LSTM_NAMES
        )
        self.exit = WindowConvolution(model, "encoder.out", length)

    def remember(self, x):
        """Return the LSTM's outputs, step by step, plus its inputs."""
        projected = mint.matmul(x, self.weight_ih.T) + (self.bias_ih + self.bias_hh)
        hidden = cell = mint.zeros((BATCH, HIDDEN))
        outputs = ()
        for step in range(STEPS):
            gates = projected[:, step] + mint.matmul(hidden, self.weight_hh.T)
            i, f, g, o = mint.chunk(gates, 4, dim=-1)
            cell = mint.sigmoid(f) * cell + mint.sigmoid(i) * mint.tanh(g)
            hidden = mint.sigmoid(o) * mint.tanh(cell)
            outputs += (hidden,)
        return ops.stack(outputs, 1) + x

    def construct(self, waves):
        x = self.entry(waves.transpose(0, 2, 1))
        for n in range(STAGES):
            x = x + self.pointwise[n](rectify(self.dilated[n](rectify(x))))
            x = self.strided[n](rectify(x))
        return self.exit(rectify(self.remember(x)))


class ProductDecoder(nn.Cell):
    """(BATCH, STEPS, EMBED) to waves (BATCH, samples)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        length = STEPS
        self.entry = WindowConvolution(model, "decoder.in", length)
        snakes, overlapped, dilated, pointwise = [], [], [], []
        for n in range(STAGES):
            path, stride = f"decoder.{n}", STRIDES[-1 - n]
            length *= stride
            names = ("alpha", "unit.alpha1", "unit.alpha2")
            snakes += [ChannelsLastSnake(model, f"{path}.{name}") for name in names]
            overlapped.append(OverlapConvolution(model, f"{path}.up", stride))
            dilation = DILATIONS[-1 - n]
            dilated.append(
                WindowConvolution(model, f"{path}.unit.conv1", length, dilation=dilation)
            )
            pointwise.append(WindowConvolution(model, f"{path}.unit.conv2", length))
        snakes.append(ChannelsLastSnake(model, "decoder.alpha"))
        self.snakes, self.overlapped = nn.CellList(snakes), nn.CellList(overlapped)
        self.dilated, self.pointwise = nn.CellList(dilated), nn.CellList(pointwise)
        self.exit = WindowConvolution(model, "decoder.out", length)

    def construct(self, x):
        x = self.entry(x)
        for n in range(STAGES):
            x = self.overlapped[n](self.snakes[3 * n](x))
            y = self.dilated[n](self.snakes[3 * n + 1](x))
            x = x + self.pointwise[n](self.snakes[3 * n + 2](y))
        return self.exit(self.snakes[-1](x)).squeeze(-1)


class ProductLoss(nn.Cell):
    """The codec and its losses in one cell."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.analysis, self.synthesis = ProductEncoder(model), ProductDecoder(model)
        tables = np.stack([model.weights[f"codebooks.{n}.weight"] for n in range(CODEBOOKS)])
        self.tables = Parameter(Tensor(tables), name="tables")
        self.indices = tuple(Tensor(get_frame_index(*sizes)) for sizes in WINDOWS)
        self.matrices = tuple(Tensor(get_fourier_matrix(window)) for window, _ in WINDOWS)

    def quantize(self, z, counts):
        """Return sums of codes, and the losses of the codebooks."""
        residual, quantized, loss = z, mint.zeros_like(z), 0.0
        for n in range(CODEBOOKS):
            table = self.tables[n]
            distances = mint.sum(mint.square(mint.unsqueeze(residual, 2) - table), -1)
            nearest = ops.one_hot(ops.argmin(distances, -1), CODES, 1.0, 0.0)
            codes = mint.matmul(nearest, table)
            fixed = ops.stop_gradient(codes)
            moved = mint.square(codes - ops.stop_gradient(residual))
            committed = COMMITMENT_WEIGHT * mint.square(fixed - residual)
            mask = (counts > n).astype(ms.float32).reshape(BATCH, 1, 1)
            loss = loss + mint.mean((moved + committed) * mask)
            quantized, residual = quantized + fixed * mask, residual - fixed
        return z + ops.stop_gradient(quantized - z), loss

    def compare_spectra(self, decoded, waves, index, matrix):
        """Return the absolute error of logarithms, of both at once."""
        frames = ops.gather(ops.stack((decoded, waves)), index, 2)
        spectra = mint.matmul(frames, matrix)
        power = mint.square(spectra).reshape(*spectra.shape[:-1], 2, -1)
        logarithms = 0.5 * mint.log(mint.sum(power, -2) + POWER_EPS)
        return mint.mean(mint.abs(logarithms[0] - logarithms[1]))

    def construct(self, waves, counts):
        codes, loss = self.quantize(self.analysis(waves), counts)
        decoded, waves = self.synthesis(codes), waves.squeeze(1)
        loss = loss + mint.mean(mint.abs(decoded - waves))
        for n in range(len(WINDOWS)):
            index, matrix = self.indices[n], self.matrices[n]
            loss = loss + SPECTRAL_WEIGHT * self.compare_spectra(decoded, waves, index, matrix)
        return loss
