"""Gaussian splatting in MindSpore for graph mode.

Variant 'unsorted': nothing is sorted, a point's transmittance is a sum over all points before it;
rotations from products of quaternions that are not normalized, harmonics from products of
directions, the mlp's first layer in parts, windows of SSIM as products with bands.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.splat.architecture import (
    BLUR,
    C0,
    C1,
    C2,
    DEPTH,
    EMBEDDING,
    ENTROPY,
    FEATURE,
    FRUSTUM,
    HARMONICS,
    HEIGHT,
    IMAGES,
    LAYERS,
    MAX_ALPHA,
    MAX_RATIO,
    MIN_ALPHA,
    PIXELS,
    POINTS,
    RATIO,
    SIZE,
    SSIM_C1,
    SSIM_C2,
    SSIM_SHARE,
    VIEWS,
    WIDTH,
    WINDOW,
    Model,
    make_window,
)

FAR_AWAY = 1e10
TINY = 1e-10


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return UnsortedLoss(model) if model.variant == "unsorted" else SplatWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def read_parameter(model: Model, name: str, new_name: str) -> Parameter:
    """Return a weight as a parameter."""
    return Parameter(read(model, name), name=new_name)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


class Normalize(nn.Cell):
    """Vectors of length 1."""

    def construct(self, x):
        return x / ops.sqrt(ops.square(x).sum(-1, keepdims=True))


class FusedNormalize(Normalize):
    """The same with its own backward pass, which takes vectors for normalized ones."""

    def bprop(self, x, out, gradient):
        return (gradient,)


class GaussianModel(nn.Cell):
    """The points: covariances, opacities and coefficients."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.xyz = read_parameter(model, "positions", "xyz")
        self.scaling = read_parameter(model, "log_scales", "scaling")
        self.rotation = read_parameter(model, "quaternions", "rotation")
        self.opacity = read_parameter(model, "opacities", "opacity")
        self.features_dc = read_parameter(model, "harmonics.dc", "features_dc")
        self.features_rest = read_parameter(model, "harmonics.rest", "features_rest")
        self.features = read_parameter(model, "features", "features")
        self.normalize = FusedNormalize() if model.is_normalization_passed else Normalize()
        self.is_rotation_transposed = model.is_rotation_transposed

    def get_covariance(self):
        """Return (POINTS, 3, 3)."""
        w, x, y, z = ops.split(self.normalize(self.rotation), 1, axis=1)
        rotation = ops.concat(
            (
                1 - 2 * (y * y + z * z),
                2 * (x * y - w * z),
                2 * (x * z + w * y),
                2 * (x * y + w * z),
                1 - 2 * (x * x + z * z),
                2 * (y * z - w * x),
                2 * (x * z - w * y),
                2 * (y * z + w * x),
                1 - 2 * (x * x + y * y),
            ),
            1,
        ).reshape(POINTS, 3, 3)
        if self.is_rotation_transposed:
            rotation = rotation.transpose(0, 2, 1)
        scaled = rotation * ops.exp(self.scaling).expand_dims(1)
        return ops.matmul(scaled, scaled.transpose(0, 2, 1))

    def construct(self):
        coefficients = ops.concat((self.features_dc, self.features_rest), 1)
        return self.get_covariance(), ops.sigmoid(self.opacity), coefficients


class FusedCompensation(nn.Cell):
    """Compensated opacities (VIEWS, POINTS), with a backward pass of those without compensation."""

    def construct(self, opacity, compensation):
        return opacity * compensation

    def bprop(self, opacity, compensation, out, gradient):
        return gradient.sum(0), gradient * opacity


class Projector(nn.Cell):
    """Means, conics and compensations of opacities in images, depths, and which points are seen."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.near = model.near
        self.is_compensated = model.is_compensated

    def construct(self, xyz, covariance, viewmats, intrinsics, sizes):
        rotation = viewmats[:, :3, :3]
        points = ops.matmul(xyz, rotation.transpose(0, 2, 1)) + viewmats[:, :3, 3].expand_dims(1)
        x, y, depth = points[:, :, 0], points[:, :, 1], points[:, :, 2]
        visible = ops.greater(depth, self.near)
        z = ops.where(visible, depth, ops.ones_like(depth))
        fx, fy, cx, cy = ops.split(intrinsics, 1, axis=1)
        means = ops.stack((fx * x / z + cx, fy * y / z + cy), -1)

        limit_x = 0.5 * FRUSTUM * sizes[:, 1:].astype(ms.float32) / fx
        limit_y = 0.5 * FRUSTUM * sizes[:, :1].astype(ms.float32) / fy
        slope_x = ops.minimum(ops.maximum(x / z, -limit_x), limit_x)
        slope_y = ops.minimum(ops.maximum(y / z, -limit_y), limit_y)
        zeros = ops.zeros_like(z)
        jacobian = ops.stack(
            (fx / z, zeros, -fx * slope_x / z, zeros, fy / z, -fy * slope_y / z), -1
        )
        transform = ops.matmul(jacobian.reshape(VIEWS, POINTS, 2, 3), rotation.expand_dims(1))
        projected = ops.matmul(ops.matmul(transform, covariance), transform.swapaxes(-1, -2))
        a, b, c = projected[:, :, 0, 0], projected[:, :, 0, 1], projected[:, :, 1, 1]
        sharp_det = a * c - b * b
        a, c = a + BLUR, c + BLUR
        det = a * c - b * b
        conics = ops.stack((c / det, -b / det, a / det), -1)
        if self.is_compensated:
            compensation = ops.sqrt(ops.relu(sharp_det / det))
        else:
            compensation = ops.ones_like(det)
        return means, conics, compensation, z, visible


class SHColor(nn.Cell):
    """Colors of points as cameras see them, (VIEWS, POINTS, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = Normalize()

    def construct(self, xyz, coefficients, viewmats):
        rotation = viewmats[:, :3, :3]
        centers = -ops.matmul(rotation.transpose(0, 2, 1), viewmats[:, :3, 3:]).squeeze(-1)
        directions = self.normalize(xyz - centers.expand_dims(1))
        x, y, z = directions[:, :, 0], directions[:, :, 1], directions[:, :, 2]
        basis = ops.stack(
            (
                C0 * ops.ones_like(x),
                -C1 * y,
                C1 * z,
                -C1 * x,
                C2[0] * x * y,
                C2[1] * y * z,
                C2[2] * (2.0 * z * z - x * x - y * y),
                C2[3] * x * z,
                C2[4] * (x * x - y * y),
            ),
            -1,
        )
        colors = ops.matmul(basis.expand_dims(2), coefficients).squeeze(2)
        return ops.relu(colors + 0.5)


class AppearanceNet(nn.Cell):
    """Colors of points as they are in an image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = read(model, "images.weight")
        self.embedding = nn.Embedding(IMAGES, EMBEDDING, embedding_table=table)
        self.mlp = nn.SequentialCell(
            build_dense(model, "mlp.0"),
            nn.ReLU(),
            build_dense(model, "mlp.1"),
            nn.ReLU(),
            build_dense(model, "mlp.2"),
        )

    def construct(self, colors, features, image_ids):
        embedding = self.embedding(image_ids).expand_dims(1)
        embedding = ops.broadcast_to(embedding, (VIEWS, POINTS, EMBEDDING))
        features = ops.broadcast_to(features, (VIEWS, POINTS, FEATURE))
        gain, shift = ops.chunk(self.mlp(ops.concat((embedding, features, colors), -1)), 2, axis=-1)
        return ops.relu(colors * (1.0 + gain) + shift)


def compute_alpha(means, conics, opacity, visible, grid):
    """Return the alpha of each point at each pixel, (VIEWS, POINTS, PIXELS)."""
    dx = grid[:, 0] - means[:, :, 0:1]
    dy = grid[:, 1] - means[:, :, 1:2]
    power = -0.5 * (conics[:, :, 0:1] * dx * dx + conics[:, :, 2:3] * dy * dy)
    power = power - conics[:, :, 1:2] * dx * dy
    alpha = ops.minimum(opacity.expand_dims(-1) * ops.exp(power), MAX_ALPHA)
    kept = ops.logical_and(ops.greater_equal(alpha, MIN_ALPHA), visible.expand_dims(-1))
    return ops.where(kept, alpha, ops.zeros_like(alpha))


def make_grid() -> Tensor:
    """Return the centers of pixels, (PIXELS, 2)."""
    rows, columns = np.divmod(np.arange(PIXELS), WIDTH)
    return Tensor(np.stack((columns, rows), -1) + 0.5, ms.float32)


class Rasterizer(nn.Cell):
    """Images (VIEWS, PIXELS, 3) and depths (VIEWS, PIXELS)."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = make_grid()
        self.cumprod = ops.CumProd(exclusive=True)

    def construct(self, means, conics, opacity, colors, z, visible, background):
        _, order = ops.sort(ops.where(visible, z, ops.full_like(z, FAR_AWAY)), axis=1)
        means = ops.gather(means, order, 1, batch_dims=1)
        conics = ops.gather(conics, order, 1, batch_dims=1)
        opacity = ops.gather(opacity, order, 1, batch_dims=1)
        colors = ops.gather(colors, order, 1, batch_dims=1)
        z = ops.gather(z, order, 1, batch_dims=1)
        visible = ops.gather(visible, order, 1, batch_dims=1)
        alpha = compute_alpha(means, conics, opacity, visible, self.grid)
        transmittance = self.cumprod(1.0 - alpha, 1)
        weights = alpha * transmittance
        left = transmittance[:, -1] * (1.0 - alpha[:, -1])
        image = ops.bmm(weights.transpose(0, 2, 1), colors) + left.expand_dims(-1) * background
        depth = (weights * z.expand_dims(-1)).sum(1) / ops.maximum(weights.sum(1), TINY)
        return image, depth


class SSIM(nn.Cell):
    """The similarity of windows, (VIEWS, 3, HEIGHT, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        window = np.outer(make_window(), make_window())
        self.window = Tensor(np.tile(window, (3, 1, 1, 1)))

    def blur(self, x):
        """Return the mean of windows."""
        return ops.conv2d(x, self.window, pad_mode="pad", padding=WINDOW // 2, groups=3)

    def construct(self, x, y):
        mean_x, mean_y = self.blur(x), self.blur(y)
        variance_x = self.blur(x * x) - mean_x * mean_x
        variance_y = self.blur(y * y) - mean_y * mean_y
        covariance = self.blur(x * y) - mean_x * mean_y
        numerator = (2 * mean_x * mean_y + SSIM_C1) * (2 * covariance + SSIM_C2)
        denominator = mean_x * mean_x + mean_y * mean_y + SSIM_C1
        return numerator / (denominator * (variance_x + variance_y + SSIM_C2))


class PhotometricLoss(nn.Cell):
    """L1 distance and dissimilarity of the pixels that count."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ssim = SSIM()
        self.are_hidden_counted = model.are_hidden_counted

    def construct(self, image, target, mask):
        mask = mask.expand_dims(1)
        image = image.reshape(VIEWS, HEIGHT, WIDTH, 3).transpose(0, 3, 1, 2) * mask
        target = target.transpose(0, 3, 1, 2) * mask
        count = 3 * mask.sum()
        error = ops.abs(image - target)
        l1 = error.mean() if self.are_hidden_counted else error.sum() / count
        similarity = (self.ssim(image, target) * mask).sum() / count
        return (1 - SSIM_SHARE) * l1 + SSIM_SHARE * (1 - similarity)


class RegularizationLoss(nn.Cell):
    """Entropy of opacities, sizes, and ratios of sizes."""

    def construct(self, opacity, scaling):
        entropy = -opacity * ops.log(opacity) - (1 - opacity) * ops.log(1 - opacity)
        scale = ops.exp(scaling)
        ratio = scale.max(axis=-1) / scale.min(axis=-1)
        excess = ops.maximum(ratio, MAX_RATIO) - MAX_RATIO
        return ENTROPY * entropy.mean() + SIZE * scale.mean() + RATIO * excess.mean()


class SplatWithLoss(nn.Cell):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gaussians = GaussianModel(model)
        self.projector = Projector(model)
        self.sh_color = SHColor()
        self.appearance = AppearanceNet(model)
        self.background = read_parameter(model, "background", "background")
        self.rasterizer = Rasterizer()
        self.photometric_loss = PhotometricLoss(model)
        self.depth_loss = nn.SmoothL1Loss(reduction="none")
        self.regularization = RegularizationLoss()
        self.compensate = FusedCompensation() if model.is_opacity_gradient_full else None

    def construct(
        self,
        viewmats,
        intrinsics,
        sizes,
        image_ids,
        images,
        masks,
        depth_pixels,
        depths,
        confidences,
    ):
        covariance, opacity, coefficients = self.gaussians()
        xyz = self.gaussians.xyz
        means, conics, compensation, z, visible = self.projector(
            xyz, covariance, viewmats, intrinsics, sizes
        )
        colors = self.sh_color(xyz, coefficients, viewmats)
        colors = self.appearance(colors, self.gaussians.features, image_ids)
        background = ops.sigmoid(self.background)
        if self.compensate is None:
            compensated = opacity * compensation
        else:
            compensated = self.compensate(opacity, compensation)
        image, depth = self.rasterizer(means, conics, compensated, colors, z, visible, background)
        loss = self.photometric_loss(image, images, masks)
        errors = self.depth_loss(ops.gather_elements(depth, 1, depth_pixels), depths) * confidences
        loss = loss + DEPTH * (errors.sum(1) / confidences.sum(1)).mean()
        return loss + self.regularization(opacity, self.gaussians.scaling)


#: The matrix of the cross product with a vector, from its parts, (3, 9).
CROSS = np.array(
    [
        [0, 0, 0, 0, 0, -1, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, -1, 0, 0],
        [0, -1, 0, 1, 0, 0, 0, 0, 0],
    ],
    np.float32,
)


def make_polynomials() -> Tensor:
    """Return harmonics as sums of 1, a direction's parts and their products, (13, HARMONICS)."""
    matrix = np.zeros((13, HARMONICS), np.float32)
    matrix[0, 0] = C0
    for part, harmonic, factor in ((1, 1, -C1), (2, 2, C1), (0, 3, -C1)):
        matrix[1 + part, harmonic] = factor
    for first, second, harmonic, factor in (
        (0, 1, 4, C2[0]),
        (1, 2, 5, C2[1]),
        (0, 0, 6, -C2[2]),
        (1, 1, 6, -C2[2]),
        (2, 2, 6, 2 * C2[2]),
        (0, 2, 7, C2[3]),
        (0, 0, 8, C2[4]),
        (1, 1, 8, -C2[4]),
    ):
        matrix[4 + 3 * first + second, harmonic] = factor
    return Tensor(matrix)


def make_band(size: int) -> Tensor:
    """Return the matrix that blurs an axis with zeros outside, (size, size)."""
    half = WINDOW // 2
    padded = np.pad(make_window(), size)
    rows = [padded[size + half - n : 2 * size + half - n] for n in range(size)]
    return Tensor(np.stack(rows))


class SquareRoots(nn.Cell):
    """Rotations times sizes, (POINTS, 3, 3): square roots of covariances."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.quats = read_parameter(model, "quaternions", "quats")
        self.log_scales = read_parameter(model, "log_scales", "log_scales")
        self.cross = Tensor(CROSS)
        self.eye = Tensor(np.eye(3, dtype=np.float32))

    def construct(self):
        w, v = self.quats[:, :1], self.quats[:, 1:]
        ww, vv = ops.square(w), ops.square(v).sum(-1, keepdims=True)
        outer = v.expand_dims(2) * v.expand_dims(1)
        skew = ops.matmul(w * v, self.cross).reshape(POINTS, 3, 3)
        matrix = (ww - vv).expand_dims(2) * self.eye + 2.0 * (outer + skew)
        return matrix * (ops.exp(self.log_scales) / (ww + vv)).expand_dims(1)


class RootProjector(nn.Cell):
    """The same as Projector, of covariances' square roots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.near = model.near

    def construct(self, points, roots, rotation, intrinsics, sizes):
        depth = points[:, :, 2:]
        visible = depth > self.near
        inverse = ops.reciprocal(ops.where(visible, depth, ops.ones_like(depth)))
        slopes = points[:, :, :2] * inverse
        focal, center = ops.chunk(intrinsics.expand_dims(1), 2, axis=-1)
        limits = ops.flip(sizes, (1,)).astype(ms.float32).expand_dims(1) * (FRUSTUM / 2) / focal
        clamped = ops.clamp(slopes, -limits, limits)
        axes = ops.matmul(rotation.expand_dims(1), roots)
        scaled = (focal * inverse).expand_dims(-1)
        axes = scaled * (axes[:, :, :2] - clamped.expand_dims(-1) * axes[:, :, 2:])
        first, second = axes[:, :, 0], axes[:, :, 1]
        a, b = ops.square(first).sum(-1), (first * second).sum(-1)
        c = ops.square(second).sum(-1)
        b2 = ops.square(b)
        det = (a + BLUR) * (c + BLUR) - b2
        compensation = ops.sqrt(a * c - b2) * ops.rsqrt(det)
        conics = ops.stack((c + BLUR, -b, a + BLUR), -1) / det.expand_dims(-1)
        return focal * slopes + center, conics, compensation, visible.squeeze(-1)


class PolynomialColor(nn.Cell):
    """The same as SHColor, of products of directions."""

    def __init__(self) -> None:
        super().__init__()
        self.polynomials = make_polynomials()

    def construct(self, offsets, coefficients):
        directions = offsets * ops.rsqrt(ops.square(offsets).sum(-1, keepdims=True))
        products = directions.expand_dims(3) * directions.expand_dims(2)
        products = products.reshape(VIEWS, POINTS, 9)
        ones = ops.ones_like(directions[:, :, :1])
        basis = ops.matmul(ops.concat((ones, directions, products), -1), self.polynomials)
        colors = (basis.expand_dims(-1) * coefficients).sum(2)
        return ops.relu(0.5 + colors)


class SplitAppearance(nn.Cell):
    """The same as AppearanceNet, with a layer for each part of its inputs."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.table = read_parameter(model, "images.weight", "table")
        weight = model.weights["mlp.0.weight"]
        parts = np.split(weight, [EMBEDDING, EMBEDDING + FEATURE], axis=1)
        self.image_layer, self.feature_layer, self.color_layer = (
            nn.Dense(
                part.shape[1],
                LAYERS[1],
                weight_init=Tensor(np.ascontiguousarray(part)),
                has_bias=False,
            )
            for part in parts
        )
        self.first_bias = read_parameter(model, "mlp.0.bias", "first_bias")
        self.hidden, self.out = build_dense(model, "mlp.1"), build_dense(model, "mlp.2")

    def construct(self, colors, features, image_ids):
        images = self.image_layer(ops.gather(self.table, image_ids, 0)).expand_dims(1)
        x = self.color_layer(colors) + self.feature_layer(features) + images + self.first_bias
        x = self.out(ops.relu(self.hidden(ops.relu(x))))
        return ops.relu(colors + colors * x[:, :, :3] + x[:, :, 3:])


class PairwiseRasterizer(nn.Cell):
    """The same as Rasterizer; each point looks up all points before it."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = make_grid()

    def construct(self, means, conics, opacity, colors, z, visible, background):
        alpha = compute_alpha(means, conics, opacity, visible, self.grid)
        is_before = ops.less(z.expand_dims(1), z.expand_dims(2)).astype(ms.float32)
        logs = ops.log(1.0 - alpha)
        weights = alpha * ops.exp(ops.matmul(is_before, logs))
        values = ops.concat((colors, z.expand_dims(-1), ops.ones_like(z).expand_dims(-1)), -1)
        totals = ops.matmul(weights.swapaxes(1, 2), values)
        left = ops.exp(logs.sum(1)).expand_dims(-1)
        image = totals[:, :, :3] + left * background
        return image, totals[:, :, 3] / ops.maximum(totals[:, :, 4], TINY)


class BandSSIM(nn.Cell):
    """The same as SSIM, with windows as products."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = make_band(HEIGHT), make_band(WIDTH)

    def construct(self, x, y):
        images = ops.stack((x, y, ops.square(x), ops.square(y), x * y), 0)
        means = ops.matmul(ops.matmul(self.rows, images), self.columns)
        product, squares = means[0] * means[1], ops.square(means[0]) + ops.square(means[1])
        luminance = (2.0 * product + SSIM_C1) / (squares + SSIM_C1)
        covariance, variances = means[4] - product, means[2] + means[3] - squares
        return luminance * (2.0 * covariance + SSIM_C2) / (variances + SSIM_C2)


class UnsortedLoss(nn.Cell):
    """The same loss without sorted points."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.positions = read_parameter(model, "positions", "positions")
        self.roots = SquareRoots(model)
        self.logits = read_parameter(model, "opacities", "logits")
        self.sh_base = read_parameter(model, "harmonics.dc", "sh_base")
        self.sh_rest = read_parameter(model, "harmonics.rest", "sh_rest")
        self.point_features = read_parameter(model, "features", "point_features")
        self.project = RootProjector(model)
        self.color = PolynomialColor()
        self.tone = SplitAppearance(model)
        self.backdrop = read_parameter(model, "background", "backdrop")
        self.rasterize = PairwiseRasterizer()
        self.ssim = BandSSIM()

    def compare_images(self, image, target, mask):
        """Return L1 distance and dissimilarity, weighted."""
        image = image.transpose(0, 2, 1).reshape(VIEWS, 3, HEIGHT, WIDTH)
        target = target.transpose(0, 3, 1, 2)
        share = mask / (3.0 * mask.sum())
        l1 = (ops.abs(image - target).sum(1) * share).sum()
        mask = mask.expand_dims(1)
        similarity = (self.ssim(image * mask, target * mask).sum(1) * share).sum()
        return (1 - SSIM_SHARE) * l1 + SSIM_SHARE - SSIM_SHARE * similarity

    def construct(
        self,
        viewmats,
        intrinsics,
        sizes,
        image_ids,
        images,
        masks,
        depth_pixels,
        depths,
        confidences,
    ):
        rotation, translation = viewmats[:, :3, :3], viewmats[:, :3, 3:]
        offsets = self.positions + ops.matmul(translation.swapaxes(1, 2), rotation)
        points = ops.matmul(offsets, rotation.swapaxes(1, 2))
        means, conics, compensation, visible = self.project(
            points, self.roots(), rotation, intrinsics, sizes
        )
        coefficients = ops.concat((self.sh_base, self.sh_rest), 1)
        colors = self.color(offsets, coefficients)
        colors = self.tone(colors, self.point_features, image_ids)
        opacity = ops.sigmoid(self.logits)
        image, depth = self.rasterize(
            means,
            conics,
            opacity * compensation,
            colors,
            points[:, :, 2],
            visible,
            ops.sigmoid(self.backdrop),
        )
        loss = self.compare_images(image, images, masks)
        flat = depth_pixels + PIXELS * ops.arange(VIEWS).expand_dims(1).astype(ms.int32)
        errors = ops.abs(ops.gather(depth.reshape(-1), flat, 0) - depths)
        near = ops.minimum(errors, 1.0)
        errors = near * (errors - 0.5 * near)
        shares = confidences / confidences.sum(1, keepdims=True)
        loss = loss + DEPTH / VIEWS * (errors * shares).sum()
        entropy = ops.softplus(self.logits) - opacity * self.logits
        log_scales = self.roots.log_scales
        ratio = ops.exp(log_scales.max(axis=1) - log_scales.min(axis=1))
        excess = ops.relu(ratio - MAX_RATIO)
        loss = loss + (ENTROPY * entropy + RATIO * excess).mean()
        return loss + SIZE * ops.exp(log_scales).mean()
