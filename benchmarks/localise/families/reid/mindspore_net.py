"""The re-identification net in MindSpore.

Variant 'written': norms in plain arithmetic, distances from products of the features. Variant
'gathered': pooling by logarithms, the margin and the cross entropy of the gathered cosine.
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from families.reid.architecture import (
    BATCH,
    CENTER_WEIGHT,
    CHANNELS,
    DISTANCE_EPS,
    EPS,
    FEATURES,
    LABELS,
    MARGIN,
    POOL_EPS,
    STRIDES,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


class WrittenNorm(nn.Cell):
    """A norm from reductions over some axes."""

    def __init__(self, model: Model, path: str, axes: tuple[int, ...]) -> None:
        super().__init__()
        shape = (1, -1, 1, 1) if len(axes) > 1 else (1, -1)
        self.scale = Parameter(Tensor(model.weights[f"{path}.weight"].reshape(shape)))
        self.shift = Parameter(Tensor(model.weights[f"{path}.bias"].reshape(shape)))
        self.axes = axes

    def construct(self, x):
        mean = x.mean(self.axes, keep_dims=True)
        variance = ops.square(x - mean).mean(self.axes, keep_dims=True)
        return (x - mean) / ops.sqrt(variance + EPS) * self.scale + self.shift


def build_batch_norm(model: Model, path: str, n_axes: int = 3) -> nn.Cell:
    """Return a batch norm."""
    if model.variant == "written":
        return WrittenNorm(model, path, (0, 2, 3)[:n_axes])
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    kind = nn.BatchNorm2d if n_axes > 1 else nn.BatchNorm1d
    return kind(len(weight), eps=EPS, momentum=0.9, gamma_init=weight, beta_init=bias)


def build_instance_norm(model: Model, path: str) -> nn.Cell:
    """Return an instance norm: a group norm of single channels, as there is no other one on CPU."""
    if model.variant == "written":
        return WrittenNorm(model, path, (2, 3))
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    n = len(weight)
    return nn.GroupNorm(n, n, eps=EPS, gamma_init=weight, beta_init=bias)


class IBN(nn.Cell):
    """Instance norm of the first half of the channels, batch norm of the second one."""

    def __init__(self, model: Model, path: str, channels: int) -> None:
        super().__init__()
        self.half = channels // 2
        self.instance_norm = build_instance_norm(model, f"{path}.instance")
        self.batch_norm = build_batch_norm(model, f"{path}.batch")

    def construct(self, x):
        first, second = ops.split(x, self.half, axis=1)
        return ops.concat((self.instance_norm(first), self.batch_norm(second)), axis=1)


class GeneralizedMean(nn.Cell):
    """Generalized mean of the pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.p = Parameter(Tensor(model.weights["pool.weight"]), name="p")
        self.is_mean = model.is_pool_mean
        self.has_logarithms = model.variant == "gathered"

    def construct(self, x):
        if self.is_mean:
            return x.mean((2, 3))
        x = ops.clamp(x, min=POOL_EPS)
        if self.has_logarithms:
            mean = ops.exp(self.p * ops.log(x)).mean((2, 3))
            return ops.exp(ops.log(mean) / self.p)
        return ops.pow(ops.pow(x, self.p).mean((2, 3)), 1.0 / self.p)


class Backbone(nn.Cell):
    """Features and what comes out of the neck, (batch, FEATURES) each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = []
        n_in = 3
        for n, channels in enumerate(CHANNELS):
            weight = Tensor(model.weights[f"stages.{n}.weight"])
            layers.append(
                nn.Conv2d(
                    n_in, channels, 3, STRIDES[n], pad_mode="pad", padding=1, weight_init=weight
                )
            )
            if n < len(CHANNELS) - 1:
                layers.append(IBN(model, f"stages.{n}", channels))
            else:
                layers.append(build_batch_norm(model, f"stages.{n}.batch"))
            layers.append(nn.ReLU())
            n_in = channels
        self.layers = nn.SequentialCell(layers)
        self.pool = GeneralizedMean(model)
        weight = Tensor(model.weights["reduce.weight"])
        self.embed = nn.Dense(n_in, FEATURES, weight_init=weight, has_bias=False)
        self.neck = build_batch_norm(model, "neck", 1)

    def construct(self, images):
        features = self.embed(self.pool(self.layers(images)))
        return features, self.neck(features)


class StraightMargin(nn.Cell):
    """Cosines with the margin; their gradient is that of the cosines without it."""

    def construct(self, cosine, phi):
        return ops.identity(phi)

    def bprop(self, cosine, phi, out, gradient):
        return gradient, ops.zeros_like(phi)


class ArcMarginLoss(nn.Cell):
    """Cross entropy of cosines with an angular margin."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights["classes.weight"]), name="weight")
        self.scale, self.is_easy = model.scale, model.is_margin_easy
        self.is_gathered = model.variant == "gathered"
        self.straight_margin = None if model.is_angle_derived else StraightMargin()
        self.normalize = ops.L2Normalize(axis=1)
        self.cos_m, self.sin_m = math.cos(MARGIN), math.sin(MARGIN)
        self.threshold = math.cos(math.pi - MARGIN)
        self.offset = MARGIN * math.sin(math.pi - MARGIN)

    def add_margin(self, cosine):
        """Return the cosine of the angle with the margin."""
        sine = ops.sqrt(1.0 - ops.square(cosine))
        phi = cosine * self.cos_m - sine * self.sin_m
        if self.is_easy:
            return ops.select(cosine > 0, phi, cosine)
        return ops.select(cosine > self.threshold, phi, cosine - self.offset)

    def construct(self, features, labels):
        embeddings = self.normalize(features)
        cosine = ops.matmul(embeddings, self.normalize(self.weight).T)
        one_hot = ops.one_hot(labels, LABELS, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        if self.is_gathered:
            target = (cosine * one_hot).sum(1, keepdims=True)
            turned = self.add_margin(target)
            logits = self.scale * (cosine + one_hot * (turned - target))
            top = ops.stop_gradient(logits.max(axis=1, keepdims=True))
            log_sums = ops.log(ops.exp(logits - top).sum(1, keepdims=True)) + top
            return (log_sums - self.scale * turned).mean()
        phi = self.add_margin(cosine)
        if self.straight_margin is not None:
            phi = self.straight_margin(cosine, phi)
        logits = self.scale * (one_hot * phi + (1.0 - one_hot) * cosine)
        return ops.cross_entropy(logits, labels)


class TripletLoss(nn.Cell):
    """Soft margin between the farthest image of the person and the nearest one of another."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.has_products = model.variant == "written"
        self.softplus = ops.Softplus()
        self.are_negatives_others = model.are_negatives_others
        self.are_distances_squared = model.are_distances_squared

    def construct(self, features, labels):
        if self.has_products:
            squares = ops.square(features).sum(1, keepdims=True)
            squared = squares + squares.T - 2 * ops.matmul(features, features.T)
        else:
            squared = ops.square(features.expand_dims(1) - features.expand_dims(0)).sum(2)
        distances = ops.clamp(squared, min=DISTANCE_EPS)
        if not self.are_distances_squared:
            distances = ops.sqrt(distances)
        is_same = labels.expand_dims(0) == labels.expand_dims(1)
        is_excluded = is_same
        if self.are_negatives_others:
            is_excluded = ops.eye(BATCH, BATCH, ms.bool_)
        positives = ops.masked_fill(distances, ops.logical_not(is_same), -1e9).max(axis=1)
        negatives = ops.masked_fill(distances, is_excluded, 1e9).min(axis=1)
        return self.softplus(positives - negatives).mean()


class CenterLoss(nn.Cell):
    """Half the squared distance to the center of the class."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.centers = Parameter(Tensor(model.weights["centers.weight"]), name="centers")
        self.is_sum, self.is_stopped = model.is_center_sum, model.is_center_stopped

    def construct(self, features, labels):
        if self.is_stopped:
            features = ops.stop_gradient(features)
        losses = 0.5 * ops.square(features - ops.gather(self.centers, labels, 0)).sum(1)
        return losses.sum() if self.is_sum else losses.mean()


class NetWithLoss(nn.Cell):
    """Sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = Backbone(model)
        self.arc_margin = ArcMarginLoss(model)
        self.triplet_loss = TripletLoss(model)
        self.center_loss = CenterLoss(model)
        self.is_triplet_behind_neck = model.is_triplet_behind_neck

    def construct(self, images, labels):
        features, necked = self.network(images)
        loss = self.arc_margin(necked, labels)
        loss += self.triplet_loss(necked if self.is_triplet_behind_neck else features, labels)
        return loss + CENTER_WEIGHT * self.center_loss(features, labels)
