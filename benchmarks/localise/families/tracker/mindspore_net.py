"""A siamese tracker in MindSpore for graph mode.

Variant 'written': norms in plain arithmetic, the correlation as a sum of products with shifted
search regions, cross entropies by softplus, smooth L1 from the part of an error below its
threshold, boxes as corners in one tensor.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.tracker.architecture import (
    ANCHORS,
    BATCH,
    BETA,
    CROP,
    DEVIATION,
    EPS,
    GIOU_WEIGHT,
    HIDDEN,
    INFLUENCE,
    IOU_WEIGHT,
    KERNEL,
    LEVELS,
    LOC_WEIGHT,
    MEAN,
    PENALTY,
    SCORES,
    SEARCH_CELLS,
    TRACK_WEIGHT,
    Model,
    make_centers,
    make_sizes,
)

GROUPS = BATCH * HIDDEN  #: channels of all pairs, each with its own kernel
REGION = SEARCH_CELLS - 2  #: rows and columns that kernels are moved over


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else TrackerWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_conv(
    model: Model, path: str, stride: int = 1, dilation: int = 1, *, is_padded: bool = True
) -> nn.Conv2d:
    """Return the convolution at a path."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad" if is_padded else "valid",
        padding=dilation * (kernel // 2) if is_padded else 0,
        dilation=dilation,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm of the convolution at a path; one with statistics is frozen."""
    weight, bias = read(model, f"{path}.norm.weight"), read(model, f"{path}.norm.bias")
    if f"{path}.norm.mean" not in model.weights:
        return nn.BatchNorm2d(len(weight), eps=EPS, gamma_init=weight, beta_init=bias)
    return nn.BatchNorm2d(
        len(weight),
        eps=EPS,
        gamma_init=weight,
        beta_init=bias,
        moving_mean_init=read(model, f"{path}.norm.mean"),
        moving_var_init=read(model, f"{path}.norm.variance"),
        use_batch_statistics=False,
    )


class ConvBN(nn.Cell):
    """A layer, with a ReLU if it is activated."""

    def __init__(
        self,
        model: Model,
        path: str,
        stride: int = 1,
        dilation: int = 1,
        *,
        is_padded: bool = True,
        is_activated: bool = True,
    ) -> None:
        super().__init__()
        self.conv = build_conv(model, path, stride, dilation, is_padded=is_padded)
        self.bn = build_norm(model, path)
        self.relu = nn.ReLU()
        self.is_activated = is_activated

    def construct(self, x):
        x = self.bn(self.conv(x))
        return self.relu(x) if self.is_activated else x


class ResidualBlock(nn.Cell):
    """Two layers added to their input."""

    def __init__(self, model: Model, n: int, stride: int, dilation: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.conv1 = ConvBN(model, f"{path}.first", stride, dilation)
        self.conv2 = ConvBN(model, f"{path}.second", 1, dilation, is_activated=False)
        self.has_shortcut = f"{path}.shortcut.weight" in model.weights
        if self.has_shortcut:
            self.downsample = ConvBN(model, f"{path}.shortcut", stride, is_activated=False)
        self.relu = nn.ReLU()

    def construct(self, x):
        out = self.conv2(self.conv1(x))
        identity = self.downsample(x) if self.has_shortcut else x
        return self.relu(out + identity)


class Backbone(nn.Cell):
    """Features of three levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvBN(model, "stem", 2)
        for parameter in self.stem.get_parameters():
            parameter.requires_grad = False
        self.layer1 = ResidualBlock(model, 0, 2, 1)
        self.layer2 = ResidualBlock(model, 1, 1, 2)
        self.layer3 = ResidualBlock(model, 2, 1, 2)

    def construct(self, image):
        level1 = self.layer1(self.stem(image))
        level2 = self.layer2(level1)
        return level1, level2, self.layer3(level2)


class AdjustLayers(nn.Cell):
    """Levels with as many channels as the heads read."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.CellList([ConvBN(model, f"necks.{n}") for n in range(LEVELS)])

    def construct(self, features):
        adjusted = ()
        for n, layer in enumerate(self.layers):
            adjusted += (layer(features[n]),)
        return adjusted


class DepthwiseCorrelation(nn.Cell):
    """Each channel's template moved over its search region."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = ops.Conv2D(GROUPS, KERNEL, group=GROUPS)

    def construct(self, search, kernel):
        search = search.reshape(1, GROUPS, REGION, REGION)
        out = self.conv(search, kernel.reshape(GROUPS, 1, KERNEL, KERNEL))
        return out.reshape(BATCH, HIDDEN, SCORES, SCORES)


class FusedCorrelation(DepthwiseCorrelation):
    """The same with its own backward pass, where the kernel is not turned around."""

    def __init__(self) -> None:
        super().__init__()
        self.search_conv = ops.Conv2D(GROUPS, KERNEL, pad_mode="pad", pad=KERNEL - 1, group=GROUPS)
        self.kernel_conv = ops.Conv2D(GROUPS, SCORES, group=GROUPS)

    def bprop(self, search, kernel, out, gradient):
        groups = gradient.reshape(1, GROUPS, SCORES, SCORES)
        kernels = kernel.reshape(GROUPS, 1, KERNEL, KERNEL)
        search_gradient = self.search_conv(groups, kernels).reshape(search.shape)
        regions = search.reshape(1, GROUPS, REGION, REGION)
        kernel_gradient = self.kernel_conv(regions, gradient.reshape(GROUPS, 1, SCORES, SCORES))
        return search_gradient, kernel_gradient.reshape(kernel.shape)


class Branch(nn.Cell):
    """What a head of a level reads."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv_kernel = ConvBN(model, f"{path}.kernel", is_padded=False)
        self.conv_search = ConvBN(model, f"{path}.search", is_padded=False)
        if model.is_kernel_flipped_back:
            self.correlation = DepthwiseCorrelation()
        else:
            self.correlation = FusedCorrelation()
        self.hidden = ConvBN(model, f"{path}.hidden")

    def construct(self, template, search):
        correlated = self.correlation(self.conv_search(search), self.conv_kernel(template))
        return self.hidden(correlated)


class LevelHead(nn.Cell):
    """Logits, deltas and logits of IoUs of a level."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.cls_branch = Branch(model, f"cls.{n}")
        self.cls_out = build_conv(model, f"cls.{n}.out")
        self.loc_branch = Branch(model, f"loc.{n}")
        self.loc_out = build_conv(model, f"loc.{n}.out")
        self.iou_out = build_conv(model, f"iou.{n}.out")

    def construct(self, template, search):
        located = self.loc_branch(template, search)
        logits = self.cls_out(self.cls_branch(template, search))
        return logits, self.loc_out(located), self.iou_out(located)


class MultiLevelHead(nn.Cell):
    """The sum of all levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads = nn.CellList([LevelHead(model, n) for n in range(LEVELS)])
        self.cls_weight = Parameter(read(model, "fusion.cls"), name="cls_weight")
        self.loc_weight = Parameter(read(model, "fusion.loc"), name="loc_weight")
        self.softmax = nn.Softmax(axis=0)

    def construct(self, templates, searches):
        cls_weight, loc_weight = self.softmax(self.cls_weight), self.softmax(self.loc_weight)
        logits, deltas, iou_logits = 0.0, 0.0, 0.0
        for n, head in enumerate(self.heads):
            cls_level, loc_level, iou_level = head(templates[n], searches[n])
            logits += cls_weight[n] * cls_level
            deltas += loc_weight[n] * loc_level
            iou_logits += loc_weight[n] * iou_level
        return logits, deltas, iou_logits


class SiameseTracker(nn.Cell):
    """Outputs of all anchors for a template and a search region."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = Backbone(model)
        self.neck = AdjustLayers(model)
        self.head = MultiLevelHead(model)
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(DEVIATION, np.float32).reshape(1, 3, 1, 1))
        self.start, self.end = model.crop_start, model.crop_start + CROP
        self.is_template_stopped = model.is_template_stopped

    def construct(self, template, search):
        adjusted = self.neck(self.backbone((template - self.mean) / self.std))
        templates = ()
        for level in adjusted:
            crop = level[:, :, self.start : self.end, self.start : self.end]
            templates += (ops.stop_gradient(crop) if self.is_template_stopped else crop,)
        searches = self.neck(self.backbone((search - self.mean) / self.std))
        return self.head(templates, searches)


class AnchorBoxes(nn.Cell):
    """Deltas of a box from all anchors, and boxes that deltas make."""

    def __init__(self) -> None:
        super().__init__()
        centers = make_centers()
        center_x, center_y = np.meshgrid(centers, centers)
        sizes = make_sizes().reshape(ANCHORS, 2, 1, 1)
        self.x, self.y = Tensor(center_x), Tensor(center_y)
        self.width, self.height = Tensor(sizes[:, 0].copy()), Tensor(sizes[:, 1].copy())

    def encode(self, boxes):
        """Return deltas (BATCH, 4, ANCHORS, SCORES, SCORES) of boxes (BATCH, 4)."""
        boxes = boxes.reshape(BATCH, 4, 1, 1, 1)
        x = (boxes[:, 0] - self.x) / self.width
        y = (boxes[:, 1] - self.y) / self.height
        width = ops.broadcast_to(ops.log(boxes[:, 2] / self.width), x.shape)
        height = ops.broadcast_to(ops.log(boxes[:, 3] / self.height), x.shape)
        return ops.stack((x, y, width, height), 1)

    def construct(self, deltas):
        x = deltas[:, 0] * self.width + self.x
        y = deltas[:, 1] * self.height + self.y
        return x, y, ops.exp(deltas[:, 2]) * self.width, ops.exp(deltas[:, 3]) * self.height


class BoxIoU(nn.Cell):
    """IoU and GIoU of boxes (x, y, width, height) and boxes (BATCH, 4) of objects."""

    def construct(self, x, y, width, height, boxes):
        boxes = boxes.reshape(BATCH, 4, 1, 1, 1)
        left, right = x - width / 2, x + width / 2
        top, bottom = y - height / 2, y + height / 2
        box_width, box_height = boxes[:, 2], boxes[:, 3]
        box_left, box_right = boxes[:, 0] - box_width / 2, boxes[:, 0] + box_width / 2
        box_top, box_bottom = boxes[:, 1] - box_height / 2, boxes[:, 1] + box_height / 2
        inner_width = ops.relu(ops.minimum(right, box_right) - ops.maximum(left, box_left))
        inner_height = ops.relu(ops.minimum(bottom, box_bottom) - ops.maximum(top, box_top))
        inner = inner_width * inner_height
        union = width * height + box_width * box_height - inner
        iou = inner / union
        outer_width = ops.maximum(right, box_right) - ops.minimum(left, box_left)
        outer_height = ops.maximum(bottom, box_bottom) - ops.minimum(top, box_top)
        outer = outer_width * outer_height
        return iou, iou - (outer - union) / outer


class ClassLoss(nn.Cell):
    """Cross entropy, half of objects and half of background."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_ignored_negative = model.are_ignored_negative
        self.are_classes_balanced = model.are_classes_balanced
        self.log_softmax = nn.LogSoftmax(axis=1)

    def construct(self, logits, labels):
        log_probability = self.log_softmax(logits)
        positive = ops.equal(labels, 1).astype(ms.float32)
        if self.are_ignored_negative:
            negative = 1 - positive
        else:
            negative = ops.equal(labels, 0).astype(ms.float32)
        positive_loss = -(log_probability[:, 1] * positive).sum()
        negative_loss = -(log_probability[:, 0] * negative).sum()
        if not self.are_classes_balanced:
            return (positive_loss + negative_loss) / (positive + negative).sum()
        return 0.5 * positive_loss / positive.sum() + 0.5 * negative_loss / negative.sum()


class DeltaLoss(nn.Cell):
    """Smooth L1 of the deltas of objects."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.smooth_l1 = nn.SmoothL1Loss(beta=model.beta, reduction="none")

    def construct(self, deltas, targets, positive):
        errors = self.smooth_l1(deltas, targets).sum(1)
        weights = positive / ops.maximum(positive.sum((1, 2, 3), keepdims=True), 1.0)
        return (errors * weights).sum() / BATCH


def change(ratio):
    """Return the larger one of a quotient and its inverse."""
    return ops.maximum(ratio, 1 / ratio)


def compute_size(width, height):
    """Return the side of the crop around a box."""
    margin = (width + height) * 0.5
    return ops.sqrt((width + margin) * (height + margin))


class TrackLoss(nn.Cell):
    """The expected 1 - IoU of the box that the tracker takes."""

    def __init__(self) -> None:
        super().__init__()
        window = np.outer(np.hanning(SCORES), np.hanning(SCORES))
        self.window = Tensor(window.astype(np.float32))
        self.softmax = nn.Softmax(axis=1)
        self.sigmoid = nn.Sigmoid()

    def construct(self, logits, iou_logits, width, height, iou, last_sizes, positive):
        score = self.softmax(logits)[:, 1] * self.sigmoid(iou_logits)
        last_sizes = last_sizes.reshape(BATCH, 2, 1, 1, 1)
        last_width, last_height = last_sizes[:, 0], last_sizes[:, 1]
        scale = change(compute_size(width, height) / compute_size(last_width, last_height))
        ratio = change((last_width / last_height) / (width / height))
        score = ops.exp(-(scale * ratio - 1) * PENALTY) * score
        score = score * (1 - INFLUENCE) + self.window * INFLUENCE
        probability = score / score.sum((1, 2, 3), keepdims=True)
        risk = (probability * (1 - iou)).sum((1, 2, 3))
        has_object = positive.max((1, 2, 3))
        return (risk * has_object).sum() / has_object.sum()


class TrackerWithLoss(nn.Cell):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = SiameseTracker(model)
        self.anchors = AnchorBoxes()
        self.box_iou = BoxIoU()
        self.cls_loss = ClassLoss(model)
        self.loc_loss = DeltaLoss(model)
        self.bce = nn.BCEWithLogitsLoss(reduction="none")
        self.track_loss = TrackLoss()

    def construct(self, template, search, boxes, last_sizes, labels):
        logits, deltas, iou_logits = self.network(template, search)
        logits = logits.reshape(BATCH, 2, ANCHORS, SCORES, SCORES)
        deltas = deltas.reshape(BATCH, 4, ANCHORS, SCORES, SCORES)
        positive = ops.equal(labels, 1).astype(ms.float32)
        count = positive.sum()
        x, y, width, height = self.anchors(deltas)
        iou, giou = self.box_iou(x, y, width, height, boxes)
        loss = self.cls_loss(logits, labels)
        loss += LOC_WEIGHT * self.loc_loss(deltas, self.anchors.encode(boxes), positive)
        loss += GIOU_WEIGHT * ((1 - giou) * positive).sum() / count
        iou_loss = self.bce(iou_logits, ops.stop_gradient(iou))
        loss += IOU_WEIGHT * (iou_loss * positive).sum() / count
        track_loss = self.track_loss(logits, iou_logits, width, height, iou, last_sizes, positive)
        return loss + TRACK_WEIGHT * track_loss


def softplus(x):
    """Return log(1 + exp(x))."""
    return mint.nn.functional.relu(x) + mint.log1p(mint.exp(-mint.abs(x)))


class WrittenLayer(nn.Cell):
    """A convolution and a batch norm in plain arithmetic."""

    def __init__(
        self, model: Model, path: str, stride: int = 1, dilation: int = 1, *, is_padded: bool = True
    ) -> None:
        super().__init__()
        self.conv = build_conv(model, path, stride, dilation, is_padded=is_padded)
        self.scale, self.shift = (
            Parameter(read(model, f"{path}.norm.{name}").reshape(1, -1, 1, 1))
            for name in ("weight", "bias")
        )

    def construct(self, x):
        x = self.conv(x)
        centered = x - x.mean((0, 2, 3), keep_dims=True)
        variance = mint.square(centered).mean((0, 2, 3), keep_dims=True)
        return centered * mint.rsqrt(variance + EPS) * self.scale + self.shift


class WrittenBackbone(nn.Cell):
    """Levels with HIDDEN channels; the stem's norm is in its convolution."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        factor = model.weights["stem.norm.weight"] / np.sqrt(
            model.weights["stem.norm.variance"] + np.float32(EPS)
        )
        bias = model.weights["stem.norm.bias"] - model.weights["stem.norm.mean"] * factor
        weight = model.weights["stem.weight"] * factor[:, None, None, None]
        self.stem = build_conv(
            Model(model.name, {"stem.weight": weight, "stem.bias": bias}), "stem", 2
        )
        for parameter in self.stem.get_parameters():
            parameter.requires_grad = False
        options = ((2, 1), (1, 2), (1, 2))
        self.first = nn.CellList(
            [WrittenLayer(model, f"blocks.{n}.first", *options[n]) for n in range(LEVELS)]
        )
        self.second = nn.CellList(
            [WrittenLayer(model, f"blocks.{n}.second", 1, options[n][1]) for n in range(LEVELS)]
        )
        self.shortcut = nn.CellList(
            [WrittenLayer(model, f"blocks.{n}.shortcut", options[n][0]) for n in range(LEVELS - 1)]
        )
        self.project = nn.CellList([WrittenLayer(model, f"necks.{n}") for n in range(LEVELS)])

    def construct(self, image):
        x = mint.nn.functional.relu(self.stem(image))
        levels = ()
        for n in range(LEVELS):
            out = self.second[n](mint.nn.functional.relu(self.first[n](x)))
            if n < LEVELS - 1:
                x = self.shortcut[n](x)
            x = mint.nn.functional.relu(x + out)
            levels += (mint.nn.functional.relu(self.project[n](x)),)
        return levels


class WrittenBranch(nn.Cell):
    """A branch of a level, with the correlation as a sum of products."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.kernel = WrittenLayer(model, f"{path}.kernel", is_padded=False)
        self.region = WrittenLayer(model, f"{path}.search", is_padded=False)
        self.mix = WrittenLayer(model, f"{path}.hidden")

    def construct(self, template, search):
        kernel = mint.nn.functional.relu(self.kernel(template))
        region = mint.nn.functional.relu(self.region(search))
        total = 0.0
        for i in range(KERNEL):
            for j in range(KERNEL):
                shifted = region[:, :, i : i + SCORES, j : j + SCORES]
                total = total + shifted * kernel[:, :, i : i + 1, j : j + 1]
        return mint.nn.functional.relu(self.mix(total))


class WrittenLoss(nn.Cell):
    """The same losses in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.features = WrittenBackbone(model)
        self.classify = nn.CellList([WrittenBranch(model, f"cls.{n}") for n in range(LEVELS)])
        self.locate = nn.CellList([WrittenBranch(model, f"loc.{n}") for n in range(LEVELS)])
        self.cls_outs, self.loc_outs, self.iou_outs = (
            nn.CellList([build_conv(model, f"{kind}.{n}.out") for n in range(LEVELS)])
            for kind in ("cls", "loc", "iou")
        )
        self.cls_shares = Parameter(read(model, "fusion.cls"), name="cls_shares")
        self.loc_shares = Parameter(read(model, "fusion.loc"), name="loc_shares")
        deviation = np.array(DEVIATION, np.float32).reshape(3, 1, 1)
        self.factor = Tensor(1 / deviation)
        self.offset = Tensor(np.array(MEAN, np.float32).reshape(3, 1, 1) / deviation)
        centers, sizes = make_centers(), make_sizes()
        shape = (ANCHORS, SCORES, SCORES)
        x = np.broadcast_to(centers, shape)
        y = np.broadcast_to(centers[:, None], shape)
        sizes = np.broadcast_to(sizes.T[:, :, None, None], (2, *shape))
        self.centers = Tensor(np.stack((x, y)))
        self.sizes = Tensor(sizes.copy())
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(SCORES) / (SCORES - 1))
        self.window = Tensor((INFLUENCE * hann[:, None] * hann).astype(np.float32))

    def fuse(self, shares, levels):
        """Return the sum of levels with the softmax of their shares."""
        shares = mint.exp(shares - shares.max())
        total = 0.0
        for n in range(LEVELS):
            total = total + shares[n] * levels[n]
        return total / mint.sum(shares)

    def predict(self, template, search):
        """Return logits, deltas and logits of IoUs, with an axis of anchors."""
        templates = self.features(template * self.factor - self.offset)
        regions = self.features(search * self.factor - self.offset)
        first = (templates[0].shape[2] - CROP) // 2
        logits, deltas, iou_logits = (), (), ()
        for n in range(LEVELS):
            kernel = templates[n][:, :, first:-first, first:-first]
            logits += (self.cls_outs[n](self.classify[n](kernel, regions[n])),)
            located = self.locate[n](kernel, regions[n])
            deltas += (self.loc_outs[n](located),)
            iou_logits += (self.iou_outs[n](located),)
        logits = self.fuse(self.cls_shares, logits)
        deltas = self.fuse(self.loc_shares, deltas)
        shape = (ANCHORS, SCORES, SCORES)
        return (
            logits.reshape(BATCH, 2, *shape),
            deltas.reshape(BATCH, 2, 2, *shape),
            self.fuse(self.loc_shares, iou_logits),
        )

    def compare(self, centers, sizes, boxes):
        """Return IoU and GIoU of boxes, each (BATCH, 2, ...), and those of objects."""
        box_centers, box_sizes = boxes[:, 0], boxes[:, 1]
        low, high = centers - 0.5 * sizes, centers + 0.5 * sizes
        box_low, box_high = box_centers - 0.5 * box_sizes, box_centers + 0.5 * box_sizes
        inner = mint.minimum(high, box_high) - mint.maximum(low, box_low)
        inner = mint.nn.functional.relu(inner)
        inner = inner[:, 0] * inner[:, 1]
        outer = mint.maximum(high, box_high) - mint.minimum(low, box_low)
        outer = outer[:, 0] * outer[:, 1]
        union = sizes[:, 0] * sizes[:, 1] + box_sizes[:, 0] * box_sizes[:, 1] - inner
        return inner / union, inner / union + union / outer - 1

    def compute_side(self, sizes):
        """Return the side of the crop around boxes."""
        width, height = sizes[:, 0], sizes[:, 1]
        return mint.sqrt((1.5 * width + 0.5 * height) * (0.5 * width + 1.5 * height))

    def construct(self, template, search, boxes, last_sizes, labels):
        logits, deltas, iou_logits = self.predict(template, search)
        boxes = boxes.reshape(BATCH, 2, 2, 1, 1, 1)
        centers = self.centers + self.sizes * deltas[:, 0]
        sizes = self.sizes * mint.exp(deltas[:, 1])
        iou, giou = self.compare(centers, sizes, boxes)

        is_positive = (labels == 1).astype(ms.float32)
        is_negative = (labels == 0).astype(ms.float32)
        positive = is_positive / mint.sum(is_positive)
        negative = is_negative / mint.sum(is_negative)
        margin = logits[:, 1] - logits[:, 0]
        cross_entropy = positive * softplus(-margin)
        cross_entropy = cross_entropy + negative * softplus(margin)
        loss = 0.5 * mint.sum(cross_entropy)

        center_errors = mint.abs(deltas[:, 0] - (boxes[:, 0] - self.centers) / self.sizes)
        size_errors = mint.abs(deltas[:, 1] - mint.log(boxes[:, 1]) + mint.log(self.sizes))
        errors = mint.cat((center_errors, size_errors), 1)
        below = mint.clamp(errors, max=BETA)
        errors = mint.sum(0.5 / BETA * mint.square(below) + errors - below, 1)
        counts = mint.sum(is_positive, (1, 2, 3))
        errors = mint.sum(errors * is_positive, (1, 2, 3)) / mint.clamp(counts, min=1.0)
        loss = loss + LOC_WEIGHT * mint.mean(errors)

        loss = loss + GIOU_WEIGHT * (1 - mint.sum(giou * positive))
        target = ops.stop_gradient(iou)
        entropy = softplus(iou_logits) - target * iou_logits
        loss = loss + IOU_WEIGHT * mint.sum(entropy * positive)

        score = mint.sigmoid(margin) * mint.sigmoid(iou_logits)
        last_sizes = last_sizes.reshape(BATCH, 2, 1, 1, 1)
        scale = mint.log(self.compute_side(sizes) / self.compute_side(last_sizes))
        ratio = mint.log(sizes[:, 0] / last_sizes[:, 0]) - mint.log(sizes[:, 1] / last_sizes[:, 1])
        change_of_both = mint.exp(mint.abs(scale) + mint.abs(ratio))
        score = mint.exp(PENALTY - PENALTY * change_of_both) * score
        score = (1 - INFLUENCE) * score + self.window
        overlap = mint.sum(score * iou, (1, 2, 3)) / mint.sum(score, (1, 2, 3))
        has_object = (counts > 0).astype(ms.float32)
        return loss + TRACK_WEIGHT * mint.sum((1 - overlap) * has_object) / mint.sum(has_object)
