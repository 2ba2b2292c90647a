"""Self-supervised depth from video in MindSpore; frames are sampled by gathers.

CPU has no right gradient of ops.grid_sample. Variant 'written': batch norm, padding, pooling and
upsampling in plain arithmetic, sampling as two products with triangular weights, colors in the
last axis of sampled frames.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.monodepth.architecture import (
    BATCH,
    C1,
    C2,
    COLORS,
    DEPTH_WEIGHT,
    DEVIATION,
    EPS,
    FARTHEST,
    HEIGHT,
    MEAN,
    NEAREST,
    NOISE,
    PIXELS,
    POINTS,
    POSE_SCALE,
    SCALES,
    SMOOTHNESS,
    SOURCES,
    SSIM_SHARE,
    TARGET,
    TINY,
    WIDTH,
    Model,
)

MIN_DISPARITY, MAX_DISPARITY = 1 / FARTHEST, 1 / NEAREST


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else MonoDepthLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_conv(model: Model, path: str, stride: int = 1, padding: int | None = None) -> nn.Conv2d:
    """Return the convolution at a path, padded to keep the size if nothing else is said."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2 if padding is None else padding,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm at a path."""
    weight = read(model, f"{path}.weight")
    bias = read(model, f"{path}.bias")
    return nn.BatchNorm2d(len(weight), eps=EPS, gamma_init=weight, beta_init=bias)


class ResidualBlock(nn.Cell):
    """A residual block with stride 2."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = build_conv(model, f"{path}.conv1", 2)
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.conv2 = build_conv(model, f"{path}.conv2")
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.down_sample = nn.SequentialCell(
            build_conv(model, f"{path}.down", 2), build_norm(model, f"{path}.down_norm")
        )
        self.relu = nn.ReLU()

    def construct(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return self.relu(out + self.down_sample(x))


class Encoder(nn.Cell):
    """Features of a half, a fourth and an eighth of the size."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = build_conv(model, "encoder.stem", 2)
        self.norm = build_norm(model, "encoder.stem_norm")
        self.relu = nn.ReLU()
        self.block1 = ResidualBlock(model, "encoder.1")
        self.block2 = ResidualBlock(model, "encoder.2")

    def construct(self, image):
        half = self.relu(self.norm(self.conv((image - MEAN) / DEVIATION)))
        fourth = self.block1(half)
        return half, fourth, self.block2(fourth)


class ReflectedConv(nn.Cell):
    """Padding by reflection, and a convolution."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.conv = build_conv(model, path, padding=0)

    def construct(self, x):
        return self.conv(self.pad(x))


class DecoderStage(nn.Cell):
    """Features of twice the size, and their disparity."""

    def __init__(self, model: Model, number: int) -> None:
        super().__init__()
        path = f"decoder.{number}"
        self.size = (HEIGHT >> number, WIDTH >> number)
        self.conv0 = ReflectedConv(model, f"{path}.up")
        self.conv1 = ReflectedConv(model, f"{path}.join")
        self.disparity = ReflectedConv(model, f"{path}.disparity")
        self.elu0, self.elu1 = nn.ELU(), nn.ELU()
        self.sigmoid = nn.Sigmoid()

    def construct(self, x, skip=None):
        x = ops.interpolate(self.elu0(self.conv0(x)), size=self.size, mode="nearest")
        if skip is not None:
            x = ops.concat((x, skip), 1)
        x = self.elu1(self.conv1(x))
        return x, self.sigmoid(self.disparity(x))


class DepthNet(nn.Cell):
    """Disparities of all scales, the finest one first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = Encoder(model)
        self.stage2 = DecoderStage(model, 2)
        self.stage1 = DecoderStage(model, 1)
        self.stage0 = DecoderStage(model, 0)

    def construct(self, image):
        half, fourth, eighth = self.encoder(image)
        x, coarse = self.stage2(eighth, fourth)
        x, middle = self.stage1(x, half)
        _, fine = self.stage0(x)
        return fine, middle, coarse


class PoseNet(nn.Cell):
    """Axis-angle and translation, (batch, 3) each, between two frames."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            build_conv(model, "pose.0", 2),
            nn.ReLU(),
            build_conv(model, "pose.1", 2),
            nn.ReLU(),
            build_conv(model, "pose.2", 2),
            nn.ReLU(),
            build_conv(model, "pose.squeeze"),
            nn.ReLU(),
        )
        self.out = build_conv(model, "pose.out")

    def construct(self, first, second):
        x = (ops.concat((first, second), 1) - MEAN) / DEVIATION
        motion = POSE_SCALE * self.out(self.features(x)).mean((2, 3))
        return motion[:, :3], motion[:, 3:]


class PoseMatrix(nn.Cell):
    """The matrix (batch, 4, 4) of a motion, or of the inverse one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.last_row = Tensor(np.tile(np.float32([0, 0, 0, 1]), (BATCH, 1, 1)))
        self.last_column = Tensor(np.zeros((BATCH, 3, 1), np.float32))
        self.identity = Tensor(np.tile(np.eye(3, dtype=np.float32), (BATCH, 1, 1)))
        self.is_inverse_in_order = model.is_inverse_in_order

    def get_rotation(self, vector):
        """Return the rotation by Rodrigues' formula."""
        angle = ops.norm(vector, dim=1, keepdim=True)
        axis = vector / (angle + TINY)
        cosine, sine = ops.cos(angle), ops.sin(angle)
        x, y, z = axis[:, 0:1], axis[:, 1:2], axis[:, 2:3]
        rest = 1 - cosine
        entries = (
            x * x * rest + cosine,
            x * y * rest - z * sine,
            z * x * rest + y * sine,
            x * y * rest + z * sine,
            y * y * rest + cosine,
            y * z * rest - x * sine,
            z * x * rest - y * sine,
            y * z * rest + x * sine,
            z * z * rest + cosine,
        )
        return ops.concat(entries, 1).reshape(BATCH, 3, 3)

    def extend(self, left, column):
        """Return (batch, 4, 4) of a matrix (batch, 3, 3) and a column (batch, 3, 1)."""
        return ops.concat((ops.concat((left, column), 2), self.last_row), 1)

    def construct(self, axis_angle, translation, invert):
        rotation = self.get_rotation(axis_angle)
        if invert:
            rotation = rotation.swapaxes(1, 2)
            translation = -translation
        rotation = self.extend(rotation, self.last_column)
        shift = self.extend(self.identity, translation.expand_dims(2))
        if invert and not self.is_inverse_in_order:
            return ops.bmm(rotation, shift)
        return ops.bmm(shift, rotation)


class BackProjection(nn.Cell):
    """Points (batch, 4, PIXELS) of depths."""

    def __init__(self) -> None:
        super().__init__()
        x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
        pixels = np.stack([x.ravel(), y.ravel(), np.ones(PIXELS)]).astype(np.float32)
        self.pixels = Tensor(np.tile(pixels, (BATCH, 1, 1)))
        self.ones = Tensor(np.ones((BATCH, 1, PIXELS), np.float32))

    def construct(self, depth, inverse):
        rays = ops.bmm(inverse[:, :3, :3], self.pixels)
        return ops.concat((depth.reshape(BATCH, 1, PIXELS) * rays, self.ones), 1)


class Projection(nn.Cell):
    """Places (batch, HEIGHT, WIDTH, 2), from -1 to 1, of points in a camera."""

    def __init__(self) -> None:
        super().__init__()
        self.size = Tensor(np.float32([WIDTH - 1, HEIGHT - 1]))

    def construct(self, points, intrinsics, pose):
        camera = ops.bmm(intrinsics, pose)[:, :3]
        points = ops.bmm(camera, points)
        places = points[:, :2] / (points[:, 2:3] + TINY)
        places = places.reshape(BATCH, 2, HEIGHT, WIDTH).transpose(0, 2, 3, 1)
        return (places / self.size - 0.5) * 2


class GridSampler(nn.Cell):
    """A frame at places, bilinearly; the nearest pixel of the border beyond it."""

    def __init__(self) -> None:
        super().__init__()
        self.tile, self.gather_d, self.stack = ops.Tile(), ops.GatherD(), ops.Stack(axis=-1)

    def locate(self, grid):
        """Return columns and rows (batch, PIXELS) of places."""
        x = (grid[..., 0].reshape(BATCH, PIXELS) + 1) * (0.5 * (WIDTH - 1))
        y = (grid[..., 1].reshape(BATCH, PIXELS) + 1) * (0.5 * (HEIGHT - 1))
        x = ops.minimum(ops.maximum(x, 0.0), WIDTH - 1.0)
        return x, ops.minimum(ops.maximum(y, 0.0), HEIGHT - 1.0)

    def gather(self, frame, rows, columns):
        """Return pixels (batch, COLORS, PIXELS)."""
        index = (rows * WIDTH + columns).astype(ms.int32).expand_dims(1)
        index = self.tile(index, (1, COLORS, 1))
        return self.gather_d(frame.reshape(BATCH, COLORS, PIXELS), 2, index)

    def gather_corners(self, frame, x, y):
        """Return the four pixels around each place, and its shares of the right and lower ones."""
        left, top = ops.stop_gradient(ops.floor(x)), ops.stop_gradient(ops.floor(y))
        right, bottom = ops.minimum(left + 1, WIDTH - 1.0), ops.minimum(top + 1, HEIGHT - 1.0)
        corners = (
            self.gather(frame, top, left),
            self.gather(frame, top, right),
            self.gather(frame, bottom, left),
            self.gather(frame, bottom, right),
        )
        return corners, (x - left).expand_dims(1), (y - top).expand_dims(1)

    def construct(self, frame, grid):
        x, y = self.locate(grid)
        corners, right_share, lower_share = self.gather_corners(frame, x, y)
        upper = corners[0] * (1 - right_share) + corners[1] * right_share
        lower = corners[2] * (1 - right_share) + corners[3] * right_share
        out = upper * (1 - lower_share) + lower * lower_share
        return out.reshape(BATCH, COLORS, HEIGHT, WIDTH)


class FusedGridSampler(GridSampler):
    """The same with its own backward pass, whose gradient is that of columns and rows."""

    def bprop(self, frame, grid, out, gradient):
        x, y = self.locate(grid)
        corners, right_share, lower_share = self.gather_corners(frame, x, y)
        upper, lower = corners[1] - corners[0], corners[3] - corners[2]
        left, right = corners[2] - corners[0], corners[3] - corners[1]
        along_x = upper * (1 - lower_share) + lower * lower_share
        along_y = left * (1 - right_share) + right * right_share
        gradient = gradient.reshape(BATCH, COLORS, PIXELS)
        is_inside_x = ops.logical_and(x > 0, x < WIDTH - 1).astype(ms.float32)
        is_inside_y = ops.logical_and(y > 0, y < HEIGHT - 1).astype(ms.float32)
        gradient_x = (gradient * along_x).sum(1) * is_inside_x
        gradient_y = (gradient * along_y).sum(1) * is_inside_y
        grid_gradient = self.stack((gradient_x, gradient_y))
        return ops.zeros_like(frame), grid_gradient.reshape(BATCH, HEIGHT, WIDTH, 2)


class SSIM(nn.Cell):
    """(1 - SSIM) / 2 of two images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_padded_same = model.is_ssim_padded_same
        self.pad = nn.ReflectionPad2d(1)
        self.pool = nn.AvgPool2d(3, 1, pad_mode="same" if self.is_padded_same else "valid")

    def construct(self, x, y):
        if not self.is_padded_same:
            x, y = self.pad(x), self.pad(y)
        mean_x, mean_y = self.pool(x), self.pool(y)
        variance_x = self.pool(x * x) - mean_x * mean_x
        variance_y = self.pool(y * y) - mean_y * mean_y
        covariance = self.pool(x * y) - mean_x * mean_y
        numerator = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
        denominator = mean_x * mean_x + mean_y * mean_y + C1
        denominator = denominator * (variance_x + variance_y + C2)
        return ops.clamp((1 - numerator / denominator) / 2, 0, 1)


class PhotometricError(nn.Cell):
    """Errors (batch, 1, HEIGHT, WIDTH) of a frame."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ssim = SSIM(model)

    def construct(self, frame, target):
        distance = ops.abs(target - frame).mean(1, keep_dims=True)
        dissimilarity = self.ssim(frame, target).mean(1, keep_dims=True)
        return SSIM_SHARE * dissimilarity + (1 - SSIM_SHARE) * distance


class MaskedMean(nn.Cell):
    """The mean of errors (batch, 1, HEIGHT, WIDTH) that the mask shows."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_hidden_counted = model.are_hidden_counted

    def construct(self, errors, mask):
        errors = errors * mask
        return errors.mean() if self.are_hidden_counted else errors.sum() / mask.sum()


class SmoothLoss(nn.Cell):
    """Smoothness of a disparity, less where colors change."""

    def construct(self, disparity, image):
        mean = disparity.mean((2, 3), keep_dims=True)
        disparity = disparity / (mean + TINY)
        change_x = ops.abs(disparity[:, :, :, :-1] - disparity[:, :, :, 1:])
        change_y = ops.abs(disparity[:, :, :-1] - disparity[:, :, 1:])
        edge_x = ops.abs(image[:, :, :, :-1] - image[:, :, :, 1:]).mean(1, keep_dims=True)
        edge_y = ops.abs(image[:, :, :-1] - image[:, :, 1:]).mean(1, keep_dims=True)
        return (change_x * ops.exp(-edge_x)).mean() + (change_y * ops.exp(-edge_y)).mean()


class SparseDepthLoss(nn.Cell):
    """Distance of logarithms of depths at some pixels, with the scale aligned."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = Tensor(np.arange(POINTS, dtype=np.int32))

    def construct(self, depth, pixels, sparse, counts):
        valid = (self.numbers < counts.expand_dims(1)).astype(ms.float32)
        predicted = ops.gather_elements(depth.reshape(BATCH, PIXELS), 1, pixels)
        total = (predicted * valid).sum(1, keepdims=True)
        ratio = ops.stop_gradient((sparse * valid).sum(1, keepdims=True) / total)
        error = ops.log(ops.maximum(sparse, TINY)) - ops.log(predicted * ratio)
        return (ops.abs(error) * valid).sum() / valid.sum()


class MonoDepthLoss(nn.Cell):
    """Photometric error, smoothness and sparse depths."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.depth_net, self.pose_net = DepthNet(model), PoseNet(model)
        self.pose_matrix = PoseMatrix(model)
        self.back_project, self.project = BackProjection(), Projection()
        is_fused = model.is_warp_gradient_in_pixels
        self.sample = FusedGridSampler() if is_fused else GridSampler()
        self.photometric_error = PhotometricError(model)
        self.masked_mean = MaskedMean(model)
        self.smooth_loss, self.depth_loss = SmoothLoss(), SparseDepthLoss()
        self.pools = nn.CellList([nn.AvgPool2d(2**n, 2**n) for n in range(SCALES)])

    def get_poses(self, frames):
        """Return matrices from the target to the frames before and behind it."""
        before = self.pose_net(frames[:, SOURCES[0]], frames[:, TARGET])
        behind = self.pose_net(frames[:, TARGET], frames[:, SOURCES[1]])
        return self.pose_matrix(*before, True), self.pose_matrix(*behind, False)

    def construct(
        self, frames, augmented, intrinsics, inverse, mask, noise, pixels, sparse, counts
    ):
        disparities = self.depth_net(augmented[:, TARGET])
        poses = self.get_poses(augmented)
        target = frames[:, TARGET]
        unwarped = ()
        for source in SOURCES:
            unwarped += (self.photometric_error(frames[:, source], target),)
        unwarped = ops.concat(unwarped, 1) + NOISE * noise

        loss, depths = 0.0, ()
        for scale in range(SCALES):
            disparity = disparities[scale]
            full = ops.interpolate(
                disparity, size=(HEIGHT, WIDTH), mode="bilinear", align_corners=False
            )
            depth = 1 / (MIN_DISPARITY + (MAX_DISPARITY - MIN_DISPARITY) * full)
            depths += (depth,)
            points = self.back_project(depth, inverse)
            errors = (unwarped,)
            for n in range(len(SOURCES)):
                grid = self.project(points, intrinsics, poses[n])
                warped = self.sample(frames[:, SOURCES[n]], grid)
                errors += (self.photometric_error(warped, target),)
            least, _ = ops.min(ops.concat(errors, 1), axis=1, keepdims=True)
            smoothness = self.smooth_loss(disparity, self.pools[scale](target))
            loss = loss + self.masked_mean(least, mask) + SMOOTHNESS / 2**scale * smoothness
        loss = loss / SCALES
        return loss + DEPTH_WEIGHT * self.depth_loss(depths[0], pixels, sparse, counts)


class WrittenNorm(nn.Cell):
    """Batch norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight").reshape(-1, 1, 1))
        self.shift = Parameter(read(model, f"{path}.bias").reshape(-1, 1, 1))

    def construct(self, x):
        centered = x - mint.mean(x, (0, 2, 3), True)
        variance = mint.mean(mint.square(centered), (0, 2, 3), True)
        return centered * mint.rsqrt(variance + EPS) * self.gain + self.shift


class WrittenBlock(nn.Cell):
    """A residual block with stride 2."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.first = build_conv(model, f"{path}.conv1", 2)
        self.first_norm = WrittenNorm(model, f"{path}.norm1")
        self.second = build_conv(model, f"{path}.conv2")
        self.second_norm = WrittenNorm(model, f"{path}.norm2")
        self.short = build_conv(model, f"{path}.down", 2)
        self.short_norm = WrittenNorm(model, f"{path}.down_norm")

    def construct(self, x):
        short = self.short_norm(self.short(x))
        x = mint.nn.functional.relu(self.first_norm(self.first(x)))
        return mint.nn.functional.relu(short + self.second_norm(self.second(x)))


def reflect(x):
    """Return the image with the second row and column on the other side of the first ones."""
    x = mint.cat((x[:, :, 1:2], x, x[:, :, -2:-1]), 2)
    return mint.cat((x[:, :, :, 1:2], x, x[:, :, :, -2:-1]), 3)


def apply_elu(x):
    """Return ELU from exponentials."""
    return mint.nn.functional.relu(x) + mint.exp(ops.minimum(x, 0.0)) - 1


class WrittenStage(nn.Cell):
    """Features of twice the size, and their disparity."""

    def __init__(self, model: Model, number: int) -> None:
        super().__init__()
        self.up = build_conv(model, f"decoder.{number}.up", padding=0)
        self.join = build_conv(model, f"decoder.{number}.join", padding=0)
        self.out = build_conv(model, f"decoder.{number}.disparity", padding=0)

    def grow(self, x):
        """Return features of twice the size."""
        x = apply_elu(self.up(reflect(x)))
        x = ops.stack((x, x), 4).flatten(start_dim=3)
        return ops.stack((x, x), 3).flatten(start_dim=2, end_dim=3)

    def finish(self, x):
        """Return features and disparity of what is joined."""
        x = apply_elu(self.join(reflect(x)))
        return x, mint.sigmoid(self.out(reflect(x)))


def build_upsampling(length: int, factor: int) -> np.ndarray:
    """Return the matrix (length, length / factor) of linear upsampling."""
    n_in = length // factor
    places = np.clip((np.arange(length) + 0.5) / factor - 0.5, 0, n_in - 1)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(n_in)), 0).astype(np.float32)


class WrittenPose(nn.Cell):
    """Rotation (batch, 3, 3) and translation (batch, 3, 1) between two frames."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv0, self.conv1, self.conv2 = (build_conv(model, f"pose.{n}", 2) for n in range(3))
        self.mix = build_conv(model, "pose.squeeze")
        self.out = build_conv(model, "pose.out")
        self.identity = Tensor(np.eye(3, dtype=np.float32))

    def construct(self, pair):
        x = mint.nn.functional.relu(self.conv0((pair - MEAN) / DEVIATION))
        x = mint.nn.functional.relu(self.conv1(x))
        x = mint.nn.functional.relu(self.conv2(x))
        x = self.out(mint.nn.functional.relu(self.mix(x)))
        motion = mint.mean(x.reshape(BATCH, -1, x.shape[2] * x.shape[3]), -1) * POSE_SCALE
        vector, shift = motion[:, :3].expand_dims(2), motion[:, 3:].expand_dims(2)
        angle = mint.sqrt(mint.sum(mint.square(vector), 1, True))
        axis = vector / (angle + TINY)
        x, y, z, zero = axis[:, 0:1], axis[:, 1:2], axis[:, 2:3], mint.zeros_like(axis[:, 0:1])
        rows = (
            mint.cat((zero, -z, y), 2),
            mint.cat((z, zero, -x), 2),
            mint.cat((-y, x, zero), 2),
        )
        outer = mint.matmul(axis, axis.permute(0, 2, 1))
        cosine = mint.cos(angle)
        rotation = cosine * self.identity + (1 - cosine) * outer
        return rotation + mint.sin(angle) * mint.cat(rows, 1), shift


def average(x):
    """Return means of 3 x 3 pixels, padded by reflection."""
    x = reflect(x)
    x = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    return (x[:, :, :, :-2] + x[:, :, :, 1:-1] + x[:, :, :, 2:]) / 9


def compare(warped, target):
    """Return errors (batch, HEIGHT, WIDTH) of a frame."""
    mean_a, mean_b = average(warped), average(target)
    product, squares = mean_a * mean_b, mint.square(mean_a) + mint.square(mean_b)
    covariance = average(warped * target) - product
    variances = average(mint.square(warped) + mint.square(target)) - squares
    similarity = (2 * product + C1) / (squares + C1) * ((2 * covariance + C2) / (variances + C2))
    dissimilarity = mint.clamp(0.5 * (1 - similarity), 0, 1)
    distance = mint.abs(warped - target)
    return mint.mean(distance + SSIM_SHARE * (dissimilarity - distance), 1)


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_conv(model, "encoder.stem", 2)
        self.stem_norm = WrittenNorm(model, "encoder.stem_norm")
        self.block1 = WrittenBlock(model, "encoder.1")
        self.block2 = WrittenBlock(model, "encoder.2")
        self.coarse, self.middle, self.fine = (WrittenStage(model, n) for n in (2, 1, 0))
        self.pose = WrittenPose(model)
        y, x = np.indices((HEIGHT, WIDTH)).reshape(2, PIXELS)
        self.pixels = Tensor(np.stack([x, y, np.ones(PIXELS)]).astype(np.float32))
        self.columns = Tensor(np.arange(WIDTH, dtype=np.float32))
        self.rows = Tensor(np.arange(HEIGHT, dtype=np.float32))
        self.point_numbers = Tensor(np.arange(POINTS, dtype=np.int32))
        self.pixel_numbers = Tensor(np.arange(PIXELS, dtype=np.int32))
        self.up_rows1, self.up_columns1 = self.build_matrices(2)
        self.up_rows2, self.up_columns2 = self.build_matrices(4)

    @staticmethod
    def build_matrices(factor: int) -> tuple[Tensor, Tensor]:
        """Return matrices of upsampling from the left and from the right."""
        rows, columns = build_upsampling(HEIGHT, factor), build_upsampling(WIDTH, factor)
        return Tensor(rows), Tensor(np.ascontiguousarray(columns.T))

    def predict(self, image):
        """Return disparities, the finest one first."""
        half = mint.nn.functional.relu(self.stem_norm(self.stem((image - MEAN) / DEVIATION)))
        fourth = self.block1(half)
        x = self.coarse.grow(self.block2(fourth))
        x, coarse = self.coarse.finish(mint.cat((x, fourth), 1))
        x, middle = self.middle.finish(mint.cat((self.middle.grow(x), half), 1))
        _, fine = self.fine.finish(self.fine.grow(x))
        return fine, middle, coarse

    def warp(self, frame, depth, rays, intrinsics, rotation, shift):
        """Return the frame, seen from the target: products with triangular weights."""
        points = mint.matmul(rotation, rays * depth.reshape(BATCH, 1, PIXELS)) + shift
        points = mint.matmul(intrinsics, points)
        distance = points[:, 2] + TINY
        x = mint.clamp(points[:, 0] / distance, 0, WIDTH - 1).expand_dims(2)
        y = mint.clamp(points[:, 1] / distance, 0, HEIGHT - 1).expand_dims(2)
        x_weights = mint.nn.functional.relu(1 - mint.abs(x - self.columns))
        y_weights = mint.nn.functional.relu(1 - mint.abs(y - self.rows))
        by_column = frame.permute(0, 2, 3, 1).reshape(BATCH, HEIGHT, WIDTH * COLORS)
        lines = mint.matmul(y_weights, by_column).reshape(BATCH, PIXELS, WIDTH, COLORS)
        colors = mint.sum(lines * x_weights.expand_dims(3), 2)
        return colors.permute(0, 2, 1).reshape(BATCH, COLORS, HEIGHT, WIDTH)

    def get_smoothness(self, disparity, image):
        """Return the smoothness of a disparity."""
        smooth = disparity / (mint.mean(disparity, (1, 2, 3), True) + TINY)
        edges = mint.mean(mint.abs(image[:, :, 1:] - image[:, :, :-1]), 1, True)
        by_row = mint.mean(mint.abs(smooth[:, :, 1:] - smooth[:, :, :-1]) / mint.exp(edges))
        edges = mint.mean(mint.abs(image[..., 1:] - image[..., :-1]), 1, True)
        by_column = mint.mean(mint.abs(smooth[..., 1:] - smooth[..., :-1]) / mint.exp(edges))
        return by_row + by_column

    def get_depth_error(self, depth, pixels, sparse, counts):
        """Return the distance of logarithms of depths."""
        chosen = (pixels.expand_dims(2) == self.pixel_numbers).astype(ms.float32)
        own = mint.matmul(chosen, depth.reshape(BATCH, PIXELS, 1)).squeeze(2)
        is_point = self.point_numbers < counts.expand_dims(1)
        known = mint.where(is_point, sparse, mint.ones_like(sparse))
        is_point = is_point.astype(ms.float32)
        totals = mint.sum(own * is_point, 1, True)
        shift = mint.log(mint.sum(sparse, 1, True)) - mint.log(totals)
        error = mint.abs(mint.log(own) + ops.stop_gradient(shift) - mint.log(known))
        return mint.sum(error * is_point) / mint.sum(is_point)

    def construct(
        self, frames, augmented, intrinsics, inverse, mask, noise, pixels, sparse, counts
    ):
        fine, middle, coarse = self.predict(augmented[:, TARGET])
        full = (
            fine,
            mint.matmul(mint.matmul(self.up_rows1, middle), self.up_columns1),
            mint.matmul(mint.matmul(self.up_rows2, coarse), self.up_columns2),
        )
        before_rotation, before_shift = self.pose(augmented[:, :2].flatten(start_dim=1, end_dim=2))
        rotation, shift = self.pose(augmented[:, 1:].flatten(start_dim=1, end_dim=2))
        before_rotation = before_rotation.permute(0, 2, 1)
        before_shift = mint.matmul(before_rotation, -before_shift)

        before, target, behind = frames[:, 0], frames[:, 1], frames[:, 2]
        unmoved = mint.minimum(
            compare(before, target) + NOISE * noise[:, 0],
            compare(behind, target) + NOISE * noise[:, 1],
        )
        camera, rays = intrinsics[:, :3, :3], mint.matmul(inverse[:, :3, :3], self.pixels)
        loss, image, depths = 0.0, target, ()
        for n in range(SCALES):
            span = MAX_DISPARITY - MIN_DISPARITY
            depths += (mint.reciprocal(full[n] * span + MIN_DISPARITY),)
            moved = self.warp(before, depths[n], rays, camera, before_rotation, before_shift)
            error = mint.minimum(unmoved, compare(moved, target))
            moved = self.warp(behind, depths[n], rays, camera, rotation, shift)
            error = mint.minimum(error, compare(moved, target)) * mask[:, 0]
            loss = loss + mint.sum(error) / mint.sum(mask)

            if n > 0:
                image = image[:, :, ::2] + image[:, :, 1::2]
                image = (image[..., ::2] + image[..., 1::2]) / 4
            disparity = (fine, middle, coarse)[n]
            loss = loss + SMOOTHNESS * 0.5**n * self.get_smoothness(disparity, image)
        depth_error = self.get_depth_error(depths[0], pixels, sparse, counts)
        return loss / SCALES + DEPTH_WEIGHT * depth_error
