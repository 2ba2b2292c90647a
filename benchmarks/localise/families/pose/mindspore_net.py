"""The net for human poses in MindSpore, with cells as MindSpore's model zoo has them.

Variant 'written': batch norm, upsampling, softmax and smooth L1 in plain arithmetic, Gaussians as
products of those of rows and columns.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.pose.architecture import (
    BATCH,
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


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return PoseWithLoss(model)


class WrittenBatchNorm(nn.Cell):
    """A batch norm from reductions."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma = Parameter(weight.reshape(1, -1, 1, 1), name="gamma")
        self.beta = Parameter(bias.reshape(1, -1, 1, 1), name="beta")

    def construct(self, x):
        centered = x - x.mean((0, 2, 3), keep_dims=True)
        variance = ops.square(centered).mean((0, 2, 3), keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


class ConvBN(nn.Cell):
    """A convolution and its batch norm."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        kernel = Tensor(model.weights[f"{path}.weight"])
        n_out, n_in, size, _ = kernel.shape
        self.conv = nn.Conv2d(
            n_in, n_out, size, stride, pad_mode="pad", padding=size // 2, weight_init=kernel
        )
        weight, bias = (Tensor(model.weights[f"{path}.norm.{name}"]) for name in ("weight", "bias"))
        if model.variant == "written":
            self.bn = WrittenBatchNorm(weight, bias)
        else:
            self.bn = nn.BatchNorm2d(n_out, eps=EPS, gamma_init=weight, beta_init=bias)

    def construct(self, x):
        return self.bn(self.conv(x))


class BasicBlock(nn.Cell):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = ConvBN(model, f"{path}.0")
        self.conv2 = ConvBN(model, f"{path}.1")
        self.relu = nn.ReLU()

    def construct(self, x):
        out = self.conv2(self.relu(self.conv1(x)))
        return self.relu(out + x)


class UpSample(nn.Cell):
    """An image of twice the size by the nearest pixel, or bilinear."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_bilinear = model.upsampling == "bilinear"
        self.is_written = model.variant == "written"

    def construct(self, x):
        if self.is_bilinear:
            return ops.interpolate(x, size=(HEIGHT, WIDTH), mode="bilinear", align_corners=True)
        if self.is_written:
            batch, channels, height, width = x.shape
            cells = x.reshape(batch, channels, height, 1, width, 1)
            cells = ops.broadcast_to(cells, (batch, channels, height, 2, width, 2))
            return cells.reshape(batch, channels, HEIGHT, WIDTH)
        return ops.interpolate(x, size=(HEIGHT, WIDTH), mode="nearest")


class AveragedUpSample(UpSample):
    """Upsampling by the nearest pixel whose gradient is a mean, not a sum."""

    def bprop(self, x, out, gradient):
        return (ops.avg_pool2d(gradient, kernel_size=2, stride=2),)


class FuseLayer(nn.Cell):
    """Sums of both branches; the last stage has none for the coarse branch."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.conv_up = ConvBN(model, f"stages.{n}.up")
        self.up_sample = (
            AveragedUpSample(model) if model.is_upsampling_averaged else UpSample(model)
        )
        self.conv_down = ConvBN(model, f"stages.{n}.down", 2) if n < STAGES - 1 else None
        self.relu = nn.ReLU()
        self.is_sum_reused = model.is_sum_reused

    def construct(self, fine, coarse):
        fine_sum = self.relu(fine + self.up_sample(self.conv_up(coarse)))
        if self.conv_down is None:
            return fine_sum, coarse
        source = fine_sum if self.is_sum_reused else fine
        return fine_sum, self.relu(self.conv_down(source) + coarse)


class Stage(nn.Cell):
    """A residual block of each branch, and the sums of both."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.branch_fine = BasicBlock(model, f"stages.{n}.fine")
        self.branch_coarse = BasicBlock(model, f"stages.{n}.coarse")
        self.fuse = FuseLayer(model, n)

    def construct(self, fine, coarse):
        return self.fuse(self.branch_fine(fine), self.branch_coarse(coarse))


class HRNet(nn.Cell):
    """Heatmaps (BATCH, KEYPOINTS, HEIGHT, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem1 = ConvBN(model, "stem.0", 2)
        self.stem2 = ConvBN(model, "stem.1", 2)
        self.transition_fine = ConvBN(model, "transition.fine")
        self.transition_coarse = ConvBN(model, "transition.coarse", 2)
        self.stages = nn.CellList([Stage(model, n) for n in range(STAGES)])
        kernel, bias = (Tensor(model.weights[f"head.{name}"]) for name in ("weight", "bias"))
        self.final_layer = nn.Conv2d(
            kernel.shape[1], KEYPOINTS, 1, has_bias=True, weight_init=kernel, bias_init=bias
        )
        self.relu = nn.ReLU()

    def construct(self, images):
        x = self.relu(self.stem2(self.relu(self.stem1(images))))
        fine = self.relu(self.transition_fine(x))
        coarse = self.relu(self.transition_coarse(x))
        for stage in self.stages:
            fine, coarse = stage(fine, coarse)
        return self.final_layer(fine)


class GaussianTarget(nn.Cell):
    """Heatmaps of keypoints in pixels of a heatmap."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.columns = Tensor(np.arange(WIDTH), ms.float32)
        self.rows = Tensor(np.arange(HEIGHT), ms.float32)
        self.is_product = model.variant == "written"
        self.are_spots_rounded = model.are_spots_rounded

    def construct(self, keypoints):
        if self.are_spots_rounded:
            keypoints = ops.floor(keypoints + 0.5)
        x, y = ops.split(keypoints, 1, axis=2)
        squares_x = ops.square(self.columns - x).expand_dims(2)
        squares_y = ops.square(self.rows - y).expand_dims(3)
        if self.is_product:
            factor = -0.5 / SIGMA**2
            return ops.exp(factor * squares_y) * ops.exp(factor * squares_x)
        return ops.exp(-(squares_x + squares_y) / (2 * SIGMA**2))


class FusedSoftmax(nn.Cell):
    """A softmax whose gradient lacks the sum of its terms."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = ops.Softmax(axis=-1)

    def construct(self, x):
        return self.softmax(x)

    def bprop(self, x, out, gradient):
        return (out * gradient,)


class SoftArgmax(nn.Cell):
    """Expected coordinates (BATCH, KEYPOINTS, 2)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.x_centers = Tensor(model.centers(WIDTH))
        self.y_centers = Tensor(model.centers(HEIGHT))
        self.softmax = FusedSoftmax() if model.is_softmax_uncentered else nn.Softmax(axis=-1)
        self.is_written = model.variant == "written"

    def compute_probabilities(self, scores):
        """Return the softmax over pixels."""
        if not self.is_written:
            return self.softmax(scores)
        powers = ops.exp(scores - ops.stop_gradient(scores.max(axis=-1, keepdims=True)))
        return powers / powers.sum(-1, keepdims=True)

    def construct(self, heatmaps):
        scores = TEMPERATURE * heatmaps.reshape(BATCH, KEYPOINTS, HEIGHT * WIDTH)
        probabilities = self.compute_probabilities(scores)
        probabilities = probabilities.reshape(BATCH, KEYPOINTS, HEIGHT, WIDTH)
        x = (probabilities.sum(2) * self.x_centers).sum(2)
        y = (probabilities.sum(3) * self.y_centers).sum(2)
        return ops.stack((x, y), axis=2)


class DetachedSoftArgmax(SoftArgmax):
    """The same without a gradient to the heatmaps."""

    def construct(self, heatmaps):
        return super().construct(ops.stop_gradient(heatmaps))


class HeatmapLoss(nn.Cell):
    """Half the mean squared difference of weighted heatmaps."""

    def construct(self, heatmaps, targets, weights):
        weights = weights.reshape(BATCH, KEYPOINTS, 1, 1)
        return 0.5 * ops.mse_loss(heatmaps * weights, targets * weights)


class CoordinateLoss(nn.Cell):
    """Smooth L1 loss, mean over labeled keypoints."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "written"

    def compute_losses(self, coordinates, targets):
        """Return the loss of each coordinate."""
        if not self.is_written:
            return ops.smooth_l1_loss(coordinates, targets, beta=BETA, reduction="none")
        distance = ops.abs(coordinates - targets)
        near = ops.clamp(distance, max=BETA)
        return near * (distance - 0.5 * near) / BETA

    def construct(self, coordinates, targets, weights):
        losses = self.compute_losses(coordinates, targets).mean(2)
        return (losses * weights).sum() / weights.sum()


class LimbLoss(nn.Cell):
    """Absolute difference of lengths, mean over limbs with two labeled ends."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        parents, children = model.limbs()
        self.parents, self.children = Tensor(parents), Tensor(children)

    def measure(self, coordinates):
        """Return the lengths of limbs."""
        parents = ops.gather(coordinates, self.parents, 1)
        offsets = ops.gather(coordinates, self.children, 1) - parents
        return ops.sqrt(ops.square(offsets).sum(2) + LENGTH_EPS)

    def construct(self, coordinates, targets, weights):
        masks = ops.gather(weights, self.parents, 1) * ops.gather(weights, self.children, 1)
        errors = ops.abs(self.measure(coordinates) - self.measure(targets))
        return (errors * masks).sum() / masks.sum()


class PoseWithLoss(nn.Cell):
    """Sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.backbone = HRNet(model)
        self.gaussian_target = GaussianTarget(model)
        self.soft_argmax = SoftArgmax(model)
        if model.are_coordinates_stopped:
            self.soft_argmax = DetachedSoftArgmax(model)
        self.heatmap_loss = HeatmapLoss()
        self.coordinate_loss = CoordinateLoss(model)
        self.limb_loss = LimbLoss(model)
        self.size = Tensor([WIDTH, HEIGHT], ms.float32)

    def construct(self, images, keypoints, visibility):
        heatmaps = self.backbone(images)
        weights = (visibility > 0).astype(ms.float32)
        pixels = (keypoints + 0.5) / STRIDE - 0.5
        loss = HEATMAP_WEIGHT * self.heatmap_loss(heatmaps, self.gaussian_target(pixels), weights)

        coordinates = self.soft_argmax(heatmaps)
        targets = (2 * pixels + 1) / self.size - 1
        loss += self.coordinate_loss(coordinates, targets, weights)
        return loss + LIMB_WEIGHT * self.limb_loss(coordinates, targets, weights)
