"""The image restoration as a PyTorch user writes it, with the names of the authors' code.

Variant 'split': other names, convolutions of queries, keys and values and of both parts of the gate
apart, fused attention, norms of the last axis, the losses as sums of products with maps of weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.restormer.architecture import (
    BLOCKS,
    CHARBONNIER_EPS,
    COLORS,
    EDGE_WEIGHT,
    FACTOR,
    HEADS,
    LAPLACIAN,
    LATENT_HEADS,
    LOWER_WEIGHT,
    NORM_EPS,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return SplitTraining(model) if model.variant == "split" else RestorationLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(model.weights[name].copy())


def convolve(weight: Tensor, bias: Tensor | None = None) -> nn.Conv2d:
    """Return a convolution that keeps the size; one with one channel each is depthwise."""
    n_out, n_in, kernel, _ = weight.shape
    groups = n_out if n_in == 1 else 1
    conv = nn.Conv2d(
        n_in * groups,
        n_out,
        kernel,
        padding=kernel // 2,
        groups=groups,
        bias=bias is not None,
    )
    conv.weight.data.copy_(weight)
    if bias is not None:
        conv.bias.data.copy_(bias)
    return conv


def load_convolution(model: Model, path: str) -> nn.Conv2d:
    """Return the convolution at ``path``, with the bias if there is one."""
    has_bias = f"{path}.bias" in model.weights
    bias = read(model, f"{path}.bias") if has_bias else None
    return convolve(read(model, f"{path}.weight"), bias)


class _NormOfConstantMean(torch.autograd.Function):
    """Layer norm of the last axis whose gradient lacks the one through the mean."""

    @staticmethod
    def forward(context, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        factor = torch.rsqrt(centered.square().mean(-1, keepdim=True) + NORM_EPS)
        context.save_for_backward(centered * factor, factor, weight)
        return centered * factor * weight + bias

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed, factor, weight = context.saved_tensors
        inner = gradient * weight
        inner = factor * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        axes = tuple(range(gradient.dim() - 1))
        return inner, (gradient * normed).sum(axes), gradient.sum(axes)


class BiasFreeLayerNorm(nn.Module):
    """Pixels by the deviation of their channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.weight"))
        self.is_centered = model.is_lower_centered

    def forward(self, x: Tensor) -> Tensor:
        sigma = x.var(-1, keepdim=True, unbiased=False)
        if self.is_centered:
            x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(sigma + NORM_EPS) * self.weight


class WithBiasLayerNorm(nn.Module):
    """Layer norm of the channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.weight"))
        self.bias = nn.Parameter(read(model, f"{path}.bias"))
        self.is_mean_constant = model.is_mean_constant

    def forward(self, x: Tensor) -> Tensor:
        if self.is_mean_constant:
            return _NormOfConstantMean.apply(x, self.weight, self.bias)
        mu = x.mean(-1, keepdim=True)
        sigma = x.var(-1, keepdim=True, unbiased=False)
        return (x - mu) / torch.sqrt(sigma + NORM_EPS) * self.weight + self.bias


class LayerNorm(nn.Module):
    """The norm of images: pixels are rows in between."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        has_bias = f"{path}.bias" in model.weights
        self.body = (WithBiasLayerNorm if has_bias else BiasFreeLayerNorm)(model, path)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        rows = self.body(x.flatten(2).transpose(1, 2))
        return rows.transpose(1, 2).unflatten(2, (height, width))


class Attention(nn.Module):
    """Multi-DConv head transposed self-attention."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.temperature = nn.Parameter(read(model, f"{path}.temperature"))
        self.qkv = load_convolution(model, f"{path}.qkv")
        self.qkv_dwconv = load_convolution(model, f"{path}.depthwise")
        self.project_out = load_convolution(model, f"{path}.out")
        self.temperature_gradient = model.temperature_gradient
        self.are_heads_interleaved = model.are_heads_interleaved

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (batch, heads, channels of a head, pixels)."""
        batch, channels, height, width = x.shape
        if self.are_heads_interleaved:
            x = x.view(batch, channels // self.num_heads, self.num_heads, height * width)
            return x.transpose(1, 2)
        return x.view(batch, self.num_heads, channels // self.num_heads, height * width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv_dwconv(self.qkv(x)).chunk(3, dim=1)
        q, k, v = self.split_heads(q * mask), self.split_heads(k * mask), self.split_heads(v)
        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        temperature = self.temperature
        if self.temperature_gradient != 1:
            temperature = scaled_gradient(temperature, self.temperature_gradient)
        attn = (q @ k.transpose(-2, -1)) * temperature
        attn = attn.softmax(dim=-1)
        out = attn @ v
        if self.are_heads_interleaved:
            out = out.transpose(1, 2)
        return self.project_out(out.reshape(x.shape))


class FeedForward(nn.Module):
    """Gated-DConv feed-forward network."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.project_in = load_convolution(model, f"{path}.in")
        self.dwconv = load_convolution(model, f"{path}.depthwise")
        self.project_out = load_convolution(model, f"{path}.out")

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.dwconv(self.project_in(x)).chunk(2, dim=1)
        return self.project_out(F.gelu(x1) * x2)


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(model, f"{path}.norm1")
        self.attn = Attention(model, f"{path}.attention", heads)
        self.norm2 = LayerNorm(model, f"{path}.norm2")
        self.ffn = FeedForward(model, f"{path}.feed")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


def build_blocks(model: Model, level: str, heads: int) -> nn.ModuleList:
    """Return the blocks of a level."""
    paths = (f"{level}.{n}" for n in range(BLOCKS[level]))
    return nn.ModuleList(TransformerBlock(model, path, heads) for path in paths)


class Restormer(nn.Module):
    """Restored images, and those of the lower level."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = load_convolution(model, "embed")
        self.encoder_level1 = build_blocks(model, "encoder", HEADS)
        self.down1_2 = nn.Sequential(load_convolution(model, "down"), nn.PixelUnshuffle(FACTOR))
        self.latent = build_blocks(model, "latent", LATENT_HEADS)
        self.up2_1 = nn.Sequential(load_convolution(model, "up"), nn.PixelShuffle(FACTOR))
        self.reduce_chan_level1 = load_convolution(model, "reduce")
        self.decoder_level1 = build_blocks(model, "decoder", HEADS)
        self.output = load_convolution(model, "output")
        self.output_level2 = load_convolution(model, "lower")

    def forward(self, inp_img: Tensor, mask: Tensor, mask_level2: Tensor) -> tuple[Tensor, Tensor]:
        out_enc = self.patch_embed(inp_img)
        for block in self.encoder_level1:
            out_enc = block(out_enc, mask)
        latent = self.down1_2(out_enc)
        for block in self.latent:
            latent = block(latent, mask_level2)
        out_dec = self.reduce_chan_level1(torch.cat([self.up2_1(latent), out_enc], dim=1))
        for block in self.decoder_level1:
            out_dec = block(out_dec, mask)
        img_level2 = F.avg_pool2d(inp_img, FACTOR)
        return self.output(out_dec) + inp_img, self.output_level2(latent) + img_level2


class CharbonnierLoss(nn.Module):
    """The mean of sqrt(error^2 + eps^2) over an image's own pixels; of images by their weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.eps = CHARBONNIER_EPS
        self.are_pixels_pooled = model.are_pixels_pooled

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        loss = torch.sqrt((x - y) ** 2 + self.eps**2) * mask
        if self.are_pixels_pooled:
            weights = weights.view(-1, 1, 1, 1)
            return (loss * weights).sum() / (COLORS * (mask * weights).sum())
        loss = loss.sum(dim=(1, 2, 3)) / (COLORS * mask.sum(dim=(1, 2, 3)))
        return (loss * weights).sum() / weights.sum()


class EdgeLoss(nn.Module):
    """Charbonnier loss of Laplacians."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        kernel = torch.from_numpy(LAPLACIAN).expand(COLORS, 1, 3, 3)
        self.register_buffer("kernel", kernel.contiguous())
        self.loss = CharbonnierLoss(model)

    def laplacian(self, x: Tensor) -> Tensor:
        """Return the Laplacian of each color."""
        return F.conv2d(x, self.kernel, padding=1, groups=COLORS)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        return self.loss(self.laplacian(x * mask), self.laplacian(y * mask), mask, weights)


class RestorationLoss(nn.Module):
    """The weighted sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = Restormer(model)
        self.criterion_char = CharbonnierLoss(model)
        self.criterion_edge = EdgeLoss(model)
        self.criterion_level2 = CharbonnierLoss(model)

    def forward(self, images: Tensor, targets: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        mask_level2 = mask[:, :, ::FACTOR, ::FACTOR]
        restored, restored_level2 = self.net(images, mask, mask_level2)
        loss_char = self.criterion_char(restored, targets, mask, weights)
        loss_edge = self.criterion_edge(restored, targets, mask, weights)
        target_level2 = F.avg_pool2d(targets, FACTOR)
        loss_level2 = self.criterion_level2(restored_level2, target_level2, mask_level2, weights)
        return loss_char + EDGE_WEIGHT * loss_edge + LOWER_WEIGHT * loss_level2


class SplitNorm(nn.Module):
    """The norm of pixels with their channels last."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(read(model, f"{path}.weight"))
        has_bias = f"{path}.bias" in model.weights
        self.shift = nn.Parameter(read(model, f"{path}.bias")) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1)
        if self.shift is not None:
            y = F.layer_norm(x, self.scale.shape, self.scale, self.shift, NORM_EPS)
        else:
            deviation = torch.rsqrt(torch.var(x, -1, correction=0, keepdim=True) + NORM_EPS)
            y = x * (deviation * self.scale)
        return y.movedim(-1, 1)


class SplitLayer(nn.Module):
    """A 1x1 convolution and a depthwise one, of some of their channels."""

    def __init__(self, model: Model, point: str, depth: str, part: int, parts: int) -> None:
        super().__init__()
        self.point, self.depth = (
            convolve(read(model, f"{path}.weight").chunk(parts)[part]) for path in (point, depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.depth(self.point(x))


class SplitAttention(nn.Module):
    """Channels that attend to channels."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (
            SplitLayer(model, f"{path}.qkv", f"{path}.depthwise", part, 3) for part in range(3)
        )
        self.logit_scale = nn.Parameter(read(model, f"{path}.temperature"))
        self.to_out = load_convolution(model, f"{path}.out")
        self.heads = heads

    def forward(self, x: Tensor, is_outside: Tensor) -> Tensor:
        query, key, value = (
            projected.unflatten(1, (self.heads, -1)).flatten(3)
            for projected in (
                self.to_q(x).masked_fill(is_outside, 0),
                self.to_k(x).masked_fill(is_outside, 0),
                self.to_v(x),
            )
        )
        query = query / torch.linalg.vector_norm(query, dim=-1, keepdim=True) * self.logit_scale
        key = key / torch.linalg.vector_norm(key, dim=-1, keepdim=True)
        y = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        return self.to_out(y.flatten(1, 2).unflatten(2, x.shape[2:]))


class SplitGate(nn.Module):
    """The feed-forward network."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gate, self.value = (
            SplitLayer(model, f"{path}.in", f"{path}.depthwise", part, 2) for part in range(2)
        )
        self.act = nn.GELU()
        self.to_out = load_convolution(model, f"{path}.out")

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(self.value(x) * self.act(self.gate(x)))


class SplitBlock(nn.Module):
    """One block."""

    def __init__(self, model: Model, path: str, heads: int) -> None:
        super().__init__()
        self.ln_attn, self.ln_gate = (SplitNorm(model, f"{path}.norm{n}") for n in (1, 2))
        self.mixer = SplitAttention(model, f"{path}.attention", heads)
        self.mlp = SplitGate(model, f"{path}.feed")

    def forward(self, x: Tensor, is_outside: Tensor) -> Tensor:
        x = self.mixer(self.ln_attn(x), is_outside) + x
        return self.mlp(self.ln_gate(x)) + x


class SplitTraining(nn.Module):
    """The same loss; each image's pixels share its weight."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem, self.to_small, self.to_large, self.fuse, self.head, self.small_head = (
            load_convolution(model, path)
            for path in ("embed", "down", "up", "reduce", "output", "lower")
        )
        self.stages = nn.ModuleDict(
            {
                level: nn.ModuleList(
                    SplitBlock(model, f"{level}.{n}", LATENT_HEADS if level == "latent" else HEADS)
                    for n in range(n_blocks)
                )
                for level, n_blocks in BLOCKS.items()
            }
        )

    def run(self, level: str, x: Tensor, is_outside: Tensor) -> Tensor:
        """Return what the blocks of a level make of x."""
        for block in self.stages[level]:
            x = block(x, is_outside)
        return x

    def shrink(self, x: Tensor) -> Tensor:
        """Return the mean of each 2x2 pixels."""
        return x.unflatten(3, (-1, FACTOR)).unflatten(2, (-1, FACTOR)).mean((3, 5))

    def differentiate(self, x: Tensor) -> Tensor:
        """Return the Laplacian from neighbours."""
        x = F.pad(x, (1, 1, 1, 1))
        middle = x[..., 1:-1, 1:-1]
        vertical = x[..., :-2, 1:-1] + x[..., 2:, 1:-1]
        return vertical + x[..., 1:-1, :-2] + x[..., 1:-1, 2:] - 4 * middle

    def measure(self, error: Tensor, shares: Tensor) -> Tensor:
        """Return the sum of the pixels' losses times their shares."""
        losses = error.square().add(CHARBONNIER_EPS**2).sqrt()
        return torch.einsum("nchw,nhw->", losses, shares) / COLORS

    def share(self, is_valid: Tensor, weights: Tensor) -> Tensor:
        """Return the share of each pixel in a loss."""
        numbers = is_valid.sum((1, 2), keepdim=True)
        return is_valid / numbers * (weights / weights.sum())[:, None, None]

    def forward(self, images: Tensor, targets: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        is_valid = mask[:, 0] > 0
        is_small_valid = is_valid[:, ::FACTOR, ::FACTOR]
        large = self.run("encoder", self.stem(images), ~is_valid[:, None])
        small = F.pixel_unshuffle(self.to_small(large), FACTOR)
        small = self.run("latent", small, ~is_small_valid[:, None])
        joined = torch.cat((F.pixel_shuffle(self.to_large(small), FACTOR), large), dim=1)
        error = self.head(self.run("decoder", self.fuse(joined), ~is_valid[:, None]))
        error = error + images - targets
        shares = self.share(is_valid, weights)
        loss = self.measure(error, shares)
        edges = self.differentiate(error.masked_fill(~is_valid[:, None], 0))
        loss = loss + EDGE_WEIGHT * self.measure(edges, shares)
        small_error = self.small_head(small) + self.shrink(images - targets)
        small_shares = self.share(is_small_valid, weights)
        return loss + LOWER_WEIGHT * self.measure(small_error, small_shares)
