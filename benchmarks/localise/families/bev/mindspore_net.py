"""Detection in the bird's-eye view in MindSpore for graph mode.

Variant 'matrix': points are pooled and features upsampled by products with matrices, poses are
homogeneous, squeeze-and-excitation has linear layers, the hidden layers of all heads are one, boxes
are gathered by one-hot vectors, losses in plain arithmetic.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from families.bev.architecture import (
    BATCH,
    BINS,
    BOX_WEIGHT,
    CAMERAS,
    CELL,
    CODE,
    CODE_WEIGHTS,
    COLUMNS,
    CONTEXT,
    DEPTH_STEP,
    DEPTH_WEIGHT,
    EPS,
    FIRST_DEPTH,
    GRID_X,
    GRID_Y,
    HEAD,
    HEADS,
    HEIGHT,
    LOWER,
    MIN_SCORE,
    OBJECTS,
    ROWS,
    STRIDE,
    WIDTH,
    Model,
    make_frustum,
)

VIEWS = BATCH * CAMERAS
POINTS = BINS * ROWS * COLUMNS  #: of a camera
CELLS = GRID_Y * GRID_X
NO_DEPTH = 1e5


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return MatrixLoss(model) if model.variant == "matrix" else BevDetector(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at a path; a linear layer there is one of 1 x 1."""
    weight = model.weights[f"{path}.weight"]
    if weight.ndim == 2:
        weight = weight[:, :, None, None]
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        has_bias=has_bias,
        weight_init=Tensor(np.ascontiguousarray(weight)),
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_norm(model: Model, path: str, kind: type = nn.BatchNorm2d) -> nn.Cell:
    """Return the batch norm at a path."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return kind(len(weight), eps=EPS, momentum=0.9, gamma_init=weight, beta_init=bias)


def build_layer(model: Model, path: str, stride: int = 1) -> nn.SequentialCell:
    """Return the layer at a path."""
    conv, norm = build_conv(model, path, stride), build_norm(model, f"{path}.norm")
    return nn.SequentialCell(conv, norm, nn.ReLU())


class ResidualBlock(nn.Cell):
    """Two convolutions added to their input."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = build_conv(model, f"{path}.first", stride)
        self.bn1 = build_norm(model, f"{path}.first.norm")
        self.conv2 = build_conv(model, f"{path}.second")
        self.bn2 = build_norm(model, f"{path}.second.norm")
        self.relu = nn.ReLU()
        self.has_shortcut = stride > 1
        if self.has_shortcut:
            self.down_conv = build_conv(model, f"{path}.shortcut", stride)
            self.down_bn = build_norm(model, f"{path}.shortcut.norm")

    def construct(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        identity = self.down_bn(self.down_conv(x)) if self.has_shortcut else x
        return self.relu(out + identity)


class ImageEncoder(nn.Cell):
    """Features of images, (VIEWS, HIDDEN, ROWS, COLUMNS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_layer(model, "encoder.0", 2)
        self.down = build_layer(model, "encoder.1", 2)
        self.block = ResidualBlock(model, "encoder.block")

    def construct(self, images):
        return self.block(self.down(self.stem(images)))


class CameraMlp(nn.Cell):
    """What channels are to know of a camera."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = build_dense(model, f"{path}.0")
        self.fc2 = build_dense(model, f"{path}.1")
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.relu(self.fc2(self.relu(self.fc1(x))))


class SqueezeExcite(nn.Cell):
    """Channels times gates, by convolutions of one cell."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.reduce = build_conv(model, f"{path}.reduce")
        self.relu = nn.ReLU()
        self.expand = build_conv(model, f"{path}.expand")
        self.sigmoid = nn.Sigmoid()

    def construct(self, x, camera):
        camera = camera.expand_dims(-1).expand_dims(-1)
        return x * self.sigmoid(self.expand(self.relu(self.reduce(camera))))


class DenseExcite(nn.Cell):
    """The same with linear layers."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.squeeze = build_dense(model, f"{path}.reduce")
        self.excite = build_dense(model, f"{path}.expand")

    def construct(self, x, camera):
        gates = ops.sigmoid(self.excite(ops.relu(self.squeeze(camera))))
        return ops.mul(gates.reshape(*gates.shape, 1, 1), x)


class DepthNet(nn.Cell):
    """Depth probabilities (VIEWS, BINS, ROWS, COLUMNS) and context (VIEWS, CONTEXT, ...)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        excite = DenseExcite if model.variant == "matrix" else SqueezeExcite
        self.reduce_conv = build_layer(model, "depth.layer")
        self.bn = build_norm(model, "camera", nn.BatchNorm1d)
        self.context_mlp = CameraMlp(model, "context.mlp")
        self.context_se = excite(model, "context")
        self.context_conv = build_conv(model, "context.out")
        self.depth_mlp = CameraMlp(model, "bins.mlp")
        self.depth_se = excite(model, "bins")
        self.depth_block = ResidualBlock(model, "depth.block")
        self.depth_conv = build_conv(model, "bins.out")
        self.softmax = nn.Softmax() if model.is_softmax_of_columns else nn.Softmax(axis=1)

    def construct(self, x, camera):
        camera = self.bn(camera)
        x = self.reduce_conv(x)
        context = self.context_conv(self.context_se(x, self.context_mlp(camera)))
        depth = self.depth_se(x, self.depth_mlp(camera))
        depth = self.softmax(self.depth_conv(self.depth_block(depth)))
        return depth, context


def describe_cameras(rotations, translations, intrinsics, post_rotations, post_shifts, scene):
    """Return the numbers that the depth network reads of cameras, (VIEWS, CAMERA)."""
    scene = ops.broadcast_to(scene[:, None, :2, :2], (BATCH, CAMERAS, 2, 2))
    pose = ops.concat((rotations, translations.expand_dims(-1)), -1)
    focal = ops.stack((intrinsics[:, :, 0, 0], intrinsics[:, :, 1, 1]), -1)
    numbers = (
        focal,
        intrinsics[:, :, :2, 2],
        post_rotations[:, :, :2, :2].reshape(BATCH, CAMERAS, 4),
        post_shifts[:, :, :2],
        scene.reshape(BATCH, CAMERAS, 4),
        pose.reshape(BATCH, CAMERAS, 12),
    )
    return ops.concat(numbers, -1).reshape(VIEWS, -1)


class Geometry(nn.Cell):
    """Cells (BATCH, points, 3), not rounded, of the points of all cameras."""

    def __init__(self) -> None:
        super().__init__()
        self.frustum = Tensor(make_frustum().reshape(POINTS, 3))
        self.lower, self.cell = Tensor(LOWER, ms.float32), Tensor(CELL, ms.float32)

    def construct(self, rotations, translations, intrinsics, post_rotations, post_shifts, scene):
        points = self.frustum - post_shifts.expand_dims(2)
        points = ops.matmul(points, ops.inverse(post_rotations).swapaxes(-1, -2))
        depth = points[..., 2:]
        points = ops.concat((points[..., :2] * depth, depth), -1)
        combine = ops.matmul(rotations, ops.inverse(intrinsics))
        points = ops.matmul(points, combine.swapaxes(-1, -2)) + translations.expand_dims(2)
        points = ops.matmul(points, scene.swapaxes(-1, -2).expand_dims(1))
        return ((points - self.lower) / self.cell).reshape(BATCH, -1, 3)


class HomogeneousGeometry(nn.Cell):
    """The same by 4 x 4 matrices, the grid's among them."""

    def __init__(self) -> None:
        super().__init__()
        frustum = make_frustum().reshape(POINTS, 3).T
        self.pixels = Tensor(np.concatenate((frustum, np.ones_like(frustum[:1]))))
        self.last_row = Tensor(np.eye(4, dtype=np.float32)[3:])
        grid = np.diag([*(1 / np.array(CELL)), 1.0])
        grid[:3, 3] = -np.array(LOWER) / np.array(CELL)
        self.grid = Tensor(grid, ms.float32)

    def join(self, matrix, shift):
        """Return the homogeneous matrix of a linear map and a shift."""
        upper = ops.concat((matrix, shift.expand_dims(-1)), -1)
        last_row = ops.broadcast_to(self.last_row, (*matrix.shape[:-2], 1, 4))
        return ops.concat((upper, last_row), -2)

    def construct(self, rotations, translations, intrinsics, post_rotations, post_shifts, scene):
        undo = ops.inverse(self.join(post_rotations, post_shifts))
        points = ops.matmul(undo, self.pixels)
        points = ops.concat((points[:, :, :2] * points[:, :, 2:3], points[:, :, 2:]), 2)
        no_shift = ops.zeros_like(translations)
        pose = self.join(rotations, translations)
        scene = ops.matmul(self.grid, self.join(scene, no_shift[:, 0])).expand_dims(1)
        lift = ops.matmul(ops.matmul(scene, pose), ops.inverse(self.join(intrinsics, no_shift)))
        cells = ops.matmul(lift, points)[:, :, :3]
        return cells.transpose(0, 1, 3, 2).reshape(BATCH, -1, 3)


def find_cells(coordinates, are_heights_pooled):
    """Return the cell (BATCH, points) of each point, of those outside the first, and a mask."""
    x, y, z = coordinates[..., 0], coordinates[..., 1], coordinates[..., 2]
    inside = ops.logical_and(x >= 0, x < GRID_X)
    inside = ops.logical_and(inside, ops.logical_and(y >= 0, y < GRID_Y))
    if not are_heights_pooled:
        inside = ops.logical_and(inside, ops.equal(z, 0))
    index = ops.select(inside, y * GRID_X + x, ops.zeros_like(x))
    return index, inside.astype(ms.float32)


class VoxelPool(nn.Cell):
    """Sums of points (points, CONTEXT) in the cells of all samples."""

    def construct(self, points, index, inside):
        grid = ops.zeros((BATCH * CELLS, CONTEXT), ms.float32)
        points = points * inside.expand_dims(-1)
        return ops.tensor_scatter_add(grid, index.expand_dims(-1), points)


class FusedVoxelPool(VoxelPool):
    """The same with its own backward pass, which gathers what each point's cell gets."""

    def bprop(self, points, index, inside, out, gradient):
        return ops.gather(gradient, index, 0), ops.zeros_like(index), ops.zeros_like(inside)


class ViewTransformer(nn.Cell):
    """Features of the grid, (BATCH, CONTEXT, GRID_Y, GRID_X)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.geometry = Geometry()
        self.pool = FusedVoxelPool() if model.is_outside_trained else VoxelPool()
        self.are_cells_truncated = model.are_cells_truncated
        self.are_heights_pooled = model.are_heights_pooled
        self.starts = Tensor(np.arange(BATCH, dtype=np.int32)[:, None] * CELLS)

    def construct(self, depth, context, *cameras):
        volume = depth.expand_dims(1) * context.expand_dims(2)
        points = volume.reshape(BATCH, CAMERAS, CONTEXT, BINS, ROWS, COLUMNS)
        points = points.transpose(0, 1, 3, 4, 5, 2).reshape(-1, CONTEXT)
        coordinates = self.geometry(*cameras)
        if not self.are_cells_truncated:
            coordinates = ops.floor(coordinates)
        index, inside = find_cells(coordinates.astype(ms.int32), self.are_heights_pooled)
        bev = self.pool(points, (index + self.starts).reshape(-1), inside.reshape(-1))
        return bev.reshape(BATCH, GRID_Y, GRID_X, CONTEXT).transpose(0, 3, 1, 2)


class MatrixTransformer(nn.Cell):
    """The same by products with the matrix of which points a cell has."""

    def __init__(self) -> None:
        super().__init__()
        self.project = HomogeneousGeometry()
        self.cell_ids = Tensor(np.arange(CELLS, dtype=np.int32)[:, None])

    def construct(self, depth, context, *cameras):
        coordinates = ops.floor(self.project(*cameras)).astype(ms.int32)
        index, inside = find_cells(coordinates, False)
        has_point = ops.equal(self.cell_ids, index.expand_dims(1)).astype(ms.float32)
        shares = has_point * (depth.reshape(BATCH, -1) * inside).expand_dims(1)
        shares = shares.reshape(BATCH, CELLS, CAMERAS, BINS, ROWS * COLUMNS).sum(3)
        context = context.reshape(BATCH, CAMERAS, CONTEXT, -1).transpose(0, 1, 3, 2)
        bev = ops.bmm(shares.reshape(BATCH, CELLS, -1), context.reshape(BATCH, -1, CONTEXT))
        return bev.transpose(0, 2, 1).reshape(BATCH, CONTEXT, GRID_Y, GRID_X)


class Upsample(nn.Cell):
    """Features of twice the size."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.align_corners = model.are_corners_aligned

    def construct(self, x):
        size = (2 * x.shape[2], 2 * x.shape[3])
        return ops.interpolate(x, size=size, mode="bilinear", align_corners=self.align_corners)


def make_shares(size: int) -> np.ndarray:
    """Return the matrix that upsamples an axis of a size with aligned corners, (2 * size, size)."""
    places = np.linspace(0, size - 1, 2 * size)[:, None]
    return np.maximum(0, 1 - abs(places - np.arange(size))).astype(np.float32)


class MatrixUpsample(nn.Cell):
    """The same by products, of features with so many rows and columns."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows = Tensor(make_shares(rows))
        self.columns = Tensor(np.ascontiguousarray(make_shares(columns).T))

    def construct(self, x):
        return ops.matmul(ops.matmul(self.rows, x), self.columns)


class BevEncoder(nn.Cell):
    """Features of the grid for all heads, (BATCH, STEM, GRID_Y, GRID_X)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = build_layer(model, "grid.stem", 2)
        self.layer1 = ResidualBlock(model, "grid.near")
        self.layer2 = ResidualBlock(model, "grid.far", 2)
        if model.variant == "matrix":
            self.up1 = MatrixUpsample(GRID_Y // 4, GRID_X // 4)
            self.up2 = MatrixUpsample(GRID_Y // 2, GRID_X // 2)
        else:
            self.up1, self.up2 = Upsample(model), Upsample(model)
        self.merge = build_layer(model, "grid.merge")
        self.last = build_layer(model, "grid.last")

    def construct(self, x):
        near = self.layer1(self.stem(x))
        far = self.up1(self.layer2(near))
        return self.last(self.up2(self.merge(ops.concat((far, near), 1))))


class CenterHead(nn.Cell):
    """Logits of heatmaps and codes of boxes in all cells."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.shared_conv = build_layer(model, "heads.shared")
        self.heatmap = self.build_head(model, "heatmap")
        self.box_heads = nn.CellList([self.build_head(model, name) for name, _ in HEADS])

    @staticmethod
    def build_head(model: Model, name: str) -> nn.SequentialCell:
        """Return a head."""
        hidden = build_layer(model, f"heads.{name}.hidden")
        return nn.SequentialCell(hidden, build_conv(model, f"heads.{name}.out"))

    def construct(self, x):
        x = self.shared_conv(x)
        codes = ()
        for head in self.box_heads:
            codes += (head(x),)
        return self.heatmap(x), ops.concat(codes, 1)


class JoinedHead(nn.Cell):
    """The same with one hidden layer for all heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.shared = build_layer(model, "heads.shared")
        names = ["heatmap", *(name for name, _ in HEADS)]
        joined = {
            f"joined{kind}": np.concatenate(
                [model.weights[f"heads.{name}.hidden{kind}"] for name in names]
            )
            for kind in (".weight", ".norm.weight", ".norm.bias")
        }
        self.joined = build_layer(Model(model.name, joined), "joined")
        self.outs = nn.CellList([build_conv(model, f"heads.{name}.out") for name in names])

    def construct(self, x):
        x = self.joined(self.shared(x))
        outputs = ()
        for n, out in enumerate(self.outs):
            outputs += (out(x[:, n * HEAD : (n + 1) * HEAD]),)
        return outputs[0], ops.concat(outputs[1:], 1)


class GaussianFocalLoss(nn.Cell):
    """Focal loss of heatmaps."""

    def construct(self, logits, target):
        score = ops.clamp(ops.sigmoid(logits), MIN_SCORE, 1 - MIN_SCORE)
        positive = ops.equal(target, 1).astype(ms.float32)
        positive_loss = -ops.log(score) * ops.pow(1 - score, 2) * positive
        negative_loss = -ops.log(1 - score) * ops.pow(score, 2) * ops.pow(1 - target, 4)
        return (positive_loss + negative_loss).sum() / ops.maximum(positive.sum(), 1.0)


def encode_boxes(boxes):
    """Return the codes of boxes, (BATCH, OBJECTS, CODE)."""
    x = (boxes[..., :1] - LOWER[0]) / CELL[0]
    y = (boxes[..., 1:2] - LOWER[1]) / CELL[1]
    yaw = boxes[..., 6:7]
    codes = (
        x - ops.floor(x),
        y - ops.floor(y),
        boxes[..., 2:3],
        ops.log(boxes[..., 3:6]),
        ops.sin(yaw),
        ops.cos(yaw),
        boxes[..., 7:],
    )
    return ops.concat(codes, -1)


class BoxLoss(nn.Cell):
    """L1 distance of codes at the centers."""

    def __init__(self) -> None:
        super().__init__()
        self.l1_loss = nn.L1Loss(reduction="none")
        self.code_weights = Tensor(CODE_WEIGHTS, ms.float32)

    def construct(self, codes, boxes, cells, mask):
        codes = codes.transpose(0, 2, 3, 1).reshape(BATCH, CELLS, CODE)
        index = ops.broadcast_to(cells.expand_dims(-1), (BATCH, OBJECTS, CODE))
        predicted = ops.gather_elements(codes, 1, index)
        weights = mask.expand_dims(-1) * self.code_weights
        errors = self.l1_loss(predicted, encode_boxes(boxes)) * weights
        return errors.sum() / ops.maximum(mask.sum(), 1.0)


def find_bins(depths, first):
    """Return the least depth of each cell as a number from 1 to BINS, 0 if it has none."""
    depths = depths.reshape(VIEWS, ROWS, STRIDE, COLUMNS, STRIDE)
    depths = depths.transpose(0, 1, 3, 2, 4).reshape(-1, STRIDE * STRIDE)
    depths = ops.select(ops.equal(depths, 0), ops.full_like(depths, NO_DEPTH), depths)
    bins = (depths.min(axis=-1) - first) / DEPTH_STEP
    known = ops.logical_and(bins >= 0, bins < BINS + 1)
    return ops.select(known, bins, ops.zeros_like(bins)).astype(ms.int32)


class DepthLoss(nn.Cell):
    """Binary cross entropy of all bins in cells whose depth is known."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bce = nn.BCELoss(reduction="none")
        self.first = FIRST_DEPTH if model.are_bins_early else FIRST_DEPTH - DEPTH_STEP

    def construct(self, probabilities, depths):
        labels = ops.one_hot(find_bins(depths, self.first), BINS + 1)[:, 1:].astype(ms.float32)
        known = labels.max(axis=1)
        probabilities = probabilities.transpose(0, 2, 3, 1).reshape(-1, BINS)
        losses = self.bce(probabilities, labels) * known.expand_dims(-1)
        return losses.sum() / ops.maximum(known.sum(), 1.0)


class BevDetector(nn.Cell):
    """The sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.img_encoder = ImageEncoder(model)
        self.depth_net = DepthNet(model)
        self.view_transformer = ViewTransformer(model)
        self.bev_encoder = BevEncoder(model)
        self.head = CenterHead(model)
        self.loss_heatmap = GaussianFocalLoss()
        self.loss_bbox = BoxLoss()
        self.loss_depth = DepthLoss(model)

    def construct(
        self,
        images,
        rotations,
        translations,
        intrinsics,
        post_rotations,
        post_shifts,
        scene,
        depths,
        heatmaps,
        boxes,
        cells,
        mask,
    ):
        geometry = (rotations, translations, intrinsics, post_rotations, post_shifts, scene)
        features = self.img_encoder(images.reshape(VIEWS, 3, HEIGHT, WIDTH))
        depth, context = self.depth_net(features, describe_cameras(*geometry))
        bev = self.bev_encoder(self.view_transformer(depth, context, *geometry))
        logits, codes = self.head(bev)
        loss = self.loss_heatmap(logits, heatmaps)
        loss = loss + BOX_WEIGHT * self.loss_bbox(codes, boxes, cells, mask)
        return loss + DEPTH_WEIGHT * self.loss_depth(depth, depths)


class MatrixLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = ImageEncoder(model)
        self.depth_head = DepthNet(model)
        self.lift = MatrixTransformer()
        self.bev_backbone = BevEncoder(model)
        self.bbox_head = JoinedHead(model)
        self.cell_ids = Tensor(np.arange(CELLS, dtype=np.int32))

    def compare_heatmaps(self, logits, target):
        """Return the focal loss."""
        score = mint.clamp(mint.sigmoid(logits), MIN_SCORE, 1 - MIN_SCORE)
        center = ops.floor(target)
        rest = ops.square(ops.square(1 - target))
        losses = ops.log(score) * ops.square(1 - score) * center
        losses = losses + mint.log1p(-score) * ops.square(score) * rest
        return -losses.sum() / center.sum()

    def compare_boxes(self, codes, boxes, cells, mask):
        """Return the L1 distance of codes, gathered by a product."""
        is_center = ops.equal(cells.expand_dims(-1), self.cell_ids).astype(ms.float32)
        codes = codes.reshape(BATCH, CODE, CELLS)
        predicted = ops.bmm(is_center, codes.transpose(0, 2, 1))
        errors = ops.abs(predicted - encode_boxes(boxes))
        shares = mask / mask.sum()
        near = errors[..., :-2].sum(-1) + CODE_WEIGHTS[-1] * errors[..., -2:].sum(-1)
        return (near * shares).sum()

    def compare_depths(self, probabilities, depths):
        """Return the cross entropy of bins."""
        bins = find_bins(depths, FIRST_DEPTH - DEPTH_STEP).reshape(VIEWS, 1, ROWS, COLUMNS)
        known = (bins > 0).astype(ms.float32)
        numbers = ops.arange(1, BINS + 1).astype(ms.int32).reshape(BINS, 1, 1)
        likelihood = ops.where(ops.equal(bins, numbers), probabilities, 1 - probabilities)
        return -(ops.log(likelihood) * known).sum() / known.sum()

    def construct(
        self,
        images,
        rotations,
        translations,
        intrinsics,
        post_rotations,
        post_shifts,
        scene,
        depths,
        heatmaps,
        boxes,
        cells,
        mask,
    ):
        geometry = (rotations, translations, intrinsics, post_rotations, post_shifts, scene)
        features = self.backbone(ops.flatten(images, start_dim=0, end_dim=1))
        depth, context = self.depth_head(features, describe_cameras(*geometry))
        logits, codes = self.bbox_head(self.bev_backbone(self.lift(depth, context, *geometry)))
        loss = DEPTH_WEIGHT * self.compare_depths(depth, depths)
        loss = loss + BOX_WEIGHT * self.compare_boxes(codes, boxes, cells, mask)
        return loss + self.compare_heatmaps(logits, heatmaps)
