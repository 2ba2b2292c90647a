"""The image classifier in PyTorch, with the modules of timm's ConvNeXt.

Variant 'conv_mlp': blocks stay channels-first, linear layers are 1x1 convolutions, and norms are
written out, as in the first release of the paper's code.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.convnext.architecture import (
    CHANNELS,
    CLASSES,
    DEPTHS,
    EPS,
    EXPANSION,
    KERNEL,
    LAST_STAGE,
    PATCH,
    SMOOTHING,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return Classifier(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        values = torch.from_numpy(np.array(model.weights[f"{path}.{name}"]))
        parameter.data.copy_(values.view_as(parameter))
    return module


class LayerNorm2d(nn.LayerNorm):
    """Layer norm of the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, EPS)
        return x.permute(0, 3, 1, 2)


class WrittenNorm2d(nn.LayerNorm):
    """The same in plain arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


def load_norm_2d(model: Model, path: str) -> nn.Module:
    """Return the norm at ``path`` for channels in front of pixels."""
    channels = len(model.weights[f"{path}.weight"])
    if path == f"down.{LAST_STAGE}.norm" and model.is_last_down_grouped:
        return load(nn.GroupNorm(1, channels, eps=EPS), model, path)
    norm_class = WrittenNorm2d if model.variant == "conv_mlp" else LayerNorm2d
    return load(norm_class(channels, eps=EPS), model, path)


def load_patches(model: Model, path: str, size: int) -> nn.Module:
    """Return the convolution at ``path``, whose stride is its kernel."""
    n_out, n_in, _, _ = model.weights[f"{path}.weight"].shape
    return load(nn.Conv2d(n_in, n_out, size, stride=size), model, path)


class Mlp(nn.Module):
    """Two linear layers, or 1x1 convolutions, around gelu."""

    def __init__(self, model: Model, path: str, channels: int) -> None:
        super().__init__()
        wide = EXPANSION * channels
        if model.variant == "conv_mlp":
            fc1, fc2 = nn.Conv2d(channels, wide, 1), nn.Conv2d(wide, channels, 1)
        else:
            fc1, fc2 = nn.Linear(channels, wide), nn.Linear(wide, channels)
        self.fc1, self.act = load(fc1, model, f"{path}.up"), nn.GELU(model.gelu)
        self.fc2 = load(fc2, model, f"{path}.down")
        self.is_autocast = model.mlp_dtype == "float16"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_autocast:
            with torch.autocast("cpu", dtype=torch.float16):
                return self.fc2(self.act(self.fc1(x))).float()
        return self.fc2(self.act(self.fc1(x)))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm, inverted bottleneck, layer scale, residual sum."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        model, path, channels = model.block(stage, n), f"stages.{stage}.{n}", CHANNELS[stage]
        depthwise = nn.Conv2d(
            channels,
            channels,
            KERNEL,
            padding=KERNEL // 2,
            groups=channels,
            bias=model.has_depthwise_bias,
        )
        self.conv_dw = load(depthwise, model, f"{path}.depthwise")
        self.is_channels_first = model.variant == "conv_mlp"
        if self.is_channels_first:
            self.norm = load_norm_2d(model, f"{path}.norm")
        else:
            self.norm = load(nn.LayerNorm(channels, eps=EPS), model, f"{path}.norm")
        self.mlp = Mlp(model, path, channels)
        gamma = torch.from_numpy(np.array(model.weights[f"{path}.scale"]))
        self.gamma = nn.Parameter(gamma[:, None, None] if model.is_scale_spatial else gamma)
        self.scale_gradient = model.scale_gradient
        self.is_residual_filtered = model.is_residual_filtered
        self.are_pixels_exchanged = model.are_pixels_exchanged
        self.path_scale = model.path_scale

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.conv_dw(x)
        if self.is_residual_filtered:
            shortcut = x
        if self.is_channels_first:
            x = self.mlp(self.norm(x))
        elif self.are_pixels_exchanged:
            x = self.mlp(self.norm(x.permute(0, 2, 3, 1))).transpose(1, 3)
        else:
            x = self.mlp(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        gamma = self.gamma
        if self.scale_gradient != 1:
            gamma = scaled_gradient(gamma, self.scale_gradient)
        x = x.mul(gamma.reshape(1, -1, 1, 1))
        if self.path_scale != 1:
            x = x * self.path_scale
        return x + shortcut


class ConvNeXtStage(nn.Module):
    """Blocks, behind a norm and a convolution that halves the image."""

    def __init__(self, model: Model, stage: int) -> None:
        super().__init__()
        self.downsample = nn.Identity()
        if stage:
            norm = load_norm_2d(model, f"down.{stage}.norm")
            conv = load_patches(model, f"down.{stage}", 2)
            self.downsample = nn.Sequential(norm, conv)
        blocks = (ConvNeXtBlock(model, stage, n) for n in range(DEPTHS[stage]))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.downsample(x))


class NormMlpClassifierHead(nn.Module):
    """Mean of the pixels, norm, linear layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.norm = load_norm_2d(model, "norm")
        self.flatten = nn.Flatten(1)
        self.fc = load(nn.Linear(CHANNELS[-1], CLASSES), model, "head")
        self.is_pooled_last = model.is_pooled_last

    def forward(self, x: Tensor) -> Tensor:
        x = (
            self.global_pool(self.norm(x))
            if self.is_pooled_last
            else self.norm(self.global_pool(x))
        )
        return self.fc(self.flatten(x))


class ConvNeXt(nn.Module):
    """Logits of images, (batch, classes)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(model.pixel_mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(model.pixel_deviation).view(1, 3, 1, 1))
        self.stem = nn.Sequential(
            load_patches(model, "stem", PATCH), load_norm_2d(model, "stem.norm")
        )
        self.stages = nn.Sequential(*(ConvNeXtStage(model, n) for n in range(len(DEPTHS))))
        self.head = NormMlpClassifierHead(model)
        self.is_stem_stopped = model.is_stem_stopped

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem((images - self.mean) / self.std)
        if self.is_stem_stopped:
            x = x.detach()
        return self.head(self.stages(x))


class Classifier(nn.Module):
    """Smoothed cross entropy of the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = ConvNeXt(model)
        self.is_smoothing_shared = model.smoothed_classes == "all"
        self.are_logits_normalized = model.are_logits_normalized

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.model(images)
        if self.are_logits_normalized:
            logits = F.softmax(logits, dim=-1)
        if self.is_smoothing_shared:
            return F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
        targets = torch.full_like(logits, SMOOTHING / (CLASSES - 1))
        targets = targets.scatter(1, labels[:, None], 1 - SMOOTHING)
        return F.cross_entropy(logits, targets)
