"""Separation of speakers in PyTorch, with the modules of Asteroid's Conv-TasNet.

Variant 'fused': other names, the global norm as a group norm, one layer for q, k and v, fused
attention, the skip sum as one convolution of joined channels, the decoder by folding. Variant
'written': attention and assignment by einsum, 1x1 convolutions as products, segments put together
from their halves, the ratio from energies.
"""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.separation.architecture import (
    BLOCKS,
    BOTTLENECK,
    CHUNK,
    FILTERS,
    FRAMES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    HOP,
    KERNEL,
    LAYER_EPS,
    LOSS_EPS,
    MIXTURE_WEIGHT,
    NORM_EPS,
    PADDED,
    REST,
    SAMPLES,
    SEGMENTS,
    SKIP,
    SPEAKERS,
    STRIDE,
    TAPS,
    Model,
    get_positions,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else SeparationLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return module


class PointwiseProduct(nn.Conv1d):
    """A 1x1 convolution as a product."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("oi,bit->bot", self.weight[:, :, 0], x) + self.bias[:, None]


def build_pointwise(model: Model, path: str) -> nn.Module:
    """Return a 1x1 convolution."""
    n_out, n_in, _ = model.weights[f"{path}.weight"].shape
    kind = PointwiseProduct if model.variant == "written" else nn.Conv1d
    return load(kind(n_in, n_out, 1), model, path)


class _LayerNorm(nn.Module):
    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = nn.Parameter(read(model, f"{path}.weight"))
        self.beta = nn.Parameter(read(model, f"{path}.bias"))

    def apply_gain_and_bias(self, normed_x: Tensor) -> Tensor:
        return (self.gamma * normed_x.transpose(1, -1) + self.beta).transpose(1, -1)


class GlobLN(_LayerNorm):
    """Global layer norm of (batch, channels, frames)."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(1, 2), keepdim=True)
        var = torch.pow(x - mean, 2).mean(dim=(1, 2), keepdim=True)
        return self.apply_gain_and_bias((x - mean) / (var + NORM_EPS).sqrt())


class _ForwardGradientSum(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return torch.cumsum(x, dim=-1)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return torch.cumsum(gradient, dim=-1)


class CumLN(_LayerNorm):
    """Cumulative layer norm of (batch, channels, frames)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model, path)
        self.is_sum_gradient_forward = model.is_sum_gradient_forward

    def accumulate(self, x: Tensor) -> Tensor:
        """Return the sums of each frame and the ones before."""
        if self.is_sum_gradient_forward:
            return _ForwardGradientSum.apply(x)
        return torch.cumsum(x, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        channels, frames = x.shape[1:]
        cum_sum = self.accumulate(x.sum(1, keepdim=True))
        cum_pow_sum = self.accumulate(x.pow(2).sum(1, keepdim=True))
        cnt = torch.arange(channels, channels * (frames + 1), channels, dtype=x.dtype)
        cum_mean = cum_sum / cnt
        cum_var = cum_pow_sum / cnt - cum_mean.pow(2)
        return self.apply_gain_and_bias((x - cum_mean) / (cum_var + NORM_EPS).sqrt())


class Chomp1d(nn.Module):
    """Cut what the padding of a causal convolution adds at the end."""

    def __init__(self, chomp_size: int) -> None:
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : -self.chomp_size].contiguous()


class Conv1DBlock(nn.Module):
    """A depthwise-separable block; returns the residual, if there is one, and the skip output."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, dilation = f"blocks.{n}", 2**n
        is_causal = not (model.is_padded_around and n == BLOCKS - 1)
        padding = dilation * (TAPS - 1) if is_causal else dilation * (TAPS - 1) // 2
        depth = nn.Conv1d(HIDDEN, HIDDEN, TAPS, padding=padding, dilation=dilation, groups=HIDDEN)
        layers = [
            build_pointwise(model, f"{path}.in"),
            load(nn.PReLU(), model, f"{path}.prelu1"),
            CumLN(model, f"{path}.norm1"),
            load(depth, model, f"{path}.depth"),
        ]
        if is_causal:
            layers.append(Chomp1d(padding))
        layers.append(load(nn.PReLU(), model, f"{path}.prelu2"))
        layers.append(CumLN(model, f"{path}.norm2"))
        self.shared_block = nn.Sequential(*layers)
        self.has_residual = n < BLOCKS - 1
        if self.has_residual:
            self.res_conv = build_pointwise(model, f"{path}.residual")
        self.skip_conv = build_pointwise(model, f"{path}.skip")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.shared_block(x)
        skip = self.skip_conv(shared)
        return (x + self.res_conv(shared) if self.has_residual else x), skip


class SelfAttention(nn.Module):
    """Attention of (rows, CHUNK, SKIP), added to its input with positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load(nn.LayerNorm(SKIP, eps=LAYER_EPS), model, "attention.norm")
        for name in ("q", "k", "v", "o"):
            self.add_module(f"{name}_proj", load(nn.Linear(SKIP, SKIP), model, f"attention.{name}"))
        self.register_buffer("pe", torch.from_numpy(get_positions(CHUNK)), persistent=False)
        self.has_einsum = model.variant == "written"

    def attend(self, y: Tensor) -> Tensor:
        """Return what the heads collect, joined."""
        shape = (*y.shape[:2], HEADS, HEAD_DIM)
        q, k, v = (layer(y).view(shape) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.has_einsum:
            scores = torch.einsum("bqhd,bkhd->bhqk", q * HEAD_DIM**-0.5, k)
            return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / HEAD_DIM**0.5
        context = F.softmax(scores, dim=-1) @ v.transpose(1, 2)
        return context.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe
        return x + self.o_proj(self.attend(self.norm(x)))


class DualPath(nn.Module):
    """Segments of (batch, SKIP, FRAMES), attention inside of them, overlap-add."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.intra = SelfAttention(model)
        self.factor = model.overlap_factor
        self.has_halves = model.variant == "written"

    def overlap_add(self, segments: Tensor) -> Tensor:
        """Return the sum of segments (batch, SEGMENTS, CHUNK, SKIP), (batch, SKIP, PADDED)."""
        batch = len(segments)
        if self.has_halves:
            first, second = segments.permute(0, 3, 1, 2).split(HOP, dim=3)
            first = F.pad(first.flatten(2), (0, HOP))
            return first + F.pad(second.flatten(2), (HOP, 0))
        columns = segments.permute(0, 3, 2, 1).reshape(batch, SKIP * CHUNK, SEGMENTS)
        return F.fold(columns, (PADDED, 1), (CHUNK, 1), stride=(HOP, 1)).squeeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        segments = F.pad(x, (HOP, HOP + REST)).unfold(2, CHUNK, HOP)
        rows = segments.permute(0, 2, 3, 1).reshape(batch * SEGMENTS, CHUNK, SKIP)
        y = self.overlap_add(self.intra(rows).view(batch, SEGMENTS, CHUNK, SKIP))
        if self.factor != 1:
            y = y * self.factor
        return y[..., HOP : HOP + FRAMES]


class MaskNet(nn.Module):
    """Masks (batch, SPEAKERS, FILTERS, FRAMES) of features (batch, FILTERS, FRAMES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = GlobLN(model, "norm")
        self.bottleneck = build_pointwise(model, "bottleneck")
        self.TCN = nn.ModuleList(Conv1DBlock(model, n) for n in range(BLOCKS))
        self.prelu = load(nn.PReLU(), model, "prelu")
        self.dual_path = DualPath(model)
        self.mask_conv = build_pointwise(model, "mask")
        self.mask_act = nn.Softmax(dim=1) if model.mask_activation == "softmax" else nn.Sigmoid()

    def forward(self, features: Tensor) -> Tensor:
        output = self.bottleneck(self.norm(features))
        skips = []
        for block in self.TCN:
            output, skip = block(output)
            skips.append(skip)
        score = self.mask_conv(self.dual_path(self.prelu(sum(skips))))
        return self.mask_act(score.view(-1, SPEAKERS, FILTERS, FRAMES))


class ConvTasNet(nn.Module):
    """Estimates (batch, SPEAKERS, SAMPLES) of mixtures (batch, SAMPLES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        encoder = nn.Conv1d(1, FILTERS, KERNEL, STRIDE, bias=False)
        self.encoder = load(encoder, model, "encoder")
        self.masker = MaskNet(model)
        decoder = nn.ConvTranspose1d(FILTERS, 1, KERNEL, STRIDE, bias=False)
        self.decoder = load(decoder, model, "decoder")

    def forward(self, mixture: Tensor) -> Tensor:
        tf_rep = F.relu(self.encoder(mixture.unsqueeze(1)))
        masked = self.masker(tf_rep) * tf_rep.unsqueeze(1)
        return self.decoder(masked.flatten(0, 1)).view(-1, SPEAKERS, SAMPLES)


class PITLoss(nn.Module):
    """Negative scale-invariant ratio in decibels with the best assignment of each example."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_stopped = model.is_projection_stopped
        self.is_batch_permuted = model.is_batch_permuted
        self.has_energies = model.variant == "written"

    def compare(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return losses of all pairs, (batch, estimate, source)."""
        if self.has_energies:
            products = torch.einsum("bit,bjt->bij", estimates, targets).square()
            energy = targets.square().sum(-1)[:, None] + LOSS_EPS
            signal = products / energy
            noise = estimates.square().sum(-1)[:, :, None] - signal
            return -10 * torch.log10(signal / noise)
        s_target, s_estimate = targets.unsqueeze(1), estimates.unsqueeze(2)
        dot = torch.sum(s_estimate * s_target, dim=3, keepdim=True)
        if self.is_stopped:
            dot = dot.detach()
        proj = dot * s_target / (torch.sum(s_target**2, dim=3, keepdim=True) + LOSS_EPS)
        e_noise = s_estimate - proj
        ratio = torch.sum(proj**2, dim=3) / (torch.sum(e_noise**2, dim=3) + LOSS_EPS)
        return -10 * torch.log10(ratio + LOSS_EPS)

    def forward(self, estimates: Tensor, targets: Tensor) -> Tensor:
        estimates = estimates - estimates.mean(dim=2, keepdim=True)
        pair_wise = self.compare(estimates, targets - targets.mean(dim=2, keepdim=True))
        perms = torch.tensor(list(permutations(range(SPEAKERS))))
        one_hot = F.one_hot(perms, SPEAKERS).to(pair_wise.dtype)
        loss_set = torch.einsum("bij,pij->bp", pair_wise, one_hot) / SPEAKERS
        if self.is_batch_permuted:
            return loss_set.mean(dim=0).min()
        return loss_set.min(dim=1).values.mean()


class SeparationLoss(nn.Module):
    """The net and its losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.pit = ConvTasNet(model), PITLoss(model)

    def forward(self, mixture: Tensor, sources: Tensor) -> Tensor:
        estimates = self.model(mixture)
        lack = (mixture - estimates.sum(dim=1)).pow(2).sum(-1) / mixture.pow(2).sum(-1)
        return self.pit(estimates, sources) + MIXTURE_WEIGHT * lack.mean()


class FusedCumulativeNorm(nn.Module):
    """A cumulative norm from means over channels, then over frames."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.weight")[:, None])
        self.bias = nn.Parameter(read(model, f"{path}.bias")[:, None])
        self.register_buffer("steps", torch.arange(1.0, FRAMES + 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        moments = torch.stack((x.mean(1), x.square().mean(1)), dim=1)
        mean, power = (moments.cumsum(-1) / self.steps).split(1, dim=1)
        return torch.addcmul(
            self.bias, (x - mean) * torch.rsqrt(power - mean.square() + NORM_EPS), self.weight
        )


class FusedBlock(nn.Module):
    """A depthwise-separable block without its skip convolution; returns its inner channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, self.dilation = f"blocks.{n}", 2**n
        self.expand = load(nn.Conv1d(BOTTLENECK, HIDDEN, 1), model, f"{path}.in")
        self.act1 = load(nn.PReLU(), model, f"{path}.prelu1")
        self.ln1 = FusedCumulativeNorm(model, f"{path}.norm1")
        depth = nn.Conv1d(HIDDEN, HIDDEN, TAPS, dilation=self.dilation, groups=HIDDEN)
        self.depthwise = load(depth, model, f"{path}.depth")
        self.act2 = load(nn.PReLU(), model, f"{path}.prelu2")
        self.ln2 = FusedCumulativeNorm(model, f"{path}.norm2")

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln1(self.act1(self.expand(x)))
        y = self.depthwise(F.pad(y, ((TAPS - 1) * self.dilation, 0)))
        return self.ln2(self.act2(y))


class FusedAttention(nn.Module):
    """Fused attention inside of segments, with one layer for q, k and v."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ln = load(nn.LayerNorm(SKIP, eps=LAYER_EPS), model, "attention.norm")
        self.in_proj = nn.Linear(SKIP, 3 * SKIP)
        for name, parameter in self.in_proj.named_parameters():
            parts = [read(model, f"attention.{part}.{name}") for part in ("q", "k", "v")]
            parameter.data.copy_(torch.cat(parts))
        self.out_proj = load(nn.Linear(SKIP, SKIP), model, "attention.o")
        self.register_buffer("places", torch.from_numpy(get_positions(CHUNK)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places
        qkv = self.in_proj(self.ln(x)).view(*x.shape[:2], 3, HEADS, HEAD_DIM)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out_proj(y.transpose(1, 2).reshape(x.shape))


class FusedSeparator(nn.Module):
    """Estimates of mixtures."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        analysis = nn.Conv1d(1, FILTERS, KERNEL, STRIDE, bias=False)
        self.analysis = load(analysis, model, "encoder")
        self.gn = load(nn.GroupNorm(1, FILTERS, eps=NORM_EPS), model, "norm")
        self.reduce = load(nn.Conv1d(FILTERS, BOTTLENECK, 1), model, "bottleneck")
        self.blocks = nn.ModuleList(FusedBlock(model, n) for n in range(BLOCKS))
        self.residuals = nn.ModuleList(
            load(nn.Conv1d(HIDDEN, BOTTLENECK, 1), model, f"blocks.{n}.residual")
            for n in range(BLOCKS - 1)
        )
        self.skips = nn.Conv1d(BLOCKS * HIDDEN, SKIP, 1)
        weights = [read(model, f"blocks.{n}.skip.weight") for n in range(BLOCKS)]
        biases = [read(model, f"blocks.{n}.skip.bias") for n in range(BLOCKS)]
        self.skips.weight.data.copy_(torch.cat(weights, dim=1))
        self.skips.bias.data.copy_(torch.stack(biases).sum(0))
        self.act = load(nn.PReLU(), model, "prelu")
        self.attention = FusedAttention(model)
        self.estimate = load(nn.Conv1d(SKIP, SPEAKERS * FILTERS, 1), model, "mask")
        self.synthesis = nn.Parameter(read(model, "decoder.weight"))

    def attend(self, x: Tensor) -> Tensor:
        """Return (batch, SKIP, FRAMES) with attention inside of segments."""
        x = F.pad(x, (HOP, HOP + REST)).unsqueeze(-1)
        columns = F.unfold(x, (CHUNK, 1), stride=(HOP, 1)).unflatten(1, (SKIP, CHUNK))
        rows = columns.permute(0, 3, 2, 1).reshape(-1, CHUNK, SKIP)
        rows = self.attention(rows).unflatten(0, (-1, SEGMENTS))
        columns = rows.permute(0, 3, 2, 1).flatten(1, 2)
        padding = (HOP, 0)  # is cut off the sum
        size = (PADDED - 2 * HOP, 1)
        y = F.fold(columns, size, (CHUNK, 1), padding=padding, stride=(HOP, 1))
        return y[:, :, :FRAMES, 0]

    def forward(self, mixture: Tensor) -> Tensor:
        features = self.analysis(mixture[:, None]).relu()
        x, channels = self.reduce(self.gn(features)), []
        for n, block in enumerate(self.blocks):
            channels.append(block(x))
            if n < len(self.residuals):
                x = x + self.residuals[n](channels[-1])
        y = self.attend(self.act(self.skips(torch.cat(channels, dim=1))))
        masks = self.estimate(y).sigmoid().unflatten(1, (SPEAKERS, FILTERS))
        masked = (masks * features[:, None]).flatten(0, 1)
        windows = self.synthesis[:, 0].t() @ masked
        waves = F.fold(windows, (1, SAMPLES), (1, KERNEL), stride=(1, STRIDE))
        return waves.view(-1, SPEAKERS, SAMPLES)


class FusedLoss(nn.Module):
    """The net and its losses from cosines and energies."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.separator = FusedSeparator(model)

    def forward(self, mixture: Tensor, sources: Tensor) -> Tensor:
        estimates = self.separator(mixture)
        centered = estimates - estimates.mean(-1, keepdim=True)
        targets = sources - sources.mean(-1, keepdim=True)
        cosine = F.normalize(centered, dim=-1) @ F.normalize(targets, dim=-1).transpose(1, 2)
        share = cosine.square()
        decibels = 10 / math.log(10) * (share.log() - torch.log1p(-share))
        straight = decibels.diagonal(dim1=1, dim2=2).mean(-1)
        crossed = decibels.flip(2).diagonal(dim1=1, dim2=2).mean(-1)
        score = torch.maximum(straight, crossed).mean()
        lack = (mixture - estimates.sum(1)).norm(dim=-1) / mixture.norm(dim=-1)
        return MIXTURE_WEIGHT * lack.square().mean() - score
