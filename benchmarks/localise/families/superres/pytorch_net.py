"""Super-resolution in PyTorch, with module names of EDSR, RCAN and VAN.

Variant 'written': other names, 1x1 convolutions by einsum, depthwise ones from patches, bicubic
interpolation by matrices, gelu, pixel shuffle and Sobel written out. Variant 'joined': images and
targets are one batch in the losses, the gate has linear layers, residual sums are fused, and the
mean is subtracted, not convolved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from pytorch.naming import rename
from torch import Tensor, nn

from families.superres.architecture import (
    COLORS,
    DILATION,
    EDGE_WEIGHT,
    FACTOR,
    FEATURE_MEAN,
    FEATURE_STD,
    FEATURE_WEIGHT,
    GROUPS,
    HEIGHT,
    JUDGE_CHANNELS,
    RESIDUAL_SCALE,
    SOBEL,
    WIDTH,
    Model,
    build_bicubic,
)

#: Names of modules in variant 'written'.
NAMES: Mapping[str, str] = {
    "head": "conv_first",
    "body": "trunk",
    "fuse": "conv_body",
    "upsample": "upconv",
    "tail": "conv_last",
    "rcab": "spatial_block",
    "conv_du": "calibration",
    "lka": "visual_attention",
    "proj_1": "expand",
    "proj_2": "project",
    "conv0": "near",
    "conv_spatial": "far",
    "conv1": "mix",
    "vgg": "perceptual_net",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    net = SuperResolutionLoss(model)
    if model.variant == "written":
        rename(net, NAMES)
    return net


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.from_numpy(model.weights[f"{path}.{name}"].copy())
            parameter.copy_(values.view_as(parameter))
    return module


class EinsumConv1x1(nn.Linear):
    """A 1x1 convolution as a linear map of the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("oc,bchw->bohw", self.weight, x) + self.bias.view(-1, 1, 1)


class UnfoldedDepthwise(nn.Conv2d):
    """A depthwise convolution as a weighted sum of shifted pixels."""

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, self.kernel_size, self.dilation, self.padding)
        patches = patches.view(*x.shape[:2], -1, x.shape[2] * x.shape[3])
        sums = (patches * self.weight.view(len(self.weight), -1, 1)).sum(2)
        return sums.view_as(x) + self.bias.view(-1, 1, 1)


def build_convolution(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Module:
    """Return a convolution that keeps the size, or divides it by the stride."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    is_written = model.variant == "written"
    if is_written and kernel == 1:
        return load(EinsumConv1x1(n_in, n_out), model, path)
    groups = n_out if n_in == 1 else 1
    kind = UnfoldedDepthwise if is_written and groups > 1 else nn.Conv2d
    padding = dilation * (kernel // 2)
    conv = kind(n_in * groups, n_out, kernel, stride, padding, dilation, groups)
    return load(conv, model, path)


class MeanShift(nn.Conv2d):
    """Add the mean of the colors, or subtract it; not trained."""

    def __init__(self, mean: Sequence[float], sign: int) -> None:
        super().__init__(COLORS, COLORS, kernel_size=1)
        self.weight.data = torch.eye(COLORS).view(COLORS, COLORS, 1, 1)
        self.bias.data = sign * torch.tensor(mean)
        self.requires_grad_(False)


class ConstantShift(nn.Module):
    """The same by a sum."""

    def __init__(self, mean: Sequence[float], sign: int) -> None:
        super().__init__()
        self.register_buffer("shift", sign * torch.tensor(mean).view(1, COLORS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class CALayer(nn.Module):
    """Each channel times a gate from its mean."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.conv_du = nn.Sequential(
            build_convolution(model, f"{path}.squeeze"),
            nn.ReLU(),
            build_convolution(model, f"{path}.excite"),
            nn.Sigmoid(),
        )
        self.has_contrast = model.has_contrast

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.avg_pool(x)
        if self.has_contrast:
            pooled = pooled + x.std((2, 3), unbiased=False, keepdim=True)
        return x * self.conv_du(pooled)


class LinearCALayer(nn.Module):
    """The same with linear layers."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        n_squeezed, n, _, _ = model.weights[f"{path}.squeeze.weight"].shape
        self.fc1 = load(nn.Linear(n, n_squeezed), model, f"{path}.squeeze")
        self.fc2 = load(nn.Linear(n_squeezed, n), model, f"{path}.excite")

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc2(F.relu(self.fc1(x.mean((2, 3))))).sigmoid()
        return x * gate[:, :, None, None]


class ResidualBlock(nn.Module):
    """A share of the block is added to its input."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_fused = model.variant == "joined"

    def add_residual(self, x: Tensor, y: Tensor) -> Tensor:
        if self.is_fused:
            return torch.add(x, y, alpha=RESIDUAL_SCALE)
        return x + y * RESIDUAL_SCALE


class RCAB(ResidualBlock):
    """Two convolutions and channel attention."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model)
        attention = LinearCALayer if model.variant == "joined" else CALayer
        self.body = nn.Sequential(
            build_convolution(model, f"{path}.conv1"),
            nn.ReLU(),
            build_convolution(model, f"{path}.conv2"),
            attention(model, path),
        )
        self.branch_gradient = model.branch_gradient

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.branch_gradient != 1:
            y = scaled_gradient(y, self.branch_gradient)
        return self.add_residual(x, y)


class WrittenGELU(nn.Module):
    """GELU by the error function."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class LKA(nn.Module):
    """Its input times what a large kernel sees."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv0 = build_convolution(model, f"{path}.depthwise")
        self.conv_spatial = build_convolution(model, f"{path}.dilated", dilation=DILATION)
        self.conv1 = build_convolution(model, f"{path}.pointwise")

    def forward(self, x: Tensor) -> Tensor:
        attn = self.conv1(self.conv_spatial(self.conv0(x)))
        return x * attn


class LKABlock(ResidualBlock):
    """Large-kernel attention between two projections."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model)
        self.proj_1 = build_convolution(model, f"{path}.proj1")
        self.activation = WrittenGELU() if model.variant == "written" else nn.GELU()
        self.spatial_gating_unit = LKA(model, path)
        self.proj_2 = build_convolution(model, f"{path}.proj2")

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.proj_1(x))
        return self.add_residual(x, self.proj_2(self.spatial_gating_unit(y)))


class ResidualGroup(nn.Module):
    """Two blocks and a convolution, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.rcab = RCAB(model, f"{path}.channel")
        self.lka = LKABlock(model, f"{path}.large")
        self.conv = build_convolution(model, f"{path}.conv")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.lka(self.rcab(x))) + x


class WrittenPixelShuffle(nn.Module):
    """A pixel shuffle by view and permute."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (-1, FACTOR, FACTOR)).permute(0, 1, 4, 2, 5, 3)
        return x.flatten(4, 5).flatten(2, 3)


class BicubicUpsample(nn.Module):
    """Bicubic interpolation of the images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.antialias = model.is_antialiased

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(
            x,
            scale_factor=FACTOR,
            mode="bicubic",
            align_corners=False,
            antialias=self.antialias,
        )


class BicubicMatrices(nn.Module):
    """The same by a matrix for each axis."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.from_numpy(build_bicubic(HEIGHT)))
        self.register_buffer("columns", torch.from_numpy(build_bicubic(WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows @ x @ self.columns.t()


class RCAN(nn.Module):
    """Larger images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_written = model.variant == "written"
        shift = ConstantShift if model.variant == "joined" else MeanShift
        self.sub_mean, self.add_mean = shift(model.mean, -1), shift(model.mean, 1)
        self.head = build_convolution(model, "head")
        self.body = nn.Sequential(*(ResidualGroup(model, f"groups.{n}") for n in range(GROUPS)))
        self.fuse = build_convolution(model, "fuse")
        self.upsample = nn.Sequential(
            build_convolution(model, "up"),
            WrittenPixelShuffle() if is_written else nn.PixelShuffle(FACTOR),
        )
        self.tail = build_convolution(model, "tail")
        self.base = BicubicMatrices() if is_written else BicubicUpsample(model)
        self.is_skip_detached = model.is_skip_detached

    def forward(self, x: Tensor) -> Tensor:
        x = self.sub_mean(x)
        shallow = self.head(x)
        skip = shallow.detach() if self.is_skip_detached else shallow
        deep = self.fuse(self.body(shallow)) + skip
        return self.add_mean(self.tail(self.upsample(deep)) + self.base(x))


class CharbonnierLoss(nn.Module):
    """A smooth L1."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.eps = model.epsilon

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        diff = x - y
        return torch.mean(torch.sqrt(diff * diff + self.eps))


def slice_sobel(x: Tensor) -> Tensor:
    """Return both derivatives of padded images, those of all columns before those of all rows."""
    across = x[..., 2:] - x[..., :-2]
    across = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
    along = x[..., 2:, :] - x[..., :-2, :]
    along = along[..., :-2] + 2 * along[..., 1:-1] + along[..., 2:]
    return torch.stack((across, along), dim=2).flatten(1, 2) / 8


class GradientLoss(nn.Module):
    """L1 between the derivatives of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        kernel = torch.from_numpy(SOBEL)
        kernels = torch.stack((kernel, kernel.t())).unsqueeze(1).repeat(COLORS, 1, 1, 1)
        self.register_buffer("kernels", kernels)
        self.variant = model.variant
        self.has_zeros = model.edge_padding == "zeros"

    def get_gradients(self, x: Tensor) -> Tensor:
        if self.has_zeros:
            return F.conv2d(x, self.kernels, padding=1, groups=COLORS)
        x = F.pad(x, (1, 1, 1, 1), mode="replicate")
        if self.variant == "written":
            return slice_sobel(x)
        return F.conv2d(x, self.kernels, groups=COLORS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.variant == "joined":
            return F.l1_loss(*self.get_gradients(torch.cat((x, y))).chunk(2))
        return F.l1_loss(self.get_gradients(x), self.get_gradients(y))


class PerceptualLoss(nn.Module):
    """L1 between activations of a network that is not trained."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vgg = nn.ModuleList(
            build_convolution(model, f"judge.{n}", stride=n + 1) for n in range(len(JUDGE_CHANNELS))
        )
        self.requires_grad_(False)
        self.register_buffer("mean", torch.tensor(FEATURE_MEAN).view(1, COLORS, 1, 1))
        self.register_buffer("std", torch.tensor(FEATURE_STD).view(1, COLORS, 1, 1))
        self.is_joined = model.variant == "joined"

    def extract(self, x: Tensor) -> list[Tensor]:
        x = (x.clamp(0, 1) - self.mean) / self.std
        features = []
        for conv in self.vgg:
            x = F.relu(conv(x))
            features.append(x)
        return features

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.is_joined:
            pairs = [both.chunk(2) for both in self.extract(torch.cat((x, y)))]
            return torch.stack([F.l1_loss(a, b) for a, b in pairs]).sum()
        features = self.extract(x)
        with torch.no_grad():
            targets = self.extract(y)
        loss = F.l1_loss(features[0], targets[0])
        for feature, target in zip(features[1:], targets[1:], strict=True):
            loss = loss + F.l1_loss(feature, target)
        return loss


class SuperResolutionLoss(nn.Module):
    """The sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = RCAN(model)
        self.pixel_loss = CharbonnierLoss(model)
        self.edge_loss = GradientLoss(model)
        self.feature_loss = PerceptualLoss(model)

    def forward(self, lr: Tensor, hr: Tensor) -> Tensor:
        sr = self.net(lr)
        loss = self.pixel_loss(sr, hr)
        loss = loss + EDGE_WEIGHT * self.edge_loss(sr, hr)
        return loss + FEATURE_WEIGHT * self.feature_loss(sr, hr)
