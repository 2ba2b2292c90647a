"""The image restoration in MindSpore for graph mode, as a port of the authors' code.

Variant 'written': 1x1 convolutions as matrix products, norms, softmax, gelu, pixel shuffles, means
and Laplacian in plain arithmetic.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.restormer.architecture import (
    BLOCKS,
    CHARBONNIER_EPS,
    COLORS,
    EDGE_WEIGHT,
    FACTOR,
    HEADS,
    LAPLACIAN,
    LATENT_HEADS,
    NORM_EPS,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


class PointwiseProduct(nn.Cell):
    """A 1x1 convolution as the product of a matrix and all pixels."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = Parameter(weight.reshape(weight.shape[:2]), name="weight")

    def construct(self, x):
        batch, channels, height, width = x.shape
        y = ops.matmul(self.weight, x.reshape(batch, channels, height * width))
        return y.reshape(batch, -1, height, width)


def build_convolution(model: Model, path: str) -> nn.Cell:
    """Return the convolution at ``path``, which keeps the size; with the bias if there is one."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    if kernel == 1 and model.variant == "written":
        return PointwiseProduct(weight)
    group = n_out if n_in == 1 else 1
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in * group,
        n_out,
        kernel,
        pad_mode="pad",
        padding=kernel // 2,
        group=group,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


class WithBiasLayerNorm(nn.Cell):
    """Layer norm of the channels, which are the last axis in between."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
        self.norm = nn.LayerNorm(weight.shape, epsilon=NORM_EPS, gamma_init=weight, beta_init=bias)

    def construct(self, x):
        return self.norm(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


class BiasFreeLayerNorm(nn.Cell):
    """Pixels by the deviation of their channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(read(model, f"{path}.weight"), name="weight")

    def construct(self, x):
        x = x.transpose(0, 2, 3, 1)
        sigma = ops.var(x, -1, ddof=0, keepdims=True)
        return (x / ops.sqrt(sigma + NORM_EPS) * self.weight).transpose(0, 3, 1, 2)


class WrittenNorm(nn.Cell):
    """Either norm, from means over the channels where they are."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        shape = (1, -1, 1, 1)
        self.scale = Parameter(read(model, f"{path}.weight").reshape(shape), name="scale")
        self.has_shift = f"{path}.bias" in model.weights
        if self.has_shift:
            self.shift = Parameter(read(model, f"{path}.bias").reshape(shape), name="shift")

    def construct(self, x):
        centered = x - x.mean(1, keep_dims=True)
        factor = ops.rsqrt(ops.square(centered).mean(1, keep_dims=True) + NORM_EPS)
        if self.has_shift:
            return centered * factor * self.scale + self.shift
        return x * factor * self.scale


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the norm at ``path``."""
    if model.variant == "written":
        return WrittenNorm(model, path)
    has_bias = f"{path}.bias" in model.weights
    return (WithBiasLayerNorm if has_bias else BiasFreeLayerNorm)(model, path)


class Attention(nn.Cell):
    """Multi-DConv head transposed self-attention."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.temperature = Parameter(read(model, f"{path}.temperature"), name="temperature")
        self.qkv = build_convolution(model, f"{path}.qkv")
        self.qkv_dwconv = build_convolution(model, f"{path}.depthwise")
        self.project_out = build_convolution(model, f"{path}.out")
        self.normalize = ops.L2Normalize(
            axis=-2 if model.is_norm_of_channels else -1, epsilon=1e-12
        )
        self.softmax = nn.Softmax(axis=-1)
        self.are_keys_masked = model.are_keys_masked

    def construct(self, x, mask):
        b, c, h, w = x.shape
        q, k, v = ops.chunk(self.qkv_dwconv(self.qkv(x)), 3, axis=1)
        q = q * mask
        if self.are_keys_masked:
            k = k * mask
        shape = (b, self.num_heads, c // self.num_heads, h * w)
        q = self.normalize(q.reshape(shape))
        k = self.normalize(k.reshape(shape))
        attn = self.softmax(ops.matmul(q, k.swapaxes(-2, -1)) * self.temperature)
        out = ops.matmul(attn, v.reshape(shape))
        return self.project_out(out.reshape(b, c, h, w))


class WrittenAttention(nn.Cell):
    """The same; scores are divided by the norms of queries and keys."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = Parameter(read(model, f"{path}.temperature"), name="scale")
        self.to_qkv = build_convolution(model, f"{path}.qkv")
        self.mix = build_convolution(model, f"{path}.depthwise")
        self.to_out = build_convolution(model, f"{path}.out")

    def construct(self, x, mask):
        b, c, h, w = x.shape
        joined = self.mix(self.to_qkv(x)).reshape(b, 3, self.heads, c // self.heads, h * w)
        valid = mask.reshape(b, 1, 1, h * w)
        q, k, v = joined[:, 0] * valid, joined[:, 1] * valid, joined[:, 2]
        q_norm = ops.sqrt(ops.square(q).sum(-1, keepdims=True))
        k_norm = ops.sqrt(ops.square(k).sum(-1)).expand_dims(-2)
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) / (q_norm * k_norm) * self.scale
        powers = ops.exp(scores)  # scores are as small as the temperatures
        weights = powers / powers.sum(-1, keepdims=True)
        return self.to_out(ops.matmul(weights, v).reshape(b, c, h, w))


class FeedForward(nn.Cell):
    """Gated-DConv feed-forward network."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.project_in = build_convolution(model, f"{path}.in")
        self.dwconv = build_convolution(model, f"{path}.depthwise")
        self.project_out = build_convolution(model, f"{path}.out")
        self.gelu = nn.GELU(approximate=False)
        self.is_written = model.variant == "written"

    def construct(self, x):
        x1, x2 = ops.chunk(self.dwconv(self.project_in(x)), 2, axis=1)
        if self.is_written:
            gate = 0.5 * x1 * (1 + ops.erf(x1 * float(np.sqrt(0.5))))
        else:
            gate = self.gelu(x1)
        return self.project_out(gate * x2)


class TransformerBlock(nn.Cell):
    """Attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        attention = WrittenAttention if model.variant == "written" else Attention
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.attn = attention(model, f"{path}.attention", heads)
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.ffn = FeedForward(model, f"{path}.feed")

    def construct(self, x, mask):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


def build_blocks(model: Model, level: str, heads: int) -> nn.CellList:
    """Return the blocks of a level."""
    paths = [f"{level}.{n}" for n in range(BLOCKS[level])]
    return nn.CellList([TransformerBlock(model, path, heads) for path in paths])


class WrittenUnshuffle(nn.Cell):
    """A pixel unshuffle by reshape and transpose."""

    def construct(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b, c, h // FACTOR, FACTOR, w // FACTOR, FACTOR).transpose(0, 1, 3, 5, 2, 4)
        return x.reshape(b, c * FACTOR**2, h // FACTOR, w // FACTOR)


class WrittenShuffle(nn.Cell):
    """A pixel shuffle by reshape and transpose."""

    def construct(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b, c // FACTOR**2, FACTOR, FACTOR, h, w).transpose(0, 1, 4, 2, 5, 3)
        return x.reshape(b, c // FACTOR**2, FACTOR * h, FACTOR * w)


class Downsample(nn.Cell):
    """Features of the lower level."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = build_convolution(model, "down")
        if model.is_offset_first:
            self.unshuffle = ops.SpaceToDepth(FACTOR)
        elif model.variant == "written":
            self.unshuffle = WrittenUnshuffle()
        else:
            self.unshuffle = nn.PixelUnshuffle(FACTOR)

    def construct(self, x):
        return self.unshuffle(self.conv(x))


class Upsample(nn.Cell):
    """Features of the upper level."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = build_convolution(model, "up")
        is_written = model.variant == "written"
        self.shuffle = WrittenShuffle() if is_written else nn.PixelShuffle(FACTOR)

    def construct(self, x):
        return self.shuffle(self.conv(x))


class MeanPool(nn.Cell):
    """The mean of each 2x2 pixels."""

    def construct(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b, c, h // FACTOR, FACTOR, w // FACTOR, FACTOR)
        return x.mean((3, 5))


def build_pool(model: Model) -> nn.Cell:
    """Return what makes images of the lower level."""
    return MeanPool() if model.variant == "written" else nn.AvgPool2d(FACTOR, stride=FACTOR)


class Restormer(nn.Cell):
    """Restored images, and those of the lower level."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = build_convolution(model, "embed")
        self.encoder_level1 = build_blocks(model, "encoder", HEADS)
        self.down1_2 = Downsample(model)
        self.latent = build_blocks(model, "latent", LATENT_HEADS)
        self.up2_1 = Upsample(model)
        self.reduce_chan_level1 = build_convolution(model, "reduce")
        self.decoder_level1 = build_blocks(model, "decoder", HEADS)
        self.output = build_convolution(model, "output")
        self.output_level2 = build_convolution(model, "lower")
        self.pool = build_pool(model)
        self.is_lower_detached = model.is_lower_detached

    def construct(self, images, mask, lower_mask):
        skip = self.patch_embed(images)
        for block in self.encoder_level1:
            skip = block(skip, mask)
        latent = self.down1_2(skip)
        for block in self.latent:
            latent = block(latent, lower_mask)
        x = self.reduce_chan_level1(ops.cat((self.up2_1(latent), skip), axis=1))
        for block in self.decoder_level1:
            x = block(x, mask)
        if self.is_lower_detached:
            latent = ops.stop_gradient(latent)
        return self.output(x) + images, self.output_level2(latent) + self.pool(images)


class CharbonnierLoss(nn.Cell):
    """The mean of sqrt(error^2 + eps^2) over an image's own pixels; of images by their weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_eps_squared = model.is_eps_squared

    def construct(self, x, y, mask, weights):
        offset = CHARBONNIER_EPS**2 if self.is_eps_squared else CHARBONNIER_EPS
        loss = ops.sqrt(ops.square(x - y) + offset) * mask
        loss = loss.sum((1, 2, 3)) / (COLORS * mask.sum((1, 2, 3)))
        return (loss * weights).sum() / weights.sum()


class EdgeLoss(nn.Cell):
    """Charbonnier loss of Laplacians."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.kernel = Tensor(np.tile(LAPLACIAN, (COLORS, 1, 1, 1)), ms.float32)
        self.charbonnier = CharbonnierLoss(model)
        self.is_of_error = model.variant == "written"

    def laplacian(self, x):
        """Return the Laplacian of each color."""
        if self.is_of_error:
            x = ops.pad(x, (1, 1, 1, 1))
            vertical = x[:, :, :-2, 1:-1] + x[:, :, 2:, 1:-1]
            horizontal = x[:, :, 1:-1, :-2] + x[:, :, 1:-1, 2:]
            return vertical + horizontal - 4 * x[:, :, 1:-1, 1:-1]
        return ops.conv2d(x, self.kernel, pad_mode="pad", padding=1, groups=COLORS)

    def construct(self, x, y, mask, weights):
        if self.is_of_error:
            error = self.laplacian((x - y) * mask)
            return self.charbonnier(error, ops.zeros_like(error), mask, weights)
        return self.charbonnier(self.laplacian(x * mask), self.laplacian(y * mask), mask, weights)


class NetWithLoss(nn.Cell):
    """The weighted sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = Restormer(model)
        self.pixel_loss = CharbonnierLoss(model)
        self.edge_loss = EdgeLoss(model)
        self.lower_loss = CharbonnierLoss(model)
        self.pool = build_pool(model)
        self.lower_weight = model.lower_weight

    def construct(self, images, targets, mask, weights):
        lower_mask = mask[:, :, ::FACTOR, ::FACTOR]
        restored, lower = self.network(images, mask, lower_mask)
        loss = self.pixel_loss(restored, targets, mask, weights)
        loss += EDGE_WEIGHT * self.edge_loss(restored, targets, mask, weights)
        lower_loss = self.lower_loss(lower, self.pool(targets), lower_mask, weights)
        return loss + self.lower_weight * lower_loss
