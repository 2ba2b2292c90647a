"""The detector in PyTorch, with the modules of torchvision's RetinaNet and YOLO's backbone.

Variant 'masked': the losses of all anchors by masks, and the focal loss from log-sigmoids.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.detector.architecture import (
    ALPHA,
    BACKGROUND,
    BOX_WEIGHT,
    CLASSES,
    EPS,
    GAMMA,
    IGNORED,
    MAX_LOG_SIZE,
    MOMENTUM,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.is_output_upsampled
        or model.are_channels_first
        or model.center_scale != 1
        or model.alpha != ALPHA
        or model.normalizer != "objects"
        or model.are_targets_sized
        or model.are_pools_chained
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return Detector(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Module:
    """Return the convolution at ``path``."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=has_bias)
    return load(conv, model, path)


class ConvModule(nn.Sequential):
    """Convolution, batch norm, leaky relu."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        conv = load_conv(model, path, stride)
        norm = nn.BatchNorm2d(conv.out_channels, eps=EPS, momentum=MOMENTUM)
        norm.train(not model.are_norms_frozen)
        super().__init__(conv, load(norm, model, f"{path}.norm"), nn.LeakyReLU(model.slope))
        self.is_padded_behind = path == "stem" and model.is_stem_padded_behind
        if self.is_padded_behind:
            conv.padding = (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)) if self.is_padded_behind else x)


class Bottleneck(nn.Module):
    """Two convolutions and a residual sum."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = ConvModule(model, "block.reduce")
        self.conv2 = ConvModule(model, "block.expand")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x))


class AssignedMaxPool(torch.autograd.Function):
    """Max pooling of overlapping windows; its backward pass is that of windows side by side.

    An element that is the largest one of several windows gets the gradient of the last of them.
    """

    @staticmethod
    def forward(context, x: Tensor, size: int) -> Tensor:
        pool = torch.ops.aten.max_pool2d_with_indices
        pooled, indices = pool(x, [size, size], [1, 1], [size // 2, size // 2])
        context.save_for_backward(indices)
        return pooled

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        (indices,) = context.saved_tensors
        zeros = torch.zeros_like(gradient).flatten(2)
        assign = torch.ops.aten.scatter.src
        return assign(zeros, 2, indices.flatten(2), gradient.flatten(2)).view_as(gradient), None


class AssignedMaxPool2d(nn.MaxPool2d):
    """A module of it."""

    def forward(self, x: Tensor) -> Tensor:
        return AssignedMaxPool.apply(x, self.kernel_size)


class SPP(nn.Module):
    """Features next to what is pooled around them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        pool_class = AssignedMaxPool2d if model.is_pooling_gradient_assigned else nn.MaxPool2d
        self.pools = nn.ModuleList(pool_class(size, 1, padding=size // 2) for size in (3, 5))
        self.conv = ConvModule(model, "pooled")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.cat([x, *(pool(x) for pool in self.pools)], dim=1))


class Backbone(nn.Module):
    """Features of two levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvModule(model, "stem", 2)
        self.layer1 = nn.Sequential(ConvModule(model, "down.0", 2), Bottleneck(model))
        self.layer2 = nn.Sequential(ConvModule(model, "down.1", 2), SPP(model))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.layer1(self.stem(images))
        return fine, self.layer2(fine)


class FeaturePyramidNetwork(nn.Module):
    """The coarse level upsampled into the fine one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList(load_conv(model, f"lateral.{n}") for n in range(2))
        self.layer_blocks = nn.ModuleList(load_conv(model, f"output.{n}") for n in range(2))

    def forward(self, fine: Tensor, coarse: Tensor) -> list[Tensor]:
        coarse = self.inner_blocks[1](coarse)
        fine = self.inner_blocks[0](fine)
        fine = fine + F.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        return [self.layer_blocks[0](fine), self.layer_blocks[1](coarse)]


class Head(nn.Module):
    """One kind of outputs of all levels, (batch, anchors, values)."""

    def __init__(self, model: Model, name: str, values: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(load_conv(model, f"head.tower.{name}"), nn.LeakyReLU(model.slope))
        self.predictor = load_conv(model, f"head.{name}")
        self.values = values

    def forward(self, levels: list[Tensor]) -> Tensor:
        outputs = []
        for level in levels:
            output = self.predictor(self.conv(level)).permute(0, 2, 3, 1)
            outputs.append(output.reshape(len(output), -1, self.values))
        return torch.cat(outputs, dim=1)


class Detector(nn.Module):
    """Focal loss of the classes, plus GIoU loss of the boxes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.backbone, self.fpn = Backbone(model), FeaturePyramidNetwork(model)
        self.classification_head = Head(model, "classes", CLASSES)
        self.regression_head = Head(model, "boxes", 4)
        self.register_buffer("anchors", torch.from_numpy(model.anchors()))
        self.is_masked = model.variant == "masked"

    def decode(self, deltas: Tensor, anchors: Tensor) -> Tensor:
        """Return boxes as corners."""
        dx, dy, dw, dh = deltas.unbind(dim=-1)
        if self.model.is_height_first:
            dw, dh = dh, dw
        x, y, width, height = anchors.unbind(dim=-1)
        center_x, center_y = x + dx * width, y + dy * height
        half_width = 0.5 * width * torch.exp(dw.clamp(max=MAX_LOG_SIZE))
        half_height = 0.5 * height * torch.exp(dh.clamp(max=MAX_LOG_SIZE))
        return torch.stack(
            [
                center_x - half_width,
                center_y - half_height,
                center_x + half_width,
                center_y + half_height,
            ],
            dim=-1,
        )

    def compute_giou(self, boxes: Tensor, targets: Tensor) -> Tensor:
        """Return the overlap of each box with its target, less the empty share around both."""
        areas = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
        target_areas = (targets[..., 2:] - targets[..., :2]).prod(dim=-1)
        low = torch.max(boxes[..., :2], targets[..., :2])
        high = torch.min(boxes[..., 2:], targets[..., 2:])
        common = (high - low).clamp(min=0).prod(dim=-1)
        union = areas + target_areas - common
        overlap = common / union
        if not self.model.has_enclosing_term:
            return overlap
        low = torch.min(boxes[..., :2], targets[..., :2])
        high = torch.max(boxes[..., 2:], targets[..., 2:])
        enclosing = (high - low).prod(dim=-1)
        return overlap - (enclosing - union) / enclosing

    def compute_focal_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses of classes, weighted by how wrong they are."""
        if self.is_masked:
            signed = logits * (2 * targets - 1)
            weights = (1 - ALPHA) + (2 * ALPHA - 1) * targets
            return -weights * torch.sigmoid(-signed).pow(GAMMA) * F.logsigmoid(signed)
        p = torch.sigmoid(logits)
        p_t = p * targets + (1 - p) * (1 - targets)
        if self.model.is_modulation_stopped:
            p_t = p_t.detach()
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        alpha_t = ALPHA * targets + (1 - ALPHA) * (1 - targets)
        return alpha_t * (losses * ((1 - p_t) ** GAMMA))

    def forward(self, images: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        levels = self.fpn(*self.backbone(images))
        logits, deltas = self.classification_head(levels), self.regression_head(levels)
        is_object = labels > BACKGROUND
        is_valid = labels != IGNORED
        targets = F.one_hot(labels.clamp(min=BACKGROUND), CLASSES + 1)[..., 1:].float()
        if self.is_masked:
            losses = self.compute_focal_losses(logits, targets) * is_valid[..., None]
            giou = self.compute_giou(self.decode(deltas, self.anchors), boxes)
            box_losses = torch.where(is_object, 1 - giou, 0.0)
            return (losses.sum() + BOX_WEIGHT * box_losses.sum()) / is_object.sum()
        if not self.model.are_ignored_counted:
            logits, targets = logits[is_valid], targets[is_valid]
        class_loss = self.compute_focal_losses(logits, targets).sum()
        anchors = self.anchors.expand(len(images), -1, -1)[is_object]
        giou = self.compute_giou(self.decode(deltas[is_object], anchors), boxes[is_object])
        n_objects = is_object.sum().clamp(min=1)
        return class_loss / n_objects + BOX_WEIGHT * ((1 - giou).sum() / n_objects)
