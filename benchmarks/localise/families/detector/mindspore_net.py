"""The detector in MindSpore, with cells as those of MindYOLO and its model zoo's RetinaNet.

Variant 'written': batch norm, leaky relu and upsampling in plain arithmetic, the wide pooling as
two narrow ones.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from families.detector.architecture import (
    ANCHORS,
    BACKGROUND,
    BOX_WEIGHT,
    CELLS,
    CLASSES,
    EPS,
    GAMMA,
    IGNORED,
    MAX_LOG_SIZE,
    MOMENTUM,
    PYRAMID,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.anchor_offset != 0.5
        or model.is_height_first
        or model.are_ignored_counted
        or not model.has_enclosing_term
        or model.is_modulation_stopped
        or model.are_norms_frozen
        or model.is_pooling_gradient_assigned
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return DetectionLoss(model)


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``.

    A convolution of stride 2 whose padding is 'same' has no padding above and on the left.
    """
    weight = model.weights[f"{path}.weight"]
    n_out, n_in, kernel, _ = weight.shape
    bias = model.weights.get(f"{path}.bias")
    is_same = path == "stem" and model.is_stem_padded_behind
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="same" if is_same else "pad",
        padding=0 if is_same else kernel // 2,
        has_bias=bias is not None,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
    )


class WrittenNorm(nn.Cell):
    """Batch norm of (batch, channels, height, width) from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        mean = x.mean((0, 2, 3), keep_dims=True)
        variance = ops.square(x - mean).mean((0, 2, 3), keep_dims=True)
        scale = self.gamma.reshape(1, -1, 1, 1) / ops.sqrt(variance + EPS)
        return (x - mean) * scale + self.beta.reshape(1, -1, 1, 1)


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm at ``path``."""
    if model.variant == "written":
        return WrittenNorm(model, path)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm2d(
        len(weight), eps=EPS, momentum=1 - MOMENTUM, gamma_init=weight, beta_init=bias
    )


class LeakyReLU(nn.Cell):
    """The larger of x and slope * x."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def construct(self, x):
        return ops.maximum(x, self.slope * x)


def build_activation(model: Model) -> nn.Cell:
    """Return the activation of all layers."""
    return LeakyReLU(model.slope) if model.variant == "written" else nn.LeakyReLU(model.slope)


class ConvNormAct(nn.Cell):
    """Convolution, batch norm, leaky relu."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.conv = build_conv(model, path, stride)
        self.bn = build_norm(model, f"{path}.norm")
        self.act = build_activation(model)

    def construct(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Cell):
    """Two convolutions and a residual sum."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = ConvNormAct(model, "block.reduce")
        self.conv2 = ConvNormAct(model, "block.expand")

    def construct(self, x):
        return x + self.conv2(self.conv1(x))


class SPP(nn.Cell):
    """Features next to what is pooled around them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.narrow_pool = nn.MaxPool2d(3, 1, pad_mode="same")
        self.wide_pool = nn.MaxPool2d(5, 1, pad_mode="same")
        self.conv = ConvNormAct(model, "pooled")
        self.is_pooled_twice = model.variant == "written"
        self.are_pools_chained = model.are_pools_chained

    def construct(self, x):
        narrow = self.narrow_pool(x)
        if self.is_pooled_twice:
            wide = self.narrow_pool(narrow)
        else:
            wide = self.wide_pool(narrow if self.are_pools_chained else x)
        return self.conv(ops.concat((x, narrow, wide), 1))


class Backbone(nn.Cell):
    """Features of two levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvNormAct(model, "stem", 2)
        self.stage1 = nn.SequentialCell(ConvNormAct(model, "down.0", 2), Bottleneck(model))
        self.stage2 = nn.SequentialCell(ConvNormAct(model, "down.1", 2), SPP(model))

    def construct(self, images):
        fine = self.stage1(self.stem(images))
        return fine, self.stage2(fine)


class FPN(nn.Cell):
    """The coarse level upsampled into the fine one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.lateral_convs = nn.CellList([build_conv(model, f"lateral.{n}") for n in range(2)])
        self.fpn_convs = nn.CellList([build_conv(model, f"output.{n}") for n in range(2)])
        self.is_output_upsampled = model.is_output_upsampled
        self.is_repeated = model.variant == "written"

    def upsample(self, x):
        """Return (batch, PYRAMID, height, width) with each cell four times."""
        if self.is_repeated:
            cells = CELLS[1]
            x = x.reshape(-1, PYRAMID, cells, 1, cells, 1)
            return ops.tile(x, (1, 1, 1, 2, 1, 2)).reshape(-1, PYRAMID, 2 * cells, 2 * cells)
        return ops.interpolate(x, size=(CELLS[0], CELLS[0]), mode="nearest")

    def construct(self, fine, coarse):
        coarse = self.lateral_convs[1](coarse)
        coarse_output = self.fpn_convs[1](coarse)
        upsampled = self.upsample(coarse_output if self.is_output_upsampled else coarse)
        fine = self.lateral_convs[0](fine) + upsampled
        return self.fpn_convs[0](fine), coarse_output


class Head(nn.Cell):
    """One kind of outputs of all levels, (batch, anchors, values)."""

    def __init__(self, model: Model, name: str, values: int) -> None:
        super().__init__()
        self.conv = build_conv(model, f"head.tower.{name}")
        self.act = build_activation(model)
        self.predict = build_conv(model, f"head.{name}")
        self.values = values
        self.are_channels_first = name == "classes" and model.are_channels_first

    def construct(self, levels):
        outputs = ()
        for n in range(len(levels)):
            output = self.predict(self.act(self.conv(levels[n])))
            if not self.are_channels_first:
                output = output.transpose(0, 2, 3, 1)
            n_anchors = CELLS[n] * CELLS[n] * ANCHORS
            outputs = (*outputs, output.reshape(-1, n_anchors, self.values))
        return ops.concat(outputs, 1)


class RetinaNet(nn.Cell):
    """Logits of classes, and offsets of boxes, of all anchors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone, self.neck = Backbone(model), FPN(model)
        self.cls_head, self.reg_head = Head(model, "classes", CLASSES), Head(model, "boxes", 4)

    def construct(self, images):
        fine, coarse = self.backbone(images)
        levels = self.neck(fine, coarse)
        return self.cls_head(levels), self.reg_head(levels)


class FocalLoss(nn.Cell):
    """Binary cross entropy of all classes, weighted by how wrong they are."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.alpha = model.alpha
        self.bce = nn.BCEWithLogitsLoss(reduction="none")

    def construct(self, logits, targets, mask):
        probabilities = ops.sigmoid(logits)
        errors = probabilities * (1 - targets) + (1 - probabilities) * targets
        alphas = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        losses = alphas * ops.pow(errors, GAMMA) * self.bce(logits, targets)
        return (losses * mask).sum()


class GIoULoss(nn.Cell):
    """The share of a box and its target that is not common, and of what is empty around both."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        anchors = model.anchors()
        self.centers, self.sizes = Tensor(anchors[:, :2]), Tensor(anchors[:, 2:])
        self.center_scale = model.center_scale
        self.are_targets_sized = model.are_targets_sized

    def construct(self, deltas, targets, mask):
        offsets = deltas[..., :2]
        if self.center_scale != 1:
            offsets = offsets * self.center_scale
        centers = self.centers + offsets * self.sizes
        half_sizes = 0.5 * self.sizes * ops.exp(ops.minimum(deltas[..., 2:], MAX_LOG_SIZE))
        low, high = centers - half_sizes, centers + half_sizes
        target_low, target_high = targets[..., :2], targets[..., 2:]
        if self.are_targets_sized:
            target_high = target_low + target_high
        common_sizes = ops.minimum(high, target_high) - ops.maximum(low, target_low)
        common = self.multiply(ops.relu(common_sizes))
        union = self.multiply(high - low) + self.multiply(target_high - target_low) - common
        enclosing = self.multiply(ops.maximum(high, target_high) - ops.minimum(low, target_low))
        giou = common / union - (enclosing - union) / enclosing
        return ((1 - giou) * mask).sum()

    def multiply(self, sizes):
        """Return areas."""
        return sizes[..., 0] * sizes[..., 1]


class DetectionLoss(nn.Cell):
    """Focal loss of the classes, plus GIoU loss of the boxes."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = RetinaNet(model)
        self.cls_loss = FocalLoss(model)
        self.box_loss = GIoULoss(model)
        self.is_divided_by_anchors = model.normalizer == "anchors"

    def construct(self, images, labels, boxes):
        logits, deltas = self.network(images)
        is_object = ops.greater(labels, BACKGROUND).astype(ms.float32)
        is_valid = ops.not_equal(labels, IGNORED).astype(ms.float32)
        targets = ops.one_hot(ops.maximum(labels, BACKGROUND), CLASSES + 1, 1.0, 0.0)[..., 1:]
        class_loss = self.cls_loss(logits, targets, is_valid.expand_dims(-1))
        box_loss = self.box_loss(deltas, boxes, is_object)
        n_objects = is_object.sum()
        if self.is_divided_by_anchors:
            return class_loss / labels.size + BOX_WEIGHT * box_loss / n_objects
        return class_loss / n_objects + BOX_WEIGHT * box_loss / n_objects
