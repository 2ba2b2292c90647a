"""The VQ-VAE in MindSpore, with cells as those of MindONE's autoencoders.

Variant 'written': group norm, silu and softmax in plain arithmetic, upsampling by repetition, rows
of the codebook by gathering.
"""

from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops

from families.vqvae.architecture import (
    BETA,
    CELLS,
    CHANNELS,
    CODES,
    EMBED,
    EPS,
    STEM,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return AutoencoderLoss(model)


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``; kernels of 4 and 3 have one pixel of padding."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    n_out, n_in, kernel, _ = weight.shape
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=(kernel - 1) // 2,
        has_bias=True,
        weight_init=weight,
        bias_init=bias,
    )


class WrittenNorm(nn.Cell):
    """Group norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor, groups: int) -> None:
        super().__init__()
        self.gamma, self.beta, self.groups = Parameter(weight), Parameter(bias), groups

    def construct(self, x):
        y = x.reshape(x.shape[0], self.groups, -1)
        centered = y - y.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        y = (centered * ops.rsqrt(variance + EPS)).reshape(x.shape)
        return y * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the group norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias, model.groups)
    return nn.GroupNorm(model.groups, len(weight), eps=EPS, gamma_init=weight, beta_init=bias)


class Swish(nn.Cell):
    """x times its sigmoid."""

    def construct(self, x):
        return x * ops.sigmoid(x)


def build_activation(model: Model) -> nn.Cell:
    """Return the activation of all layers."""
    return Swish() if model.variant == "written" else nn.SiLU()


class ResidualBlock(nn.Cell):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = build_conv(model, f"{path}.conv1")
        self.group_norm = build_norm(model, f"{path}.norm")
        self.conv2 = build_conv(model, f"{path}.conv2")
        self.act = build_activation(model)
        self.is_residual_activated = model.is_residual_activated

    def construct(self, x):
        activated = self.act(x)
        hidden = self.conv2(self.act(self.group_norm(self.conv1(activated))))
        return (activated if self.is_residual_activated else x) + hidden


class SpatialAttention(nn.Cell):
    """Attention of all cells to all cells, added to its input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.group_norm = build_norm(model, f"{path}.norm")
        self.to_q = build_conv(model, f"{path}.q")
        self.to_k = build_conv(model, f"{path}.k")
        self.to_v = build_conv(model, f"{path}.v")
        self.to_out = build_conv(model, f"{path}.o")
        self.scale = model.score_scale
        self.is_written_out = model.variant == "written"
        self.are_weights_transposed = model.are_weights_transposed

    def flatten(self, x):
        """Return (batch, cells, channels)."""
        return x.reshape(x.shape[0], CHANNELS, -1).transpose(0, 2, 1)

    def construct(self, x):
        hidden = self.group_norm(x)
        q, k = self.flatten(self.to_q(hidden)), self.flatten(self.to_k(hidden))
        v = self.flatten(self.to_v(hidden))
        if self.is_written_out:
            scores = ops.matmul(q * self.scale, k.swapaxes(1, 2))
            exponentials = ops.exp(scores - ops.amax(scores, -1, True))
            weights = exponentials / exponentials.sum(-1, keepdims=True)
        else:
            weights = ops.softmax(ops.matmul(q, k.swapaxes(1, 2)) * self.scale, -1)
        if not self.are_weights_transposed:
            weights = weights.swapaxes(1, 2)
        attended = ops.matmul(weights, v).transpose(0, 2, 1).reshape(x.shape)
        return x + self.to_out(attended)


class Encoder(nn.Cell):
    """Images to (batch, EMBED, CELLS, CELLS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_conv(model, "encoder.conv_in", 2)
        self.stem_block = ResidualBlock(model, "encoder.block.0")
        self.downsample = build_conv(model, "encoder.down", 2)
        self.resnets = nn.CellList(
            [ResidualBlock(model, f"encoder.block.{number}") for number in (1, 2)]
        )
        self.attention = SpatialAttention(model, "encoder.attention")
        self.norm = build_norm(model, "encoder.norm")
        self.act = build_activation(model)
        self.to_codes = build_conv(model, "encoder.conv_out")

    def construct(self, x):
        x = self.downsample(self.stem_block(self.stem(x)))
        x = self.resnets[1](self.attention(self.resnets[0](x)))
        return self.to_codes(self.act(self.norm(x)))


class PassToBoth(nn.Cell):
    """Rows of a codebook, by their differences; the gradient goes to encodings and rows."""

    def construct(self, encodings, rows):
        return encodings + (rows - encodings)

    def bprop(self, encodings, rows, out, gradient):
        return gradient, gradient


class Codebook(nn.Cell):
    """The nearest rows of a codebook, and the loss of the distances to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["codebook.weight"])
        self.embedding = nn.Embedding(CODES, EMBED, embedding_table=table)
        self.is_gathered = model.variant == "written"
        self.product_factor = model.product_factor
        self.is_channel_read_first = model.is_channel_read_first
        self.is_averaged_over_cells = model.quantizer_reduction == "cells"
        self.is_beta_exchanged = model.is_beta_exchanged
        self.is_straight_through = model.is_straight_through
        self.is_commitment_detached = model.is_commitment_detached
        self.pass_to_both = PassToBoth() if model.is_gradient_passed_twice else None

    def find_nearest(self, rows):
        """Return the index of the nearest row of the codebook, for each row."""
        table = self.embedding.embedding_table
        squares = ops.square(rows).sum(1, keepdims=True) + ops.square(table).sum(1)
        distances = squares - self.product_factor * ops.matmul(rows, table.T)
        return ops.argmin(distances, 1)

    def compute_distance(self, x, y):
        """Return the mean squared difference."""
        squares = ops.square(x - y)
        return squares.sum(-1).mean() if self.is_averaged_over_cells else squares.mean()

    def construct(self, encoded):
        z = encoded if self.is_channel_read_first else encoded.transpose(0, 2, 3, 1)
        indices = self.find_nearest(z.reshape(-1, EMBED))
        if self.is_gathered:
            quantized = ops.gather(self.embedding.embedding_table, indices, 0)
        else:
            quantized = self.embedding(indices)
        quantized = quantized.reshape(z.shape)
        codebook_loss = self.compute_distance(quantized, ops.stop_gradient(z))
        goal = ops.stop_gradient(quantized) if self.is_commitment_detached else quantized
        commitment_loss = self.compute_distance(z, goal)
        if self.is_beta_exchanged:
            loss = BETA * codebook_loss + commitment_loss
        else:
            loss = codebook_loss + BETA * commitment_loss
        if self.pass_to_both is not None:
            quantized = self.pass_to_both(z, quantized)
        elif self.is_straight_through:
            quantized = z + ops.stop_gradient(quantized - z)
        if not self.is_channel_read_first:
            quantized = quantized.transpose(0, 3, 1, 2)
        return quantized, loss


class Decoder(nn.Cell):
    """Images of what was encoded."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.from_codes = build_conv(model, "decoder.conv_in")
        self.resnets = nn.CellList(
            [ResidualBlock(model, f"decoder.block.{number}") for number in (0, 1)]
        )
        self.attention = SpatialAttention(model, "decoder.attention")
        self.is_shifted = model.is_transposed_shifted
        self.deconv = nn.Conv2dTranspose(
            CHANNELS,
            STEM,
            3,
            2,
            pad_mode="valid" if self.is_shifted else "same",
            has_bias=True,
            weight_init=Tensor(model.weights["decoder.up.weight"]),
            bias_init=Tensor(model.weights["decoder.up.bias"]),
        )
        self.fine_block = ResidualBlock(model, "decoder.block.2")
        self.conv_up = build_conv(model, "decoder.conv_up")
        self.norm = build_norm(model, "decoder.norm")
        self.act = build_activation(model)
        self.head = build_conv(model, "decoder.conv_out")
        self.is_repeated = model.variant == "written"
        self.resize_mode = model.resize_mode

    def upsample(self, x):
        """Return every pixel four times."""
        if self.is_repeated:
            return ops.repeat_interleave(ops.repeat_interleave(x, 2, 2), 2, 3)
        return ops.interpolate(x, size=(4 * CELLS, 4 * CELLS), mode=self.resize_mode)

    def construct(self, x):
        x = self.from_codes(x)
        x = self.resnets[1](self.attention(self.resnets[0](x)))
        x = self.deconv(x)
        if self.is_shifted:
            x = x[:, :, 1:, 1:]
        x = self.fine_block(x)
        x = self.conv_up(self.upsample(x))
        return self.head(self.act(self.norm(x)))


class Autoencoder(nn.Cell):
    """Decoded images, and the loss of the codebook."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.codebook, self.decoder = Encoder(model), Codebook(model), Decoder(model)

    def construct(self, x):
        quantized, loss = self.codebook(self.encoder(x))
        return self.decoder(quantized), loss


class AutoencoderLoss(nn.Cell):
    """Reconstruction and quantizer loss of images."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Autoencoder(model)
        self.mse = nn.L1Loss() if model.is_pixel_error_absolute else nn.MSELoss()
        self.is_target_raw = model.is_target_raw
        self.pixel_variance = model.pixel_variance

    def construct(self, images):
        x = images * 2 - 1
        decoded, quantizer_loss = self.network(x)
        target = images if self.is_target_raw else x
        pixel_loss = self.mse(decoded, target)
        if self.pixel_variance != 1:
            pixel_loss = pixel_loss / self.pixel_variance
        return pixel_loss + quantizer_loss
