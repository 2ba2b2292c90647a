"""The re-identification net in PyTorch, with the modules of the strong baseline.

Variant 'functional': other names, norms, pooling and losses from elementary functions. Variant
'angles': the margin is added to the angle, and distances come from products of the features.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.reid.architecture import (
    CENTER_WEIGHT,
    CHANNELS,
    DISTANCE_EPS,
    EPS,
    HARD_MARGIN,
    MARGIN,
    POOL_EPS,
    SCALE,
    STRIDES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return MetricLearner(model) if model.variant == "functional" else NetWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load_norm(model: Model, path: str, norm: nn.Module) -> nn.Module:
    """Return a norm with the weights at ``path``."""
    state = {name: read(model, f"{path}.{name}") for name in ("weight", "bias")}
    norm.load_state_dict(state, strict=False)
    return norm


class IBN(nn.Module):
    """Instance norm of the first half of the channels, batch norm of the second one."""

    def __init__(self, model: Model, path: str, planes: int) -> None:
        super().__init__()
        self.half = planes // 2
        instance = nn.InstanceNorm2d(self.half, eps=EPS, affine=True)
        self.IN = load_norm(model, f"{path}.instance", instance)
        batch = nn.BatchNorm2d(planes - self.half, eps=EPS)
        self.BN = load_norm(model, f"{path}.batch", batch)
        self.is_batch_first = model.is_batch_first

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.split(x, self.half, 1)
        if self.is_batch_first:
            return torch.cat((self.BN(first.contiguous()), self.IN(second.contiguous())), 1)
        return torch.cat((self.IN(first.contiguous()), self.BN(second.contiguous())), 1)


class GeM(nn.Module):
    """Generalized mean of the pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.p = nn.Parameter(read(model, "pool.weight"))
        self.is_mean = model.is_pool_mean

    def forward(self, x: Tensor) -> Tensor:
        if self.is_mean:
            return F.adaptive_avg_pool2d(x, 1).flatten(1)
        x = F.adaptive_avg_pool2d(x.clamp(min=POOL_EPS).pow(self.p), 1)
        return x.pow(1.0 / self.p).flatten(1)


class Backbone(nn.Module):
    """Features and what comes out of the neck, (batch, FEATURES) each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        n_in = 3
        for n, (planes, stride) in enumerate(zip(CHANNELS, STRIDES, strict=True)):
            conv = nn.Conv2d(n_in, planes, 3, stride, padding=1, bias=False)
            conv.weight.data.copy_(read(model, f"stages.{n}.weight"))
            if n < len(CHANNELS) - 1:
                norm: nn.Module = IBN(model, f"stages.{n}", planes)
            else:
                norm = load_norm(model, f"stages.{n}.batch", nn.BatchNorm2d(planes, eps=EPS))
            layers += [conv, norm, nn.ReLU()]
            n_in = planes
        self.base = nn.Sequential(*layers)
        self.gap = GeM(model)
        weight = read(model, "reduce.weight")
        self.reduction = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.reduction.weight.data.copy_(weight)
        self.bottleneck = load_norm(model, "neck", nn.BatchNorm1d(len(weight), eps=EPS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.reduction(self.gap(self.base(x)))
        return feature, self.bottleneck(feature)


class ArcFace(nn.Module):
    """Cosines with the classes, with an angular margin for the right one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, "classes.weight"))
        self.s, self.is_easy = model.scale, model.is_margin_easy
        self.are_norms_detached = model.are_norms_detached
        self.has_angles = model.variant == "angles"
        self.cos_m, self.sin_m = math.cos(MARGIN), math.sin(MARGIN)
        self.th, self.mm = math.cos(math.pi - MARGIN), math.sin(math.pi - MARGIN) * MARGIN

    def normalize(self, x: Tensor) -> Tensor:
        """Return rows of length one."""
        if self.are_norms_detached:
            return x / x.detach().norm(dim=1, keepdim=True)
        return F.normalize(x)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        cosine = F.linear(self.normalize(x), self.normalize(self.weight))
        if self.has_angles:
            phi = torch.cos(torch.acos(cosine) + MARGIN)
        else:
            sine = torch.sqrt(1.0 - cosine.pow(2))
            phi = cosine * self.cos_m - sine * self.sin_m
        if self.is_easy:
            phi = torch.where(cosine > 0, phi, cosine)
        else:
            phi = torch.where(cosine > self.th, phi, cosine - self.mm)
        one_hot = F.one_hot(label, len(self.weight)).to(x.dtype)
        return self.s * (one_hot * phi + (1.0 - one_hot) * cosine)


class TripletLoss(nn.Module):
    """Soft margin between the farthest image of the person and the nearest one of another."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.has_products = model.variant == "angles"
        self.are_negatives_others = model.are_negatives_others
        self.is_hinge = model.is_triplet_hinge

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        if self.has_products:
            squares = x.pow(2).sum(1, keepdim=True)
            dist = squares + squares.t() - 2 * x @ x.t()
        else:
            dist = (x.unsqueeze(1) - x.unsqueeze(0)).pow(2).sum(2)
        dist = dist.clamp(min=DISTANCE_EPS).sqrt()
        is_same = label.unsqueeze(0) == label.unsqueeze(1)
        is_excluded = is_same
        if self.are_negatives_others:
            is_excluded = torch.eye(len(x), dtype=torch.bool)
        dist_ap = dist.masked_fill(~is_same, -1e9).max(1).values
        dist_an = dist.masked_fill(is_excluded, 1e9).min(1).values
        if self.is_hinge:
            y = torch.ones_like(dist_an)
            return F.margin_ranking_loss(dist_an, dist_ap, y, margin=HARD_MARGIN)
        return F.softplus(dist_ap - dist_an).mean()


class CenterLoss(nn.Module):
    """Half the squared distance to the center of the class."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.centers = nn.Parameter(read(model, "centers.weight"))
        self.is_sum, self.is_stopped = model.is_center_sum, model.is_center_stopped
        self.gradient = model.center_gradient

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        if self.is_stopped:
            x = x.detach()
        centers = self.centers
        if self.gradient != 1:
            centers = scaled_gradient(centers, self.gradient)
        losses = 0.5 * (x - centers[label]).pow(2).sum(1)
        return losses.sum() if self.is_sum else losses.mean()


class NetWithLoss(nn.Module):
    """Sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone, self.classifier = Backbone(model), ArcFace(model)
        self.triplet, self.center = TripletLoss(model), CenterLoss(model)
        self.is_triplet_behind_neck = model.is_triplet_behind_neck

    def forward(self, images: Tensor, label: Tensor) -> Tensor:
        global_feat, feat = self.backbone(images)
        id_loss = F.cross_entropy(self.classifier(feat, label), label)
        tri_loss = self.triplet(feat if self.is_triplet_behind_neck else global_feat, label)
        return id_loss + tri_loss + CENTER_WEIGHT * self.center(global_feat, label)


class MomentNorm(nn.Module):
    """A norm over some axes, from mean and variance."""

    def __init__(self, model: Model, path: str, dim: tuple[int, ...]) -> None:
        super().__init__()
        self.gain = nn.Parameter(read(model, f"{path}.weight"))
        self.shift = nn.Parameter(read(model, f"{path}.bias"))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=self.dim, unbiased=False, keepdim=True)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        x = (x - mean) * torch.rsqrt(variance + EPS)
        return x * self.gain.view(shape) + self.shift.view(shape)


class Stage(nn.Module):
    """A convolution, its norms, each of a share of the channels, and a relu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"stages.{n}"
        self.kernel = nn.Parameter(read(model, f"{path}.weight"))
        self.stride = STRIDES[n]
        norms = [MomentNorm(model, f"{path}.batch", (0, 2, 3))]
        if n < len(CHANNELS) - 1:
            norms.insert(0, MomentNorm(model, f"{path}.instance", (2, 3)))
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.kernel, stride=self.stride, padding=1)
        parts = zip(self.norms, x.chunk(len(self.norms), dim=1), strict=True)
        return F.relu(torch.cat([norm(part) for norm, part in parts], dim=1))


class MetricLearner(nn.Module):
    """The net and its losses in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(Stage(model, n) for n in range(len(CHANNELS)))
        self.exponent = nn.Parameter(read(model, "pool.weight"))
        self.projection = nn.Parameter(read(model, "reduce.weight"))
        self.neck = MomentNorm(model, "neck", (0,))
        self.prototypes = nn.Parameter(read(model, "classes.weight"))
        self.means = nn.Parameter(read(model, "centers.weight"))

    def forward(self, images: Tensor, label: Tensor) -> Tensor:
        x = images
        for stage in self.trunk:
            x = stage(x)
        x = x.clamp(min=POOL_EPS).pow(self.exponent).mean((2, 3)).pow(1.0 / self.exponent)
        feature = x @ self.projection.t()
        embedding = self.neck(feature)
        embedding = embedding / embedding.norm(dim=1, keepdim=True)
        prototypes = self.prototypes / self.prototypes.norm(dim=1, keepdim=True)
        cosine = embedding @ prototypes.t()
        target = cosine.gather(1, label[:, None])
        turned = target * math.cos(MARGIN) - (1 - target * target).sqrt() * math.sin(MARGIN)
        is_within = target > -math.cos(MARGIN)
        turned = torch.where(is_within, turned, target - MARGIN * math.sin(MARGIN))
        log_probs = (SCALE * cosine.scatter(1, label[:, None], turned)).log_softmax(1)
        loss = -log_probs.gather(1, label[:, None]).mean()

        distance = (feature[:, None] - feature[None]).square().sum(-1)
        distance = distance.clamp(min=DISTANCE_EPS).sqrt()
        is_same = label[:, None] == label
        positive = torch.where(is_same, distance, -torch.inf).amax(1)
        negative = torch.where(is_same, torch.inf, distance).amin(1)
        loss = loss + torch.log1p(torch.exp(positive - negative)).mean()
        offset = feature - F.embedding(label, self.means)
        return loss + CENTER_WEIGHT * 0.5 * (offset * offset).sum() / len(offset)
