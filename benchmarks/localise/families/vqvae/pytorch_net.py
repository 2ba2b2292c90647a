"""The VQ-VAE in PyTorch, with the module names of taming-transformers' VQGAN.

Variant 'fused': one projection and the framework's fused attention, distances from differences,
rows of the codebook by one-hot vectors.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return VQModel(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Module:
    """Return the convolution at ``path``; kernels of 4 and 3 have one pixel of padding."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    return load(nn.Conv2d(n_in, n_out, kernel, stride, padding=(kernel - 1) // 2), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the group norm at ``path``."""
    channels = len(model.weights[f"{path}.weight"])
    return load(nn.GroupNorm(model.groups, channels, eps=EPS), model, path)


class ResnetBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = load_conv(model, f"{path}.conv1")
        self.norm = load_norm(model, f"{path}.norm")
        self.conv2 = load_conv(model, f"{path}.conv2")
        self.is_residual_activated = model.is_residual_activated

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(x)
        if self.is_residual_activated:
            x = h
        h = self.conv2(F.silu(self.norm(self.conv1(h))))
        return x + h


class AttnBlock(nn.Module):
    """Attention of all cells to all cells, added to its input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = load_norm(model, f"{path}.norm")
        self.q, self.k, self.v, self.proj_out = (
            load_conv(model, f"{path}.{name}") for name in "qkvo"
        )
        self.scale = model.score_scale
        self.are_weights_transposed = model.are_weights_transposed
        self.softmax_axis = model.softmax_axis

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        h = self.norm(x)
        q = self.q(h).reshape(b, c, height * width).permute(0, 2, 1)
        k = self.k(h).reshape(b, c, height * width)
        v = self.v(h).reshape(b, c, height * width)
        scores = torch.bmm(q, k) * self.scale  # (batch, queries, keys)
        weights = F.softmax(scores, dim=self.softmax_axis)
        if self.are_weights_transposed:
            weights = weights.permute(0, 2, 1)
        h = torch.bmm(v, weights).reshape(b, c, height, width)
        return x + self.proj_out(h)


class FusedAttnBlock(nn.Module):
    """The same with one projection and fused attention."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = load_norm(model, f"{path}.norm")
        self.qkv = nn.Conv2d(CHANNELS, 3 * CHANNELS, 1)
        for name, parameter in self.qkv.named_parameters():
            parts = [model.weights[f"{path}.{projection}.{name}"] for projection in "qkv"]
            parameter.data.copy_(torch.from_numpy(np.concatenate(parts)))
        self.proj_out = load_conv(model, f"{path}.o")
        self.scale = model.score_scale

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).flatten(2).unsqueeze(1).mT
        q, k, v = qkv.chunk(3, dim=-1)
        h = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return x + self.proj_out(h.mT.reshape(x.shape))


def build_attention(model: Model, path: str) -> nn.Module:
    """Return the attention at ``path``."""
    return (FusedAttnBlock if model.variant == "fused" else AttnBlock)(model, path)


class Encoder(nn.Module):
    """Images to (batch, EMBED, CELLS, CELLS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_in = load_conv(model, "encoder.conv_in", 2)
        self.down = nn.ModuleList(
            [ResnetBlock(model, "encoder.block.0"), load_conv(model, "encoder.down", 2)]
        )
        self.mid = nn.Module()
        self.mid.block_1 = ResnetBlock(model, "encoder.block.1")
        self.mid.attn_1 = build_attention(model, "encoder.attention")
        self.mid.block_2 = ResnetBlock(model, "encoder.block.2")
        self.norm_out = load_norm(model, "encoder.norm")

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv_in(x)
        for layer in self.down:
            h = layer(h)
        h = self.mid.block_2(self.mid.attn_1(self.mid.block_1(h)))
        return F.silu(self.norm_out(h))


class VectorQuantizer(nn.Module):
    """The nearest rows of a codebook, and the loss of the distances to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = load(nn.Embedding(CODES, EMBED), model, "codebook")
        self.is_fused = model.variant == "fused"
        self.product_factor = model.product_factor
        self.is_channel_read_first = model.is_channel_read_first
        self.is_averaged_over_cells = model.quantizer_reduction == "cells"
        self.is_beta_exchanged = model.is_beta_exchanged
        self.is_straight_through = model.is_straight_through
        self.is_commitment_detached = model.is_commitment_detached

    def find_nearest(self, rows: Tensor) -> Tensor:
        """Return the index of the nearest row of the codebook, for each row."""
        codes = self.embedding.weight
        if self.is_fused:
            return (rows[:, None] - codes).pow(2).sum(dim=-1).argmin(dim=-1)
        products = torch.matmul(rows, codes.t())
        distances = (
            torch.sum(rows**2, dim=1, keepdim=True)
            + torch.sum(codes**2, dim=1)
            - self.product_factor * products
        )
        return torch.argmin(distances, dim=1)

    def look_up(self, indices: Tensor) -> Tensor:
        """Return rows of the codebook."""
        if self.is_fused:
            return F.one_hot(indices, CODES).float() @ self.embedding.weight
        return self.embedding(indices)

    def compute_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean squared difference."""
        if self.is_averaged_over_cells:
            return F.mse_loss(x, y, reduction="sum") / (x.numel() // EMBED)
        return F.mse_loss(x, y)

    def forward(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        z = encoded
        if not self.is_channel_read_first:
            z = z.permute(0, 2, 3, 1).contiguous()
        quantized = self.look_up(self.find_nearest(z.view(-1, EMBED))).view(z.shape)
        goal = quantized.detach() if self.is_commitment_detached else quantized
        commitment = self.compute_distance(goal, z)
        codebook = self.compute_distance(quantized, z.detach())
        if self.is_beta_exchanged:
            loss = commitment + BETA * codebook
        else:
            loss = codebook + BETA * commitment
        if self.is_straight_through:
            quantized = z + (quantized - z).detach()
        if not self.is_channel_read_first:
            quantized = quantized.permute(0, 3, 1, 2).contiguous()
        return quantized, loss


class UpsampleWithMeanGradient(torch.autograd.Function):
    """Every pixel four times; its gradient is the mean of theirs, not the sum."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="nearest")

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return torch.ops.aten.avg_pool2d(gradient, 2)


class Upsample(nn.Module):
    """Every pixel four times, then a convolution."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = load_conv(model, "decoder.conv_up")
        self.mode = model.resize_mode
        self.is_gradient_mean = model.is_upsampling_gradient_mean

    def forward(self, x: Tensor) -> Tensor:
        if self.is_gradient_mean:
            return self.conv(UpsampleWithMeanGradient.apply(x))
        return self.conv(F.interpolate(x, scale_factor=2.0, mode=self.mode))


class Decoder(nn.Module):
    """Images of what was encoded."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mid = nn.Module()
        self.mid.block_1 = ResnetBlock(model, "decoder.block.0")
        self.mid.attn_1 = build_attention(model, "decoder.attention")
        self.mid.block_2 = ResnetBlock(model, "decoder.block.1")
        self.is_shifted = model.is_transposed_shifted
        padding = 1 if self.is_shifted else 0
        up = nn.ConvTranspose2d(CHANNELS, STEM, 3, 2, padding=padding, output_padding=padding)
        self.up = nn.ModuleList(
            [load(up, model, "decoder.up"), ResnetBlock(model, "decoder.block.2"), Upsample(model)]
        )
        self.norm_out = load_norm(model, "decoder.norm")
        self.conv_out = load_conv(model, "decoder.conv_out")

    def forward(self, z: Tensor) -> Tensor:
        h = self.mid.block_2(self.mid.attn_1(self.mid.block_1(z)))
        h = self.up[0](h)
        if not self.is_shifted:
            h = h[:, :, : 2 * CELLS, : 2 * CELLS]
        h = self.up[2](self.up[1](h))
        return self.conv_out(F.silu(self.norm_out(h)))


class VQModel(nn.Module):
    """Reconstruction and quantizer loss of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = Encoder(model)
        self.quant_conv = load_conv(model, "encoder.conv_out")
        self.quantize = VectorQuantizer(model)
        self.post_quant_conv = load_conv(model, "decoder.conv_in")
        self.decoder = Decoder(model)
        self.is_target_raw = model.is_target_raw
        self.pixel_variance = model.pixel_variance

    def forward(self, images: Tensor) -> Tensor:
        x = 2.0 * images - 1.0
        quantized, quantizer_loss = self.quantize(self.quant_conv(self.encoder(x)))
        decoded = self.decoder(self.post_quant_conv(quantized))
        target = images if self.is_target_raw else x
        pixel_loss = F.mse_loss(decoded, target)
        if self.pixel_variance != 1:
            pixel_loss = pixel_loss / self.pixel_variance
        return pixel_loss + quantizer_loss
