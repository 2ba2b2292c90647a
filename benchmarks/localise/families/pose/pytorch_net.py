"""The net for human poses in PyTorch, with the module names of HRNet.

Variant 'functional': other names, batch norm, upsampling, softmax and losses in plain arithmetic.
Variant 'looped': sums of stacked parts, the heatmap loss keypoint by keypoint, coordinates from the
sums of rows and columns.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.pose.architecture import (
    BETA,
    EPS,
    HEATMAP_WEIGHT,
    HEIGHT,
    KEYPOINTS,
    LENGTH_EPS,
    LIMB_WEIGHT,
    SIGMA,
    STAGES,
    STRIDE,
    TEMPERATURE,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return PoseEstimator(model) if model.variant == "functional" else PoseLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def build_conv_norm(model: Model, path: str, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its batch norm."""
    kernel = read(model, f"{path}.weight")
    planes, inplanes, size, _ = kernel.shape
    conv = nn.Conv2d(inplanes, planes, size, stride, padding=size // 2, bias=False)
    conv.weight.data.copy_(kernel)
    norm = nn.BatchNorm2d(planes, eps=EPS)
    norm.weight.data.copy_(read(model, f"{path}.norm.weight"))
    norm.bias.data.copy_(read(model, f"{path}.norm.bias"))
    return [conv, norm]


class BasicBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = build_conv_norm(model, f"{path}.0")
        self.conv2, self.bn2 = build_conv_norm(model, f"{path}.1")
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + x)


class HighResolutionModule(nn.Module):
    """A residual block of each branch, and sums of both for as many branches as are left."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"stages.{n}"
        names = ("fine", "coarse")
        self.branches = nn.ModuleList(BasicBlock(model, f"{path}.{name}") for name in names)
        up = [*build_conv_norm(model, f"{path}.up"), nn.Upsample(scale_factor=2, mode="nearest")]
        self.fuse_layers = nn.ModuleList([nn.Sequential(*up)])
        if n < STAGES - 1:
            down = build_conv_norm(model, f"{path}.down", stride=2)
            if model.is_down_rectified:
                down.append(nn.ReLU())
            self.fuse_layers.append(nn.Sequential(*down))
        self.relu = nn.ReLU()
        self.is_stacked = model.variant == "looped"

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        x = [branch(part) for branch, part in zip(self.branches, x, strict=True)]
        fused = []
        for i, layer in enumerate(self.fuse_layers):
            moved = layer(x[1 - i])
            y = torch.stack((x[i], moved)).sum(dim=0) if self.is_stacked else x[i] + moved
            fused.append(self.relu(y))
        return fused


class PoseHighResolutionNet(nn.Module):
    """Heatmaps (batch, KEYPOINTS, HEIGHT, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1, self.bn1 = build_conv_norm(model, "stem.0", stride=2)
        self.conv2, self.bn2 = build_conv_norm(model, "stem.1", stride=2)
        self.relu = nn.ReLU()
        self.transition1 = nn.ModuleList(
            nn.Sequential(*build_conv_norm(model, f"transition.{name}", stride), nn.ReLU())
            for name, stride in (("fine", 1), ("coarse", 2))
        )
        self.stage2 = nn.Sequential(*(HighResolutionModule(model, n) for n in range(STAGES)))
        weight = read(model, "head.weight")
        self.final_layer = nn.Conv2d(weight.shape[1], KEYPOINTS, kernel_size=1)
        self.final_layer.weight.data.copy_(weight)
        self.final_layer.bias.data.copy_(read(model, "head.bias"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        (y,) = self.stage2([transition(x) for transition in self.transition1])
        return self.final_layer(y)


class IntegralRegression(nn.Module):
    """Expected coordinates (batch, KEYPOINTS, 2)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        x, y = (torch.from_numpy(model.centers(length)) for length in (WIDTH, HEIGHT))
        grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
        self.register_buffer("x", x)
        self.register_buffer("y", y)
        self.register_buffer("grid", torch.stack((grid_x.flatten(), grid_y.flatten()), dim=1))
        self.softmax = nn.Softmax(dim=model.softmax_axis)
        self.is_looped = model.variant == "looped"

    def forward(self, heatmaps: Tensor) -> Tensor:
        probs = self.softmax(heatmaps.flatten(2) * TEMPERATURE)
        if not self.is_looped:
            return torch.matmul(probs, self.grid)
        probs = probs.unflatten(2, (HEIGHT, WIDTH))
        x = torch.matmul(probs.sum(dim=2), self.x)
        y = torch.matmul(probs.sum(dim=3), self.y)
        return torch.stack((x, y), dim=-1)


class JointsMSELoss(nn.Module):
    """Half the mean squared difference of weighted heatmaps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.criterion = nn.MSELoss()
        self.is_looped = model.variant == "looped"

    def forward(self, output: Tensor, target: Tensor, target_weight: Tensor) -> Tensor:
        if not self.is_looped:
            weight = target_weight[:, :, None, None]
            return 0.5 * self.criterion(output * weight, target * weight)
        loss = 0
        pairs = zip(output.flatten(2).unbind(1), target.flatten(2).unbind(1), strict=True)
        for joint, (heatmap_pred, heatmap_gt) in enumerate(pairs):
            weight = target_weight[:, joint, None]
            loss = loss + 0.5 * self.criterion(heatmap_pred.mul(weight), heatmap_gt.mul(weight))
        return loss / KEYPOINTS


class CoordinateLoss(nn.Module):
    """Smooth L1 loss, mean over labeled keypoints."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_huber = model.coordinate_loss == "huber"

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        if self.is_huber:
            loss = F.huber_loss(pred, target, reduction="none", delta=BETA)
        else:
            loss = F.smooth_l1_loss(pred, target, reduction="none", beta=BETA)
        return (loss * weight.unsqueeze(-1)).sum() / (2 * weight.sum())


class BoneLengthLoss(nn.Module):
    """Absolute difference of lengths, mean over limbs with two labeled ends."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("limbs", torch.from_numpy(model.limbs().flatten()).long())
        self.is_parent_stopped = model.is_parent_stopped

    def read_ends(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what belongs to the keypoints at both ends of limbs."""
        return x.index_select(1, self.limbs).unflatten(1, (2, -1)).unbind(1)

    def measure(self, joints: Tensor) -> Tensor:
        """Return the lengths of limbs."""
        start, end = self.read_ends(joints)
        if self.is_parent_stopped:
            start = start.detach()
        return ((start - end).pow(2).sum(dim=-1) + LENGTH_EPS).sqrt()

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        start, end = self.read_ends(weight)
        mask = start * end
        return (mask * (self.measure(pred) - self.measure(target)).abs()).sum() / mask.sum()


class PoseLoss(nn.Module):
    """Sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = PoseHighResolutionNet(model)
        self.integral = IntegralRegression(model)
        self.heatmap_loss = JointsMSELoss(model)
        self.coordinate_loss = CoordinateLoss(model)
        self.bone_loss = BoneLengthLoss(model)
        self.register_buffer("size", torch.tensor([WIDTH, HEIGHT], dtype=torch.float32))
        self.register_buffer("columns", torch.arange(WIDTH, dtype=torch.float32))
        self.register_buffer("rows", torch.arange(HEIGHT, dtype=torch.float32).unsqueeze(-1))
        self.is_visibility_weight = model.is_visibility_weight
        self.are_pixels_centered = model.are_pixels_centered

    def generate_target(self, pixels: Tensor) -> Tensor:
        """Return Gaussians around keypoints in pixels of a heatmap."""
        mu_x, mu_y = pixels[:, :, None, None].unbind(-1)
        squares = (self.columns - mu_x) ** 2 + (self.rows - mu_y) ** 2
        return torch.exp(-squares / (2 * SIGMA**2))

    def forward(self, images: Tensor, joints: Tensor, visibility: Tensor) -> Tensor:
        heatmaps = self.net(images)
        weight = (visibility if self.is_visibility_weight else visibility > 0).float()
        pixels = (joints + 0.5) / STRIDE - 0.5 if self.are_pixels_centered else joints / STRIDE
        loss = self.heatmap_loss(heatmaps, self.generate_target(pixels), weight) * HEATMAP_WEIGHT

        pred = self.integral(heatmaps)
        target = (2 * pixels + 1) / self.size - 1
        loss = loss + self.coordinate_loss(pred, target, weight)
        return loss + self.bone_loss(pred, target, weight) * LIMB_WEIGHT


class ConvUnit(nn.Module):
    """A convolution and a batch norm from mean and variance."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.kernel = nn.Parameter(read(model, f"{path}.weight"))
        self.gain = nn.Parameter(read(model, f"{path}.norm.weight"))
        self.shift = nn.Parameter(read(model, f"{path}.norm.bias"))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.kernel, stride=self.stride, padding=self.kernel.shape[-1] // 2)
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + EPS)
        return x * self.gain[:, None, None] + self.shift[:, None, None]


class ResidualUnit(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.first, self.second = (ConvUnit(model, f"{path}.{layer}") for layer in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x).clamp(min=0)) + x).clamp(min=0)


class Exchange(nn.Module):
    """A residual block of each branch, and the sums of both."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"stages.{n}"
        self.high, self.low = (ResidualUnit(model, f"{path}.{name}") for name in ("fine", "coarse"))
        self.to_high = ConvUnit(model, f"{path}.up")
        self.to_low = ConvUnit(model, f"{path}.down", 2) if n < STAGES - 1 else None

    def forward(self, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        high, low = self.high(high), self.low(low)
        wide = self.to_high(low).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        if self.to_low is not None:
            low = (low + self.to_low(high)).clamp(min=0)
        return (high + wide).clamp(min=0), low


class PoseEstimator(nn.Module):
    """The net and its losses in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entry = nn.ModuleList(ConvUnit(model, f"stem.{n}", 2) for n in range(2))
        self.split_high = ConvUnit(model, "transition.fine")
        self.split_low = ConvUnit(model, "transition.coarse", 2)
        self.exchanges = nn.ModuleList(Exchange(model, n) for n in range(STAGES))
        self.readout = nn.Parameter(read(model, "head.weight").flatten(1))
        self.readout_bias = nn.Parameter(read(model, "head.bias"))
        self.x_centers, self.y_centers = (
            torch.from_numpy(model.centers(length)) for length in (WIDTH, HEIGHT)
        )
        #: (limbs, KEYPOINTS): offsets between both ends as a product
        incidence = np.zeros((len(model.limbs()[0]), KEYPOINTS), np.float32)
        incidence[np.arange(len(incidence)), model.limbs()[0]] = -1
        incidence[np.arange(len(incidence)), model.limbs()[1]] = 1
        self.incidence = torch.from_numpy(incidence)

    def compute_heatmaps(self, images: Tensor) -> Tensor:
        """Return heatmaps (batch, KEYPOINTS, HEIGHT, WIDTH)."""
        x = images
        for unit in self.entry:
            x = unit(x).clamp(min=0)
        high, low = self.split_high(x).clamp(min=0), self.split_low(x).clamp(min=0)
        for exchange in self.exchanges:
            high, low = exchange(high, low)
        heatmaps = torch.einsum("kc,bchw->bkhw", self.readout, high)
        return heatmaps + self.readout_bias[:, None, None]

    def measure_limbs(self, points: Tensor) -> Tensor:
        """Return the lengths of limbs."""
        offsets = torch.matmul(self.incidence, points)
        return torch.sqrt((offsets * offsets).sum(-1) + LENGTH_EPS)

    def forward(self, images: Tensor, keypoints: Tensor, visibility: Tensor) -> Tensor:
        heatmaps = self.compute_heatmaps(images)
        labeled = torch.where(visibility > 0, 1.0, 0.0)
        centers = (keypoints + 0.5) / STRIDE
        gaps_x = centers[:, :, :1] - 0.5 - torch.arange(WIDTH)
        gaps_y = centers[:, :, 1:] - 0.5 - torch.arange(HEIGHT)
        profiles_x, profiles_y = (
            torch.exp(-0.5 * (gaps / SIGMA) ** 2) for gaps in (gaps_x, gaps_y)
        )
        targets = torch.einsum("bkh,bkw->bkhw", profiles_y, profiles_x)
        squares = (heatmaps - targets).square().mean((2, 3))
        loss = 0.5 * HEATMAP_WEIGHT * (labeled * squares).mean()

        powers = torch.exp(TEMPERATURE * (heatmaps - heatmaps.amax((2, 3), keepdim=True).detach()))
        mass = powers.sum((2, 3))
        x = torch.einsum("bkhw,w->bk", powers, self.x_centers) / mass
        y = torch.einsum("bkhw,h->bk", powers, self.y_centers) / mass
        points = torch.stack((x, y), dim=-1)
        goals = 2 * centers / torch.tensor([WIDTH, HEIGHT]) - 1
        error = (points - goals).abs()
        smooth = torch.where(error < BETA, 0.5 * error.square() / BETA, error - 0.5 * BETA)
        loss = loss + (labeled * smooth.mean(-1)).sum() / labeled.sum()

        masks = torch.matmul(labeled, self.incidence.abs().t()) > 1.5
        gaps = (self.measure_limbs(points) - self.measure_limbs(goals)).abs()
        return loss + LIMB_WEIGHT * (gaps * masks).sum() / masks.sum()
