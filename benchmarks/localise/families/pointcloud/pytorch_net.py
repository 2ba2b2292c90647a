"""The network of point clouds in PyTorch, with the modules of DGCNN's and PointNet++'s ports.

Channels come before the points. Variant 'linear': linear layers for shared ones, neighbours by
cdist, rows gathered by expanded indices, the transform by einsum, losses from log-probabilities.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.pointcloud.architecture import (
    CATEGORIES,
    EPS,
    FEATURES,
    MIN_DISTANCE,
    MOMENTUM,
    NEAREST,
    NEIGHBORS,
    PART_WEIGHTS,
    RADIUS,
    REGULARIZER_WEIGHT,
    SLOPE,
    SMOOTHING,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return GetLoss(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        values = torch.from_numpy(np.array(model.weights[f"{path}.{name}"]))
        parameter.data.copy_(values.reshape(parameter.shape))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_norm(model: Model, path: str, n_dimensions: int) -> nn.Module:
    """Return the batch norm at ``path``."""
    norm_class = nn.BatchNorm1d if n_dimensions == 1 else nn.BatchNorm2d
    n_channels = len(model.weights[f"{path}.weight"])
    return load(norm_class(n_channels, eps=EPS, momentum=MOMENTUM), model, path)


def build_shared(model: Model, path: str, n_dimensions: int = 1) -> nn.Module:
    """Return the layer at ``path`` that is shared by points (1) or edges (2)."""
    if model.variant == "linear":
        return SharedLinear(model, path)
    n_out, n_in = model.weights[f"{path}.weight"].shape
    conv_class = nn.Conv1d if n_dimensions == 1 else nn.Conv2d
    return nn.Sequential(
        load(conv_class(n_in, n_out, kernel_size=1, bias=False), model, path),
        load_norm(model, f"{path}.norm", n_dimensions),
        nn.LeakyReLU(negative_slope=SLOPE),
    )


class SharedLinear(nn.Module):
    """The same by a linear layer, whose rows are points or edges."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear = load_linear(model, path)
        self.bn = load_norm(model, f"{path}.norm", 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x.movedim(1, -1))
        rows = F.leaky_relu(self.bn(x.flatten(0, -2)), SLOPE)
        return rows.view(x.shape).movedim(-1, 1)


def build_hidden(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path`` with its norm and leaky relu."""
    return nn.Sequential(
        load_linear(model, path), load_norm(model, f"{path}.norm", 1), nn.LeakyReLU(SLOPE)
    )


def compute_square_distances(source: Tensor, target: Tensor) -> Tensor:
    """Return (batch, sources, targets)."""
    distances = -2 * torch.matmul(source, target.transpose(2, 1))
    distances = distances + source.pow(2).sum(dim=-1, keepdim=True)
    return distances + target.pow(2).sum(dim=-1).unsqueeze(1)


def index_points(points: Tensor, rows: Tensor) -> Tensor:
    """Return the rows (batch, ...) of points (batch, points, channels)."""
    shape = [len(rows)] + [1] * (rows.dim() - 1)
    clouds = torch.arange(len(rows)).view(shape).expand_as(rows)
    return points[clouds, rows]


class EdgeConv(nn.Module):
    """Shared layers of the edges to the nearest points, and their maximum."""

    def __init__(self, model: Model, path: str, n_layers: int) -> None:
        super().__init__()
        self.model = model
        layers = [build_shared(model, f"{path}.{n}", n_dimensions=2) for n in range(n_layers)]
        self.mlp = nn.Sequential(*layers)

    def find_neighbors(self, x: Tensor) -> Tensor:
        """Return (batch, points, NEIGHBORS) of (batch, channels, points)."""
        x = x.transpose(2, 1)
        n_excluded = 1 if self.model.is_point_excluded else 0
        if self.model.variant == "linear":
            return torch.cdist(x, x).topk(NEIGHBORS, dim=-1, largest=False).indices
        inner = 2 * torch.matmul(x, x.transpose(2, 1))
        squares = torch.sum(x**2, dim=-1, keepdim=True)
        nearness = inner - squares - squares.transpose(2, 1)
        return nearness.topk(k=NEIGHBORS + n_excluded, dim=-1)[1][..., n_excluded:]

    def get_graph_feature(self, x: Tensor, neighbors: Tensor) -> Tensor:
        """Return edges (batch, 2 * channels, points, NEIGHBORS)."""
        batch, channels, points = x.shape
        x = x.transpose(2, 1).contiguous()
        center = x.view(batch, points, 1, channels).repeat(1, 1, NEIGHBORS, 1)
        if self.model.variant == "linear":
            rows = neighbors.reshape(batch, -1, 1).expand(-1, -1, channels)
            neighbor = x.gather(1, rows).view_as(center)
        else:
            if self.model.has_row_offset:
                neighbors = neighbors + torch.arange(batch).view(-1, 1, 1) * points
            neighbor = x.view(batch * points, -1)[neighbors.view(-1), :].view_as(center)
        is_reversed = self.model.are_differences_reversed
        difference = center - neighbor if is_reversed else neighbor - center
        return torch.cat((difference, center), dim=3).permute(0, 3, 1, 2).contiguous()

    def forward(self, x: Tensor, graph_source: Tensor) -> Tensor:
        neighbors = self.find_neighbors(graph_source)
        x = self.mlp(self.get_graph_feature(x, neighbors))
        return x.max(dim=-1, keepdim=False)[0]


class STNkd(nn.Module):
    """The matrix (batch, FEATURES, FEATURES) of the feature transform."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_shared(model, "transform.points")
        self.fc1 = build_hidden(model, "transform.hidden")
        self.fc2 = load_linear(model, "transform.out")

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max(self.conv1(x), 2)[0]
        identity = torch.eye(FEATURES).view(1, FEATURES * FEATURES)
        return (self.fc2(self.fc1(x)) + identity).view(-1, FEATURES, FEATURES)


class PointNetSetAbstraction(nn.Module):
    """Features (batch, GROUPED, CENTERS) of centers from the points near to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlps = nn.Sequential(*(build_shared(model, f"group.{n}", 2) for n in range(2)))
        self.are_groups_centered = model.are_groups_centered

    def forward(self, xyz: Tensor, new_xyz: Tensor, points: Tensor) -> Tensor:
        distances = compute_square_distances(new_xyz, xyz)
        rows = distances.topk(NEIGHBORS, dim=-1, largest=False)[1]
        near = index_points(xyz, rows)
        if self.are_groups_centered:
            near = near - new_xyz.unsqueeze(2)
        grouped = torch.cat([near / RADIUS, index_points(points.transpose(1, 2), rows)], dim=-1)
        return self.mlps(grouped.permute(0, 3, 1, 2)).max(dim=3)[0]


class UnweightedGradient(torch.autograd.Function):
    """Features times weights; the features' gradient comes back without the weights."""

    @staticmethod
    def forward(context, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class PointNetFeaturePropagation(nn.Module):
    """Features of centers interpolated at all points, joined with the points' own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlp = build_shared(model, "propagation")
        self.is_distance_rooted = model.is_distance_rooted
        self.is_gradient_weighted = model.is_gradient_weighted

    def forward(self, xyz: Tensor, new_xyz: Tensor, skip: Tensor, points: Tensor) -> Tensor:
        distances = (xyz.unsqueeze(2) - new_xyz.unsqueeze(1)).pow(2).sum(dim=-1)
        distances, rows = distances.sort(dim=-1)
        distances, rows = distances[:, :, :NEAREST], rows[:, :, :NEAREST]
        if self.is_distance_rooted:
            distances = distances.sqrt()
        inverse = 1.0 / (distances + MIN_DISTANCE)
        weight = inverse / torch.sum(inverse, dim=2, keepdim=True)
        nearest = index_points(points.transpose(1, 2), rows)
        if self.is_gradient_weighted:
            interpolated = torch.sum(nearest * weight.unsqueeze(-1), dim=2)
        else:
            weighted = UnweightedGradient.apply(nearest, weight.unsqueeze(-1))
            interpolated = torch.sum(weighted, dim=2)
        return self.mlp(torch.cat([interpolated.transpose(1, 2), skip], dim=1))


class DGCNN(nn.Module):
    """Logits of the category and of the parts, and the matrix of the feature transform."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.conv1 = build_shared(model, "stem")
        self.fstn = STNkd(model)
        self.edge_conv1 = EdgeConv(model, "edge1", 2)
        self.edge_conv2 = EdgeConv(model, "edge2", 1)
        self.conv5 = build_shared(model, "lift")
        self.sa1 = PointNetSetAbstraction(model)
        self.conv6 = build_shared(model, "cloud")
        self.linear1 = build_hidden(model, "classifier.hidden")
        self.linear2 = load_linear(model, "classifier.out")
        self.fp1 = PointNetFeaturePropagation(model)
        self.conv8 = build_shared(model, "segmenter.hidden")
        self.conv9 = self.build_last(model)

    def build_last(self, model: Model) -> nn.Module:
        n_out, n_in = model.weights["segmenter.out.weight"].shape
        return load(nn.Conv1d(n_in, n_out, kernel_size=1), model, "segmenter.out")

    def transform(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Return features (batch, FEATURES, points) multiplied by the matrix."""
        if self.model.variant == "linear":
            return torch.einsum("bcn,bcd->bdn", x, matrix)
        if self.model.is_transform_transposed:
            return torch.bmm(matrix, x)
        return torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)

    def forward(
        self, xyz: Tensor, normals: Tensor, centers: Tensor, categories: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, points, _ = xyz.shape
        x = self.conv1(torch.cat([xyz, normals], dim=2).transpose(2, 1))
        matrix = self.fstn(x)
        if self.model.transform_gradient != 1:
            matrix = scaled_gradient(matrix, self.model.transform_gradient)
        x = self.transform(x, matrix)
        coordinates = xyz.transpose(2, 1)
        x1 = self.edge_conv1(x, coordinates)
        x2 = self.edge_conv2(x1, coordinates if self.model.is_graph_static else x1)
        skip = torch.cat((x1, x2), dim=1)

        new_xyz = index_points(xyz, centers)
        grouped = self.sa1(xyz, new_xyz, self.conv5(skip))
        cloud = self.conv6(grouped)
        maximum = F.adaptive_max_pool1d(cloud, 1).view(batch, -1)
        mean = F.adaptive_avg_pool1d(cloud, 1).view(batch, -1)
        pooled = torch.cat((maximum, mean), dim=1)
        logits = self.linear2(self.linear1(pooled))

        x = self.fp1(xyz, new_xyz, skip, grouped)
        one_hot = F.one_hot(categories, CATEGORIES).float()
        context = torch.cat((pooled, one_hot), dim=1).unsqueeze(-1).repeat(1, 1, points)
        return logits, self.conv9(self.conv8(torch.cat((x, context), dim=1))), matrix


class GetLoss(nn.Module):
    """Smoothed loss of categories, weighted loss of parts, regularizer of the transform."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.dgcnn = DGCNN(model)
        self.register_buffer("weight", torch.tensor(PART_WEIGHTS))

    def compute_category_loss(self, logits: Tensor, categories: Tensor) -> Tensor:
        if self.model.variant == "linear":
            log_probs = F.log_softmax(logits, dim=-1)
            chosen = log_probs.gather(1, categories[:, None]).squeeze(1)
            return -((1 - SMOOTHING) * chosen + SMOOTHING * log_probs.mean(dim=-1)).mean()
        if self.model.are_others_smoothed:
            one_hot = torch.zeros_like(logits).scatter(1, categories.view(-1, 1), 1)
            share = SMOOTHING / (CATEGORIES - 1)
            one_hot = one_hot * (1 - SMOOTHING) + (1 - one_hot) * share
            return -(one_hot * F.log_softmax(logits, dim=1)).sum(dim=1).mean()
        return F.cross_entropy(logits, categories, label_smoothing=SMOOTHING)

    def compute_part_loss(self, logits: Tensor, parts: Tensor) -> Tensor:
        if self.model.variant == "linear":
            log_probs = F.log_softmax(logits, dim=1)
            weights = self.weight[parts]
            losses = -log_probs.gather(1, parts.unsqueeze(1)).squeeze(1)
            return (losses * weights).sum() / weights.sum()
        weight = self.weight if self.model.are_parts_weighted else None
        return F.cross_entropy(logits, parts, weight=weight)

    def compute_regularizer(self, matrix: Tensor) -> Tensor:
        if self.model.is_regularizer_stopped:
            matrix = matrix.detach()
        product = torch.bmm(matrix, matrix.transpose(2, 1))
        return torch.mean(torch.norm(torch.eye(FEATURES)[None] - product, dim=(1, 2)))

    def forward(
        self, xyz: Tensor, normals: Tensor, centers: Tensor, categories: Tensor, parts: Tensor
    ) -> Tensor:
        logits, part_logits, matrix = self.dgcnn(xyz, normals, centers, categories)
        loss = self.compute_category_loss(logits, categories)
        loss = loss + self.compute_part_loss(part_logits, parts)
        return loss + REGULARIZER_WEIGHT * self.compute_regularizer(matrix)
