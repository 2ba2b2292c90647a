"""Stereo depth estimation in MindSpore for graph mode.

Variant 'written': norms, softmax, smooth L1 and SSIM in plain arithmetic, volumes from columns that
are looked up, resizing and warps as products with shares of cells.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.stereo.architecture import (
    BATCH,
    C1,
    C2,
    COLUMNS,
    CONSISTENCY,
    DEVIATION,
    DILATIONS,
    EDGE_FACTOR,
    EPS,
    FEATURES,
    GROUPS,
    HEIGHT,
    LEVELS,
    MAX_DISPARITY,
    MEAN,
    PHOTOMETRIC,
    POOLS,
    REDUCED,
    ROWS,
    SLOPE,
    SMOOTHNESS,
    SSIM_SHARE,
    STAGE_WEIGHTS,
    STAGES,
    WIDTH,
    Model,
)

GROUP_CHANNELS = FEATURES // GROUPS


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else StereoWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_conv(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Cell:
    """Return the convolution at a path, in two or three dimensions."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d if weight.ndim == 4 else nn.Conv3d
    return conv(
        weight.shape[1],
        weight.shape[0],
        weight.shape[2],
        stride,
        pad_mode="pad",
        padding=dilation * (weight.shape[2] // 2),
        dilation=dilation,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_transposed(model: Model, path: str) -> nn.Conv3dTranspose:
    """Return the transposed convolution at a path, which doubles sizes."""
    weight = read(model, f"{path}.weight")
    n_in, n_out, kernel = weight.shape[:3]
    return nn.Conv3dTranspose(
        n_in,
        n_out,
        kernel,
        stride=2,
        pad_mode="pad",
        padding=1,
        output_padding=1,
        weight_init=weight,
    )


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm of the convolution at a path."""
    norm = nn.BatchNorm2d if model.weights[f"{path}.weight"].ndim == 4 else nn.BatchNorm3d
    weight, bias = (read(model, f"{path}.norm.{name}") for name in ("weight", "bias"))
    return norm(len(weight), eps=EPS, gamma_init=weight, beta_init=bias)


def conv_bn(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.SequentialCell:
    """Return a convolution and its norm."""
    conv = build_conv(model, path, stride, dilation)
    return nn.SequentialCell(conv, build_norm(model, path))


def conv_bn_relu(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.SequentialCell:
    """Return a convolution, its norm and relu."""
    conv = build_conv(model, path, stride, dilation)
    return nn.SequentialCell(conv, build_norm(model, path), nn.ReLU())


class ResidualBlock(nn.Cell):
    """Two convolutions and a shortcut."""

    def __init__(self, model: Model, path: str, stride: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = conv_bn_relu(model, f"{path}.first", stride, dilation)
        self.conv2 = conv_bn(model, f"{path}.second", 1, dilation)
        self.has_shortcut = stride > 1
        if self.has_shortcut:
            self.shortcut = conv_bn(model, f"{path}.shortcut", stride)

    def construct(self, x):
        out = self.conv2(self.conv1(x))
        if self.has_shortcut:
            return out + self.shortcut(x)
        return out + x


class PyramidBranch(nn.Cell):
    """Means of cells, projected and resized."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(POOLS[n], POOLS[n])
        self.conv = conv_bn_relu(model, f"branches.{n}")

    def construct(self, x):
        x = self.conv(self.pool(x))
        return ops.interpolate(x, size=(ROWS, COLUMNS), mode="bilinear", align_corners=False)


class FeatureNet(nn.Cell):
    """Features for the correlation, and reduced ones, of an image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = conv_bn_relu(model, "stem", 2)
        self.block1 = ResidualBlock(model, "blocks.0", 2, 1)
        self.block2 = ResidualBlock(model, "blocks.1", 1, 2)
        self.branches = nn.CellList([PyramidBranch(model, n) for n in range(len(POOLS))])
        self.fusion = conv_bn_relu(model, "fusion")
        self.group_conv = build_conv(model, "features")
        self.concat_conv = build_conv(model, "reduction")

    def construct(self, image):
        low = self.block1(self.stem(image))
        high = self.block2(low)
        features = (low, high)
        for branch in self.branches:
            features += (branch(high),)
        fused = self.fusion(ops.concat(features, 1))
        return self.group_conv(fused), self.concat_conv(fused)


class GroupCorrelation(nn.Cell):
    """The mean product of each group of channels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_groups_interleaved = model.are_groups_interleaved

    def construct(self, left, right):
        batch, _, rows, columns = left.shape
        product = left * right
        if self.are_groups_interleaved:
            return product.reshape(batch, GROUP_CHANNELS, GROUPS, rows, columns).mean(1)
        return product.reshape(batch, GROUPS, GROUP_CHANNELS, rows, columns).mean(2)


class FusedCorrelation(GroupCorrelation):
    """The same with its own backward pass, which repeats the gradient of a group."""

    def bprop(self, left, right, out, gradient):
        repeated = ops.repeat_interleave(gradient, GROUP_CHANNELS, 1)
        return repeated * right, repeated * left


class CostVolume(nn.Cell):
    """Correlations and features of both images at each disparity, zeros outside."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if model.is_correlation_gradient_summed:
            self.correlation = FusedCorrelation(model)
        else:
            self.correlation = GroupCorrelation(model)

    def construct(self, left, right, left_reduced, right_reduced):
        planes = ()
        for i in range(LEVELS):
            end = COLUMNS - i
            plane = ops.concat(
                (
                    self.correlation(left[:, :, :, i:], right[:, :, :, :end]),
                    left_reduced[:, :, :, i:],
                    right_reduced[:, :, :, :end],
                ),
                1,
            )
            if i > 0:
                zeros = ops.zeros((BATCH, GROUPS + 2 * REDUCED, ROWS, i), ms.float32)
                plane = ops.concat((zeros, plane), 3)
            planes += (plane,)
        return ops.stack(planes, 2)


class Hourglass(nn.Cell):
    """Half the size and back, with a skip connection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = conv_bn_relu(model, "hourglass.down", 2)
        self.conv2 = conv_bn_relu(model, "hourglass.middle")
        self.deconv = build_transposed(model, "hourglass.up")
        self.bn = build_norm(model, "hourglass.up")
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.relu(self.bn(self.deconv(self.conv2(self.conv1(x)))) + x)


class SoftArgmin(nn.Cell):
    """The mean disparity of costs."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_corners_aligned = model.are_corners_aligned
        self.softmax = nn.Softmax(axis=1)
        self.disparities = Tensor(np.arange(MAX_DISPARITY, dtype=np.float32).reshape(1, -1, 1, 1))

    def construct(self, cost):
        size = (MAX_DISPARITY, HEIGHT, WIDTH)
        cost = ops.interpolate(
            cost, size=size, mode="trilinear", align_corners=self.are_corners_aligned
        )
        probability = self.softmax(-cost.squeeze(1))
        return (probability * self.disparities).sum(1, keepdims=True)


class Aggregation(nn.Cell):
    """The disparities of two stages from a volume."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv0 = conv_bn_relu(model, "volume.0")
        self.conv1 = conv_bn_relu(model, "volume.1")
        self.hourglass = Hourglass(model)
        self.classifier0, self.classifier1 = (
            nn.SequentialCell(
                conv_bn_relu(model, f"costs.{n}.0"), build_conv(model, f"costs.{n}.1")
            )
            for n in range(STAGES)
        )
        self.soft_argmin = SoftArgmin(model)

    def construct(self, volume):
        out = self.conv1(self.conv0(volume))
        cost0 = self.classifier0(out)
        cost1 = self.classifier1(self.hourglass(out)) + cost0
        return self.soft_argmin(cost0), self.soft_argmin(cost1)


class Warp(nn.Cell):
    """An image read at the places that disparities say."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Tensor(np.arange(WIDTH, dtype=np.float32))

    def construct(self, image, disparity):
        places = ops.clamp(self.columns - disparity, 0.0, WIDTH - 1.0)
        first = ops.minimum(ops.floor(places), WIDTH - 2.0)
        share = places - first
        index = ops.broadcast_to(first.astype(ms.int32), image.shape)
        low = ops.gather_elements(image, 3, index)
        high = ops.gather_elements(image, 3, index + 1)
        return low * (1 - share) + high * share


class Refinement(nn.Cell):
    """A residual of the disparity from the images' distance."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.warp = Warp()
        self.conv1, self.conv2, self.conv3 = (
            build_conv(model, f"refinement.{n}", 1, dilation)
            for n, dilation in enumerate(DILATIONS)
        )
        self.act = nn.LeakyReLU(SLOPE)
        self.relu = nn.ReLU()

    def construct(self, left, right, disparity):
        error = ops.abs(left - self.warp(right, disparity))
        x = ops.concat((left, error, disparity / MAX_DISPARITY), 1)
        residual = self.conv3(self.act(self.conv2(self.act(self.conv1(x)))))
        return self.relu(disparity + residual)


class StereoNet(nn.Cell):
    """All disparities of the left image, and one of the right image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_net = FeatureNet(model)
        self.cost_volume = CostVolume(model)
        self.aggregation = Aggregation(model)
        self.refinement = Refinement(model)
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(DEVIATION, np.float32).reshape(1, 3, 1, 1))

    def construct(self, left, right):
        left_group, left_reduced = self.feature_net((left - self.mean) / self.std)
        right_group, right_reduced = self.feature_net((right - self.mean) / self.std)
        volume = self.cost_volume(left_group, right_group, left_reduced, right_reduced)
        disparity0, disparity1 = self.aggregation(volume)
        refined = self.refinement(left, right, disparity1)
        mirrored_volume = self.cost_volume(
            ops.flip(right_group, (3,)),
            ops.flip(left_group, (3,)),
            ops.flip(right_reduced, (3,)),
            ops.flip(left_reduced, (3,)),
        )
        _, mirrored = self.aggregation(mirrored_volume)
        return disparity0, disparity1, refined, ops.flip(mirrored, (3,))


class SSIM(nn.Cell):
    """The dissimilarity of windows, from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1)

    def construct(self, x, y):
        mean_x, mean_y = self.pool(x), self.pool(y)
        variance_x = self.pool(x * x) - mean_x * mean_x
        variance_y = self.pool(y * y) - mean_y * mean_y
        covariance = self.pool(x * y) - mean_x * mean_y
        numerator = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
        denominator = mean_x * mean_x + mean_y * mean_y + C1
        denominator = denominator * (variance_x + variance_y + C2)
        return ops.clamp((1 - numerator / denominator) / 2, 0.0, 1.0)


def compute_mean(values, mask):
    """Return the mean over channels and the pixels of a mask."""
    return (values * mask).sum() / (mask.sum() * values.shape[1])


class PhotometricLoss(nn.Cell):
    """The distance of an image from the other one, warped."""

    def __init__(self) -> None:
        super().__init__()
        self.warp = Warp()
        self.ssim = SSIM()

    def construct(self, image, other, disparity, mask):
        warped = self.warp(other, disparity)
        structure = compute_mean(self.ssim(warped, image), mask[:, :, 1:-1, 1:-1])
        colors = compute_mean(ops.abs(warped - image), mask)
        return SSIM_SHARE * structure + (1 - SSIM_SHARE) * colors


class SmoothnessLoss(nn.Cell):
    """The disparity's gradients where the image has none."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_edges_summed = model.are_edges_summed

    def compute_weight(self, edge):
        """Return the weights of colors' differences."""
        if self.are_edges_summed:
            return ops.exp(-EDGE_FACTOR * ops.abs(edge).sum(1, keepdims=True))
        return ops.exp(-EDGE_FACTOR * ops.abs(edge).mean(1, keep_dims=True))

    def construct(self, disparity, image, mask):
        disparity = disparity / (disparity.mean((2, 3), keep_dims=True) + 1e-7)
        gradient_x = ops.abs(disparity[:, :, :, :-1] - disparity[:, :, :, 1:])
        gradient_y = ops.abs(disparity[:, :, :-1] - disparity[:, :, 1:])
        weight_x = self.compute_weight(image[:, :, :, :-1] - image[:, :, :, 1:])
        weight_y = self.compute_weight(image[:, :, :-1] - image[:, :, 1:])
        loss_x = compute_mean(gradient_x * weight_x, mask[:, :, :, 1:])
        return loss_x + compute_mean(gradient_y * weight_y, mask[:, :, 1:])


class DisparityLoss(nn.Cell):
    """Smooth L1 of all disparities with a label."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.smooth_l1 = nn.SmoothL1Loss(reduction="none")
        self.are_far_counted = model.are_far_counted

    def construct(self, disparities, labels):
        valid = ops.greater(labels, 0.0)
        if not self.are_far_counted:
            valid = ops.logical_and(valid, ops.less(labels, float(MAX_DISPARITY)))
        mask = valid.astype(ms.float32)
        loss = 0.0
        for n in range(len(STAGE_WEIGHTS)):
            errors = self.smooth_l1(disparities[n], labels)
            loss = loss + STAGE_WEIGHTS[n] * (errors * mask).sum() / mask.sum()
        return loss


class PaddingMask(nn.Cell):
    """Which pixels are no padding, (BATCH, 1, HEIGHT, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Tensor(np.arange(HEIGHT, dtype=np.int32).reshape(1, 1, -1, 1))
        self.columns = Tensor(np.arange(WIDTH, dtype=np.int32).reshape(1, 1, 1, -1))

    def construct(self, sizes):
        sizes = sizes.reshape(BATCH, 2, 1, 1)
        below = ops.less(self.rows, sizes[:, :1])
        inside = ops.less(self.columns, sizes[:, 1:])
        return ops.logical_and(below, inside).astype(ms.float32)


class StereoWithLoss(nn.Cell):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = StereoNet(model)
        self.get_mask = PaddingMask()
        self.disparity_loss = DisparityLoss(model)
        self.photometric_loss = PhotometricLoss()
        self.smoothness_loss = SmoothnessLoss(model)
        self.warp = Warp()
        self.is_mask_mirrored = model.is_mask_mirrored

    def construct(self, left, right, labels, sizes):
        disparity0, disparity1, refined, right_disparity = self.network(left, right)
        loss = self.disparity_loss((disparity0, disparity1, refined), labels.expand_dims(1))
        mask = self.get_mask(sizes)
        photometric = self.photometric_loss(left, right, refined, mask)
        photometric = photometric + self.photometric_loss(
            ops.flip(right, (3,)),
            ops.flip(left, (3,)),
            ops.flip(right_disparity, (3,)),
            ops.flip(mask, (3,)) if self.is_mask_mirrored else mask,
        )
        smoothness = self.smoothness_loss(refined, left, mask)
        target = self.warp(ops.stop_gradient(right_disparity), refined)
        consistency = compute_mean(ops.abs(refined - target), mask)
        return (
            loss + PHOTOMETRIC * photometric + SMOOTHNESS * smoothness + CONSISTENCY * consistency
        )


class WrittenNorm(nn.Cell):
    """A convolution and a batch norm in plain arithmetic."""

    def __init__(self, model: Model, path: str, conv: nn.Cell) -> None:
        super().__init__()
        self.conv = conv
        weight, bias = (read(model, f"{path}.norm.{name}") for name in ("weight", "bias"))
        self.axes = (0, *range(2, model.weights[f"{path}.weight"].ndim))
        shape = (1, -1) + (1,) * (len(self.axes) - 1)
        self.scale, self.shift = Parameter(weight.reshape(shape)), Parameter(bias.reshape(shape))

    def construct(self, x):
        x = self.conv(x)
        centered = x - x.mean(self.axes, keep_dims=True)
        variance = ops.square(centered).mean(self.axes, keep_dims=True)
        return centered / ops.sqrt(variance + EPS) * self.scale + self.shift


def build_written(model: Model, path: str, stride: int = 1, dilation: int = 1) -> WrittenNorm:
    """Return a convolution and its norm."""
    return WrittenNorm(model, path, build_conv(model, path, stride, dilation))


def compute_shares(n_out: int, n_in: int) -> np.ndarray:
    """Return which share each of n_in cells has in n_out resized ones, (n_out, n_in)."""
    places = np.clip((np.arange(n_out) + 0.5) * n_in / n_out - 0.5, 0, n_in - 1)
    shares = np.maximum(1 - np.abs(places[:, None] - np.arange(n_in)), 0)
    return shares.astype(np.float32)


class WrittenFeatures(nn.Cell):
    """Both kinds of features of an image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_written(model, "stem", 2)
        self.down = build_written(model, "blocks.0.shortcut", 2)
        self.conv0a = build_written(model, "blocks.0.first", 2)
        self.conv0b = build_written(model, "blocks.0.second")
        self.conv1a = build_written(model, "blocks.1.first", 1, 2)
        self.conv1b = build_written(model, "blocks.1.second", 1, 2)
        self.pooled = nn.CellList(
            [build_written(model, f"branches.{n}") for n in range(len(POOLS))]
        )
        self.fusion = build_written(model, "fusion")
        self.group_head = build_conv(model, "features")
        self.concat_head = build_conv(model, "reduction")
        self.row_shares = [Tensor(compute_shares(ROWS, ROWS // pool)) for pool in POOLS]
        self.column_shares = [Tensor(compute_shares(COLUMNS, COLUMNS // pool).T) for pool in POOLS]

    def construct(self, image):
        x = mint.nn.functional.relu(self.stem(image))
        low = self.down(x) + self.conv0b(mint.nn.functional.relu(self.conv0a(x)))
        high = low + self.conv1b(mint.nn.functional.relu(self.conv1a(low)))
        features = (low, high)
        for n in range(len(POOLS)):
            pool = POOLS[n]
            blocks = high.reshape(BATCH, -1, ROWS // pool, pool, COLUMNS // pool, pool)
            x = mint.nn.functional.relu(self.pooled[n](blocks.mean((3, 5))))
            x = mint.matmul(mint.matmul(self.row_shares[n], x), self.column_shares[n])
            features += (x,)
        fused = mint.nn.functional.relu(self.fusion(mint.cat(features, 1)))
        return self.group_head(fused), self.concat_head(fused)


class WrittenAggregation(nn.Cell):
    """The disparities of two stages from features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entry0, self.entry1 = (build_written(model, f"volume.{n}") for n in range(2))
        self.down = build_written(model, "hourglass.down", 2)
        self.middle = build_written(model, "hourglass.middle")
        path = "hourglass.up"
        self.up = WrittenNorm(model, path, build_transposed(model, path))
        self.head0, self.head1 = (build_written(model, f"costs.{n}.0") for n in range(STAGES))
        self.out0, self.out1 = (build_conv(model, f"costs.{n}.1") for n in range(STAGES))
        columns = np.arange(COLUMNS) - np.arange(LEVELS)[:, None]
        self.index = Tensor(np.maximum(columns, 0).astype(np.int32))
        self.inside = Tensor((columns >= 0).astype(np.float32).reshape(LEVELS, 1, COLUMNS))
        self.levels, self.rows, self.columns = (
            Tensor(compute_shares(n_out, n_in))
            for n_out, n_in in ((MAX_DISPARITY, LEVELS), (HEIGHT, ROWS), (WIDTH, COLUMNS))
        )
        self.disparities = Tensor(np.arange(MAX_DISPARITY, dtype=np.float32).reshape(-1, 1, 1))

    def shift(self, features):
        """Return features (batch, channels, LEVELS, rows, columns) at each disparity."""
        shifted = ops.gather(features, self.index, 3)
        return mint.permute(shifted, (0, 1, 3, 2, 4)) * self.inside

    def regress(self, cost):
        """Return the mean disparity of a cost (batch, 1, LEVELS, rows, columns)."""
        cost = mint.matmul(cost.squeeze(1), mint.transpose(self.columns, 0, 1))
        cost = mint.matmul(self.rows, cost)
        cost = mint.matmul(self.levels, cost.reshape(BATCH, LEVELS, -1))
        cost = cost.reshape(BATCH, MAX_DISPARITY, HEIGHT, WIDTH)
        likelihood = mint.exp(ops.stop_gradient(cost.min(1, keepdims=True)) - cost)
        total = mint.sum(likelihood * self.disparities, 1, True)
        return total / mint.sum(likelihood, 1, True)

    def construct(self, left, right, left_reduced, right_reduced):
        products = left.expand_dims(2) * self.shift(right)
        products = products.reshape(BATCH, GROUPS, GROUP_CHANNELS, LEVELS, ROWS, COLUMNS)
        correlation = mint.sum(products, 2) / GROUP_CHANNELS
        own = left_reduced.expand_dims(2) * self.inside
        x = mint.cat((correlation, own, self.shift(right_reduced)), 1)
        x = mint.nn.functional.relu(self.entry1(mint.nn.functional.relu(self.entry0(x))))
        y = mint.nn.functional.relu(self.middle(mint.nn.functional.relu(self.down(x))))
        y = mint.nn.functional.relu(x + self.up(y))
        first = self.out0(mint.nn.functional.relu(self.head0(x)))
        second = first + self.out1(mint.nn.functional.relu(self.head1(y)))
        return self.regress(first), self.regress(second)


class WrittenLoss(nn.Cell):
    """The same losses in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.features = WrittenFeatures(model)
        self.aggregation = WrittenAggregation(model)
        self.refine0, self.refine1, self.refine2 = (
            build_conv(model, f"refinement.{n}", 1, dilation)
            for n, dilation in enumerate(DILATIONS)
        )
        deviation = np.array(DEVIATION, np.float32).reshape(3, 1, 1)
        self.factor = Tensor(1 / deviation)
        self.offset = Tensor(np.array(MEAN, np.float32).reshape(3, 1, 1) / deviation)
        self.columns = Tensor(np.arange(WIDTH, dtype=np.float32))
        self.rows = Tensor(np.arange(HEIGHT, dtype=np.float32).reshape(-1, 1))

    def warp(self, image, disparity):
        """Return an image at the places that disparities say, by the shares of all columns."""
        places = mint.clamp(self.columns - disparity.squeeze(1), min=0.0, max=WIDTH - 1.0)
        distances = mint.abs(places.expand_dims(2) - self.columns.expand_dims(1))
        shares = mint.nn.functional.relu(1 - distances)
        pixels = mint.permute(image, (0, 2, 1, 3))
        return mint.permute(mint.matmul(pixels, shares), (0, 2, 1, 3))

    def refine(self, left, right, disparity):
        """Return the refined disparity."""
        error = mint.abs(self.warp(right, disparity) - left)
        x = mint.cat((left, error, disparity / MAX_DISPARITY), 1)
        x = self.refine0(x)
        x = ops.maximum(x, SLOPE * x)
        x = self.refine1(x)
        x = ops.maximum(x, SLOPE * x)
        return mint.nn.functional.relu(self.refine2(x) + disparity)

    def average(self, x):
        """Return the means of windows of 3 x 3."""
        x = x[:, :, :, :-2] + x[:, :, :, 1:-1] + x[:, :, :, 2:]
        return (x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]) / 9

    def compute_distance(self, image, other, disparity, mask):
        """Return the photometric distance of an image from the other one, warped."""
        warped = self.warp(other, disparity)
        x, y = self.average(warped), self.average(image)
        squares = self.average(mint.square(warped) + mint.square(image))
        covariance = self.average(warped * image) - x * y
        sizes = mint.square(x) + mint.square(y)
        similarity = (2 * x * y + C1) / (sizes + C1)
        similarity = similarity * (2 * covariance + C2) / (squares - sizes + C2)
        structure = ops.clamp(0.5 - 0.5 * similarity, 0.0, 1.0)
        inner = mask[:, :, 1:-1, 1:-1]
        structure = mint.sum(mint.mean(structure, 1, True) * inner) / mint.sum(inner)
        colors = mint.mean(mint.abs(image - warped), 1, True)
        colors = mint.sum(colors * mask) / mint.sum(mask)
        return SSIM_SHARE * structure + (1 - SSIM_SHARE) * colors

    def compute_smooth_l1(self, disparity, labels, valid):
        """Return the mean from the part of an error below 1, and the rest."""
        error = mint.abs(labels - disparity)
        below = ops.minimum(error, 1.0)
        return mint.sum((0.5 * mint.square(below) + error - below) * valid) / mint.sum(valid)

    def construct(self, left, right, labels, sizes):
        left_features = self.features(left * self.factor - self.offset)
        right_features = self.features(right * self.factor - self.offset)
        first, second = self.aggregation(
            left_features[0], right_features[0], left_features[1], right_features[1]
        )
        refined = self.refine(left, right, second)
        _, mirrored = self.aggregation(
            mint.flip(right_features[0], (3,)),
            mint.flip(left_features[0], (3,)),
            mint.flip(right_features[1], (3,)),
            mint.flip(left_features[1], (3,)),
        )

        labels = labels.expand_dims(1)
        valid = (labels > 0).astype(ms.float32) * (labels < MAX_DISPARITY).astype(ms.float32)
        disparities = (first, second, refined)
        loss = 0.0
        for n in range(len(STAGE_WEIGHTS)):
            loss = loss + STAGE_WEIGHTS[n] * self.compute_smooth_l1(disparities[n], labels, valid)

        heights, widths = sizes[:, 0].reshape(-1, 1, 1, 1), sizes[:, 1].reshape(-1, 1, 1, 1)
        mask = (self.rows < heights).astype(ms.float32) * (self.columns < widths).astype(ms.float32)
        photometric = self.compute_distance(left, right, refined, mask) + self.compute_distance(
            mint.flip(right, (3,)), mint.flip(left, (3,)), mirrored, mint.flip(mask, (3,))
        )

        relative = refined / (refined.mean((1, 2, 3), keep_dims=True) + 1e-7)
        edges_x = mint.mean(mint.abs(left[:, :, :, 1:] - left[:, :, :, :-1]), 1, True)
        edges_y = mint.mean(mint.abs(left[:, :, 1:] - left[:, :, :-1]), 1, True)
        rough_x = mint.abs(relative[:, :, :, 1:] - relative[:, :, :, :-1]) * mask[:, :, :, 1:]
        rough_y = mint.abs(relative[:, :, 1:] - relative[:, :, :-1]) * mask[:, :, 1:]
        rough_x = rough_x / mint.exp(EDGE_FACTOR * edges_x)
        rough_y = rough_y / mint.exp(EDGE_FACTOR * edges_y)
        smoothness = mint.sum(rough_x) / mint.sum(mask[:, :, :, 1:])
        smoothness = smoothness + mint.sum(rough_y) / mint.sum(mask[:, :, 1:])

        target = self.warp(ops.stop_gradient(mint.flip(mirrored, (3,))), refined)
        consistency = mint.sum(mint.abs(target - refined) * mask) / mint.sum(mask)
        return (
            loss + PHOTOMETRIC * photometric + SMOOTHNESS * smoothness + CONSISTENCY * consistency
        )
