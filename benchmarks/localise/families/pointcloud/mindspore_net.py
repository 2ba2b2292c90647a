"""The network of point clouds in MindSpore, with cells as those of its model zoo's PointNet2.

Points come before the channels, but in convolutions. Variant 'split': the first layer of an edge
convolution is applied to points, before they are gathered; batch norm in plain arithmetic; features
interpolated by a matrix.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.pointcloud.architecture import (
    BATCH,
    CATEGORIES,
    CENTERS,
    EPS,
    FEATURES,
    MIN_DISTANCE,
    MOMENTUM,
    NEAREST,
    NEIGHBORS,
    PART_WEIGHTS,
    POINTS,
    RADIUS,
    REGULARIZER_WEIGHT,
    SLOPE,
    SMOOTHING,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return PointCloudLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    n_out, n_in = weight.shape
    return nn.Dense(
        n_in,
        n_out,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


class WrittenBatchNorm(nn.Cell):
    """Batch norm of (rows, channels), or (batch, channels, points, edges), from reductions."""

    def __init__(self, model: Model, path: str, n_dimensions: int) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.axes = (0,) if n_dimensions == 1 else (0, 2, 3)
        self.shape = (-1,) if n_dimensions == 1 else (1, -1, 1, 1)

    def construct(self, x):
        centered = x - x.mean(self.axes, keep_dims=True)
        variance = ops.square(centered).mean(self.axes, keep_dims=True)
        normalized = centered * ops.rsqrt(variance + EPS)
        return normalized * self.gamma.reshape(self.shape) + self.beta.reshape(self.shape)


def build_norm(model: Model, path: str, n_dimensions: int = 2) -> nn.Cell:
    """Return the batch norm at ``path``."""
    if model.variant == "split":
        return WrittenBatchNorm(model, path, n_dimensions)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    norm_class = nn.BatchNorm1d if n_dimensions == 1 else nn.BatchNorm2d
    return norm_class(
        len(weight), eps=EPS, momentum=1 - MOMENTUM, gamma_init=weight, beta_init=bias
    )


class ConvBlock(nn.Cell):
    """A layer shared by the edges of (batch, channels, points, edges), norm and leaky relu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"]
        n_out, n_in = weight.shape
        weight = Tensor(weight[:, :, None, None])
        self.conv = nn.Conv2d(n_in, n_out, 1, has_bias=False, weight_init=weight)
        self.bn = build_norm(model, f"{path}.norm")
        self.act = nn.LeakyReLU(SLOPE)

    def construct(self, x):
        return self.act(self.bn(self.conv(x)))


class PointBlock(nn.Cell):
    """The same of (batch, points, channels)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.block = ConvBlock(model, path)

    def construct(self, x):
        x = self.block(x.transpose(0, 2, 1).expand_dims(3))
        return x.squeeze(3).transpose(0, 2, 1)


class DenseBlock(nn.Cell):
    """Linear layer, norm and leaky relu of (batch, channels)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.bn = build_norm(model, f"{path}.norm", 1)
        self.act = nn.LeakyReLU(SLOPE)

    def construct(self, x):
        return self.act(self.bn(self.dense(x)))


def square_distance(source, target):
    """Return (batch, sources, targets)."""
    distances = -2 * ops.bmm(source, target.transpose(0, 2, 1))
    distances = distances + ops.square(source).sum(-1).expand_dims(2)
    return distances + ops.square(target).sum(-1).expand_dims(1)


def index_points(points, rows):
    """Return the rows (batch, ...) of points (batch, points, channels)."""
    return ops.gather(points, rows, 1, 1)


class SplitEdgeBlock(nn.Cell):
    """The first layer of an edge convolution: one product for neighbours, one for centers.

    W (x_j - x_i) + V x_i = W x_j + (V - W) x_i.
    """

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.bn = build_norm(model, f"{path}.norm")
        self.act = nn.LeakyReLU(SLOPE)

    def construct(self, x, neighbors):
        channels = x.shape[2]
        of_difference, of_center = self.weight[:, :channels], self.weight[:, channels:]
        moved = index_points(ops.matmul(x, of_difference.T), neighbors)
        edges = moved + ops.matmul(x, (of_center - of_difference).T).expand_dims(2)
        return self.act(self.bn(edges.transpose(0, 3, 1, 2)))


class EdgeConv(nn.Cell):
    """Shared layers of the edges to the nearest points, and their maximum."""

    def __init__(self, model: Model, path: str, n_layers: int) -> None:
        super().__init__()
        self.is_split = model.variant == "split"
        first = SplitEdgeBlock if self.is_split else ConvBlock
        layers = [first(model, f"{path}.0")]
        layers += [ConvBlock(model, f"{path}.{n}") for n in range(1, n_layers)]
        self.layers = nn.CellList(layers)
        self.row_offset = Tensor(np.arange(BATCH).reshape(-1, 1, 1) * POINTS, ms.int32)
        self.has_row_offset = model.has_row_offset
        self.n_excluded = 1 if model.is_point_excluded else 0
        self.are_differences_reversed = model.are_differences_reversed

    def knn(self, x):
        """Return (batch, points, NEIGHBORS)."""
        x = ops.stop_gradient(x)
        _, rows = ops.topk(-square_distance(x, x), NEIGHBORS + self.n_excluded)
        return rows[:, :, self.n_excluded :] if self.n_excluded else rows

    def get_edges(self, x, neighbors):
        """Return (batch, 2 * channels, points, NEIGHBORS)."""
        if self.has_row_offset:
            neighbors = neighbors + self.row_offset
        neighbor = ops.gather(x.reshape(-1, x.shape[2]), neighbors, 0)
        center = ops.tile(x.expand_dims(2), (1, 1, NEIGHBORS, 1))
        is_reversed = self.are_differences_reversed
        difference = center - neighbor if is_reversed else neighbor - center
        return ops.concat((difference, center), 3).transpose(0, 3, 1, 2)

    def construct(self, x, graph_source):
        neighbors = self.knn(graph_source)
        if self.is_split:
            x = self.layers[0](x, neighbors)
        else:
            x = self.layers[0](self.get_edges(x, neighbors))
        for layer in self.layers[1:]:
            x = layer(x)
        return x.max(axis=3).transpose(0, 2, 1)


class FeatureTransform(nn.Cell):
    """The matrix (batch, FEATURES, FEATURES) that features are multiplied by."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlp = PointBlock(model, "transform.points")
        self.fc1 = DenseBlock(model, "transform.hidden")
        self.fc2 = build_dense(model, "transform.out")
        self.identity = Tensor(np.eye(FEATURES, dtype=np.float32))

    def construct(self, x):
        x = self.mlp(x).max(axis=1)
        matrix = self.fc2(self.fc1(x)).reshape(-1, FEATURES, FEATURES)
        return matrix + self.identity


class SetAbstraction(nn.Cell):
    """Features (batch, CENTERS, GROUPED) of centers from the points near to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlp = nn.SequentialCell([ConvBlock(model, f"group.{n}") for n in range(2)])
        self.are_groups_centered = model.are_groups_centered

    def construct(self, points, centers, x):
        _, rows = ops.topk(-square_distance(centers, points), NEIGHBORS)
        near = index_points(points, rows)
        if self.are_groups_centered:
            near = near - centers.expand_dims(2)
        grouped = ops.concat((near / RADIUS, index_points(x, rows)), -1)
        return self.mlp(grouped.transpose(0, 3, 1, 2)).max(axis=3).transpose(0, 2, 1)


class UnweightedGradient(nn.Cell):
    """Features times weights; the features' gradient comes back without the weights."""

    def construct(self, x, weights):
        return x * weights

    def bprop(self, x, weights, out, gradient):
        return gradient, ops.zeros_like(weights)


class FeaturePropagation(nn.Cell):
    """Features of centers interpolated at all points, joined with the points' own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlp = PointBlock(model, "propagation")
        self.is_distance_rooted = model.is_distance_rooted
        self.is_matrix = model.variant == "split"
        self.multiply = None if model.is_gradient_weighted else UnweightedGradient()

    def construct(self, points, centers, skip, x):
        distances = ops.square(points.expand_dims(2) - centers.expand_dims(1)).sum(-1)
        nearness, rows = ops.topk(-distances, NEAREST)
        distances = -nearness
        if self.is_distance_rooted:
            distances = ops.sqrt(distances)
        weights = 1 / (distances + MIN_DISTANCE)
        weights = weights / weights.sum(-1, keepdims=True)
        if self.is_matrix:
            one_hot = ops.one_hot(rows, CENTERS, 1.0, 0.0)
            interpolated = ops.bmm((one_hot * weights.expand_dims(3)).sum(2), x)
        elif self.multiply is not None:
            interpolated = self.multiply(index_points(x, rows), weights.expand_dims(3)).sum(2)
        else:
            interpolated = (index_points(x, rows) * weights.expand_dims(3)).sum(2)
        return self.mlp(ops.concat((interpolated, skip), -1))


class PointNet2(nn.Cell):
    """Logits of the category and of the parts, and the matrix of the feature transform."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = PointBlock(model, "stem")
        self.feature_transform = FeatureTransform(model)
        self.edge1, self.edge2 = EdgeConv(model, "edge1", 2), EdgeConv(model, "edge2", 1)
        self.lift = PointBlock(model, "lift")
        self.abstraction = SetAbstraction(model)
        self.cloud = PointBlock(model, "cloud")
        self.cls_head = nn.SequentialCell(
            DenseBlock(model, "classifier.hidden"), build_dense(model, "classifier.out")
        )
        self.propagation = FeaturePropagation(model)
        self.seg_hidden = PointBlock(model, "segmenter.hidden")
        self.seg_out = build_dense(model, "segmenter.out")
        self.is_transform_transposed = model.is_transform_transposed
        self.is_graph_static = model.is_graph_static
        self.scaled_gradient = None
        if model.transform_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.transform_gradient)

    def construct(self, points, normals, center_rows, categories):
        x = self.stem(ops.concat((points, normals), -1))
        matrix = self.feature_transform(x)
        if self.scaled_gradient is not None:
            matrix = self.scaled_gradient(matrix)
        x = ops.bmm(x, matrix.transpose(0, 2, 1) if self.is_transform_transposed else matrix)
        x1 = self.edge1(x, points)
        x2 = self.edge2(x1, points if self.is_graph_static else x1)
        skip = ops.concat((x1, x2), -1)

        centers = index_points(points, center_rows)
        grouped = self.abstraction(points, centers, self.lift(skip))
        cloud = self.cloud(grouped)
        pooled = ops.concat((cloud.max(axis=1), cloud.mean(1)), -1)
        logits = self.cls_head(pooled)

        x = self.propagation(points, centers, skip, grouped)
        one_hot = ops.one_hot(categories, CATEGORIES, 1.0, 0.0)
        context = ops.concat((pooled, one_hot), -1).expand_dims(1)
        context = ops.broadcast_to(context, (BATCH, POINTS, context.shape[-1]))
        return logits, self.seg_out(self.seg_hidden(ops.concat((x, context), -1))), matrix


class PointCloudLoss(nn.Cell):
    """Smoothed loss of categories, weighted loss of parts, regularizer of the transform."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = PointNet2(model)
        self.part_weights = Tensor(np.array(PART_WEIGHTS, dtype=np.float32))
        self.identity = Tensor(np.eye(FEATURES, dtype=np.float32))
        self.are_parts_weighted = model.are_parts_weighted
        self.are_others_smoothed = model.are_others_smoothed
        self.is_regularizer_stopped = model.is_regularizer_stopped

    def compute_category_loss(self, logits, categories):
        targets = ops.one_hot(categories, CATEGORIES, 1.0, 0.0)
        if self.are_others_smoothed:
            share = SMOOTHING / (CATEGORIES - 1)
            targets = targets * (1 - SMOOTHING) + (1 - targets) * share
        else:
            targets = targets * (1 - SMOOTHING) + SMOOTHING / CATEGORIES
        return -(targets * ops.log_softmax(logits, -1)).sum(-1).mean()

    def compute_part_loss(self, logits, parts):
        logits, parts = logits.reshape(-1, logits.shape[-1]), parts.reshape(-1)
        if self.are_parts_weighted:
            return ops.cross_entropy(logits, parts, self.part_weights)
        return ops.cross_entropy(logits, parts)

    def compute_regularizer(self, matrix):
        if self.is_regularizer_stopped:
            matrix = ops.stop_gradient(matrix)
        difference = ops.bmm(matrix, matrix.transpose(0, 2, 1)) - self.identity
        return ops.sqrt(ops.square(difference).sum((1, 2))).mean()

    def construct(self, points, normals, centers, categories, parts):
        logits, part_logits, matrix = self.network(points, normals, centers, categories)
        loss = self.compute_category_loss(logits, categories)
        loss = loss + self.compute_part_loss(part_logits, parts)
        return loss + REGULARIZER_WEIGHT * self.compute_regularizer(matrix)
