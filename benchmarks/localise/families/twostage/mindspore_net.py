"""The two-stage detector in MindSpore for graph mode, with cells named as its model zoo's.

Variant 'written': RoI align as products with the shares of rows and columns, frozen norms and
losses in plain arithmetic, one-hot vectors for what is chosen.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.twostage.architecture import (
    ANCHOR_BETA,
    ANCHORS,
    BACKGROUND,
    BATCH,
    BINS,
    BOX_BETA,
    BOX_WEIGHTS,
    CLASSES,
    COARSE_SIZE,
    EPS,
    GRIDS,
    LEVELS,
    PROPOSALS,
    PYRAMID,
    SAMPLES,
    STRIDES,
    Model,
)

ROIS = BATCH * PROPOSALS
POINTS = BINS * SAMPLES  #: samples of a proposal in a row or column


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else FasterRcnn(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at a path."""
    weight = read(model, f"{path}.weight")
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
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    return nn.Dense(
        weight.shape[1], weight.shape[0], weight_init=weight, bias_init=read(model, f"{path}.bias")
    )


def build_frozen_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm at a path, which reads its statistics and does not train."""
    weight, bias, mean, variance = (
        read(model, f"{path}.{name}") for name in ("weight", "bias", "mean", "variance")
    )
    norm = nn.BatchNorm2d(
        len(weight),
        eps=EPS,
        gamma_init=weight,
        beta_init=bias,
        moving_mean_init=mean,
        moving_var_init=variance,
        use_batch_statistics=False,
    )
    norm.gamma.requires_grad = False
    norm.beta.requires_grad = False
    return norm


class ResidualBlockUsing(nn.Cell):
    """Two convolutions, the first of stride 2, and a strided shortcut."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = build_conv(model, f"{path}.first", 2)
        self.bn1 = build_frozen_norm(model, f"{path}.first.norm")
        self.conv2 = build_conv(model, f"{path}.second")
        self.bn2 = build_frozen_norm(model, f"{path}.second.norm")
        self.relu = nn.ReLU()
        self.conv_down_sample = build_conv(model, f"{path}.shortcut", 2)
        self.bn_down_sample = build_frozen_norm(model, f"{path}.shortcut.norm")

    def construct(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        identity = self.bn_down_sample(self.conv_down_sample(x))
        return self.relu(out + identity)


class ResNetFea(nn.Cell):
    """Features of both levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_conv(model, "stem", 2)
        self.bn1 = build_frozen_norm(model, "stem.norm")
        self.relu = nn.ReLU()
        self.layer1 = ResidualBlockUsing(model, "stages.0")
        self.layer2 = ResidualBlockUsing(model, "stages.1")
        self.is_stage_stopped = model.is_stage_stopped

    def construct(self, images):
        fine = self.layer1(self.relu(self.bn1(self.conv1(images))))
        if self.is_stage_stopped:
            fine = ops.stop_gradient(fine)
        return fine, self.layer2(fine)


class FeatPyramidNeck(nn.Cell):
    """The coarse level upsampled into the fine one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.lateral_convs_list = nn.CellList(
            [build_conv(model, f"lateral.{n}") for n in range(LEVELS)]
        )
        self.fpn_convs = nn.CellList([build_conv(model, f"output.{n}") for n in range(LEVELS)])

    def construct(self, fine, coarse):
        coarse = self.lateral_convs_list[1](coarse)
        upsampled = ops.interpolate(coarse, size=GRIDS[0], mode="nearest")
        fine = self.lateral_convs_list[0](fine) + upsampled
        return self.fpn_convs[0](fine), self.fpn_convs[1](coarse)


class BoundingBoxEncode(nn.Cell):
    """Deltas of objects from anchors or proposals."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_sizes_inclusive = model.are_sizes_inclusive

    def get_sizes(self, boxes):
        """Return widths and heights."""
        sizes = boxes[..., 2:] - boxes[..., :2]
        return sizes + 1.0 if self.are_sizes_inclusive else sizes

    def construct(self, anchors, objects):
        sizes, object_sizes = self.get_sizes(anchors), self.get_sizes(objects)
        centers = anchors[..., :2] + 0.5 * sizes
        object_centers = objects[..., :2] + 0.5 * object_sizes
        shifts = (object_centers - centers) / sizes
        return ops.concat((shifts, ops.log(object_sizes / sizes)), -1)


def gather_objects(values, matches):
    """Return the values (batch, objects, ...) of each one's object; of no object, the first's."""
    index = ops.clamp(matches, 0)
    image = ops.broadcast_to(ops.arange(BATCH).expand_dims(1), index.shape)
    return ops.gather_nd(values, ops.stack((image.astype(ms.int32), index), -1))


class RPN(nn.Cell):
    """The losses of sampled anchors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rpn_conv = build_conv(model, "anchors.hidden")
        self.relu = nn.ReLU()
        self.rpn_cls = build_conv(model, "anchors.objectness")
        self.rpn_reg = build_conv(model, "anchors.deltas")
        self.encode = BoundingBoxEncode(model)
        self.loss_cls = nn.BCEWithLogitsLoss(reduction="none")
        self.loss_bbox = nn.SmoothL1Loss(beta=ANCHOR_BETA, reduction="none")
        anchors = model.anchors()
        if model.are_ratios_inverted:
            anchors = anchors.reshape(-1, ANCHORS, 4)[:, ::-1].reshape(-1, 4)
        self.anchors = Tensor(np.ascontiguousarray(anchors))

    def predict(self, features):
        """Return objectness (batch, anchors) and deltas (batch, anchors, 4)."""
        scores, deltas = (), ()
        for feature in features:
            x = self.relu(self.rpn_conv(feature))
            scores += (self.rpn_cls(x).transpose(0, 2, 3, 1).reshape(BATCH, -1),)
            deltas += (self.rpn_reg(x).transpose(0, 2, 3, 1).reshape(BATCH, -1, 4),)
        return ops.concat(scores, 1), ops.concat(deltas, 1)

    def construct(self, features, gt_bboxes, matches):
        scores, deltas = self.predict(features)
        is_object = ops.greater_equal(matches, 0).astype(ms.float32)
        is_sampled = ops.greater_equal(matches, BACKGROUND).astype(ms.float32)
        loss_cls = (self.loss_cls(scores, is_object) * is_sampled).sum() / is_sampled.sum()
        anchors = ops.broadcast_to(self.anchors, (BATCH, *self.anchors.shape))
        targets = self.encode(anchors, gather_objects(gt_bboxes, matches))
        losses = self.loss_bbox(deltas, targets) * is_object.expand_dims(-1)
        return loss_cls, losses.sum() / is_object.sum()


class ROIAlign(nn.Cell):
    """Means of bilinear samples in the bins of proposals, (proposals, channels, BINS, BINS)."""

    def __init__(self, model: Model, level: int) -> None:
        super().__init__()
        self.rows, self.columns = GRIDS[level]
        self.spatial_scale = 1 / STRIDES[level]
        self.offset = 0.5 if model.is_roi_aligned else 0.0
        self.steps = Tensor(np.arange(POINTS, dtype=np.float32) + np.float32(0.5))
        images = np.repeat(np.arange(BATCH, dtype=np.int32), PROPOSALS)
        self.images = Tensor(images.reshape(ROIS, 1, 1))

    def get_places(self, low, high, length):
        """Return the two cells next to each sample, and their shares, (proposals, POINTS)."""
        sizes = (high - low) / POINTS
        places = low.expand_dims(1) + self.steps * sizes.expand_dims(1)
        places = ops.clamp(places, 0.0, length - 1.0)
        first = ops.floor(places)
        second = ops.minimum(first + 1, length - 1.0)
        share = places - first
        return (first.astype(ms.int32), second.astype(ms.int32)), (1 - share, share)

    def construct(self, feature, rois):
        boxes = rois * self.spatial_scale
        if self.offset:
            boxes = boxes - self.offset
        rows, row_shares = self.get_places(boxes[:, 1], boxes[:, 3], self.rows)
        columns, column_shares = self.get_places(boxes[:, 0], boxes[:, 2], self.columns)
        cells = feature.transpose(0, 2, 3, 1).reshape(-1, PYRAMID)
        samples = 0.0
        for i in range(2):
            for j in range(2):
                index = (self.images * self.rows + rows[i].expand_dims(2)) * self.columns
                index = index + columns[j].expand_dims(1)
                shares = row_shares[i].expand_dims(2) * column_shares[j].expand_dims(1)
                samples = samples + ops.gather(cells, index, 0) * shares.expand_dims(3)
        samples = samples.reshape(ROIS, BINS, SAMPLES, BINS, SAMPLES, PYRAMID)
        return samples.mean((2, 4)).transpose(0, 3, 1, 2)


class SingleRoIExtractor(nn.Cell):
    """RoI align on both levels, of which each proposal has one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.roi_layers = nn.CellList([ROIAlign(model, level) for level in range(LEVELS)])

    def map_levels(self, rois):
        """Return the level of each proposal."""
        scale = ops.sqrt((rois[:, 2] - rois[:, 0]) * (rois[:, 3] - rois[:, 1]))
        levels = ops.floor(1.0 + ops.log2(scale / COARSE_SIZE))
        return ops.clamp(levels, 0.0, LEVELS - 1.0)

    def construct(self, features, rois):
        levels = self.map_levels(rois).reshape(ROIS, 1, 1, 1)
        roi_feats = ops.zeros((ROIS, PYRAMID, BINS, BINS), ms.float32)
        for level in range(LEVELS):
            roi_feats_t = self.roi_layers[level](features[level], rois)
            mask = ops.broadcast_to(ops.equal(levels, level), roi_feats.shape)
            roi_feats = ops.select(mask, roi_feats_t, roi_feats)
        return roi_feats


class Rcnn(nn.Cell):
    """The losses of proposals."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.shared_fc_0 = build_dense(model, "boxes.first")
        self.shared_fc_1 = build_dense(model, "boxes.second")
        self.relu = nn.ReLU()
        self.cls_scores = build_dense(model, "boxes.classes")
        self.reg_scores = build_dense(model, "boxes.deltas")
        self.encode = BoundingBoxEncode(model)
        self.loss_cls = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
        self.loss_bbox = nn.SmoothL1Loss(beta=BOX_BETA, reduction="none")
        self.weights = Tensor(BOX_WEIGHTS, ms.float32)
        self.range = Tensor(np.arange(ROIS, dtype=np.int32))
        self.are_deltas_first = model.are_deltas_first
        self.is_padding_counted = model.is_padding_counted

    def get_own_deltas(self, deltas, labels):
        """Return the deltas of each proposal's class; of background, those of the last class."""
        if self.are_deltas_first:
            deltas = deltas.reshape(ROIS, 4, CLASSES).transpose(0, 2, 1)
        else:
            deltas = deltas.reshape(ROIS, CLASSES, 4)
        return ops.gather_nd(deltas, ops.stack((self.range, ops.minimum(labels, CLASSES - 1)), 1))

    def construct(self, roi_feats, gt_bboxes, gt_labels, proposals, valid, matches):
        x = self.relu(self.shared_fc_0(roi_feats.reshape(ROIS, -1)))
        x = self.relu(self.shared_fc_1(x))
        scores, deltas = self.cls_scores(x), self.reg_scores(x)

        is_object = ops.greater_equal(matches, 0)
        background = ops.full_like(matches, CLASSES)
        labels = ops.select(is_object, gather_objects(gt_labels, matches), background).reshape(-1)
        entropy = self.loss_cls(scores, labels)
        if self.is_padding_counted:
            loss_cls = entropy.mean()
        else:
            loss_cls = (entropy * valid).sum() / valid.sum()

        targets = self.encode(proposals, gather_objects(gt_bboxes, matches)) * self.weights
        losses = self.loss_bbox(self.get_own_deltas(deltas, labels), targets.reshape(ROIS, 4))
        is_object = is_object.reshape(ROIS, 1).astype(ms.float32)
        return loss_cls, (losses * is_object).sum() / is_object.sum()


class FasterRcnn(nn.Cell):
    """The sum of the four losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = ResNetFea(model)
        self.fpn_neck = FeatPyramidNeck(model)
        self.rpn_with_loss = RPN(model)
        self.roi_align = SingleRoIExtractor(model)
        self.rcnn = Rcnn(model)
        self.range = Tensor(np.arange(PROPOSALS, dtype=np.int32)[None])

    def construct(
        self, images, gt_bboxes, gt_labels, anchor_matches, proposals, counts, proposal_matches
    ):
        fine, coarse = self.backbone(images)
        features = self.fpn_neck(fine, coarse)
        rpn_cls_loss, rpn_reg_loss = self.rpn_with_loss(features, gt_bboxes, anchor_matches)
        roi_feats = self.roi_align(features, proposals.reshape(ROIS, 4))
        valid = ops.less(self.range, counts.expand_dims(1)).astype(ms.float32).reshape(-1)
        rcnn_cls_loss, rcnn_reg_loss = self.rcnn(
            roi_feats, gt_bboxes, gt_labels, proposals, valid, proposal_matches
        )
        return rpn_cls_loss + rpn_reg_loss + rcnn_cls_loss + rcnn_reg_loss


class ConvNormLayer(nn.Cell):
    """A convolution, and a norm in plain arithmetic."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        self.conv = build_conv(model, path, stride)
        self.scale, self.shift, self.mean, self.variance = (
            Parameter(read(model, f"{path}.norm.{name}").reshape(1, -1, 1, 1), requires_grad=False)
            for name in ("weight", "bias", "mean", "variance")
        )

    def construct(self, x):
        x = self.conv(x)
        return (x - self.mean) / mint.sqrt(self.variance + EPS) * self.scale + self.shift


class WrittenStage(nn.Cell):
    """Two convolutions and a shortcut."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.branch2a = ConvNormLayer(model, f"{path}.first", 2)
        self.branch2b = ConvNormLayer(model, f"{path}.second", 1)
        self.short = ConvNormLayer(model, f"{path}.shortcut", 2)

    def construct(self, x):
        out = self.branch2b(mint.nn.functional.relu(self.branch2a(x)))
        return mint.nn.functional.relu(self.short(x) + out)


def compute_smooth_l1(predicted, target, beta):
    """Return losses from the part of an error below beta, and the rest."""
    error = mint.abs(predicted - target)
    below = ops.minimum(error, beta)
    return mint.square(below) * (0.5 / beta) + (error - below)


def encode_box(anchors, objects):
    """Return the deltas of objects from anchors, column by column."""
    ax, ay, ar, ab = mint.unbind(anchors, -1)
    ox, oy, o_right, ob = mint.unbind(objects, -1)
    width, height = ar - ax, ab - ay
    dx = (ox + o_right - ax - ar) / (2 * width)
    dy = (oy + ob - ay - ab) / (2 * height)
    dw, dh = mint.log(o_right - ox) - mint.log(width), mint.log(ob - oy) - mint.log(height)
    return ops.stack((dx, dy, dw, dh), -1)


class WrittenLoss(nn.Cell):
    """The same losses with RoI align as products, and one-hot vectors for what is chosen."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvNormLayer(model, "stem", 2)
        self.stages = nn.CellList([WrittenStage(model, f"stages.{n}") for n in range(LEVELS)])
        self.laterals = nn.CellList([build_conv(model, f"lateral.{n}") for n in range(LEVELS)])
        self.outputs = nn.CellList([build_conv(model, f"output.{n}") for n in range(LEVELS)])
        self.rpn_feat, self.rpn_score, self.rpn_delta = (
            build_conv(model, f"anchors.{name}") for name in ("hidden", "objectness", "deltas")
        )
        self.fc6, self.fc7, self.bbox_score, self.bbox_delta = (
            build_dense(model, f"boxes.{name}") for name in ("first", "second", "classes", "deltas")
        )
        self.anchors = Tensor(model.anchors())
        self.weights = Tensor(BOX_WEIGHTS, ms.float32)
        self.range = Tensor(np.arange(PROPOSALS, dtype=np.int32)[None])
        self.steps = Tensor((np.arange(POINTS, dtype=np.float32) + np.float32(0.5)) / POINTS)
        self.centers = [
            [Tensor(np.arange(length, dtype=np.float32)) for length in grid] for grid in GRIDS
        ]

    def compute_features(self, images):
        """Return the levels of the pyramid."""
        fine = self.stages[0](mint.nn.functional.relu(self.stem(images)))
        coarse = self.laterals[1](self.stages[1](fine))
        rows, columns = GRIDS[1]
        tiled = ops.tile(coarse.reshape(BATCH, PYRAMID, rows, 1, columns, 1), (1, 1, 1, 2, 1, 2))
        fine = self.laterals[0](fine) + tiled.reshape(BATCH, PYRAMID, 2 * rows, 2 * columns)
        return self.outputs[0](fine), self.outputs[1](coarse)

    def select_objects(self, values, matches):
        """Return the values (batch, objects, n) of each one's object."""
        chosen = ops.one_hot(mint.clamp(matches, min=0), values.shape[1], 1.0, 0.0)
        return mint.bmm(chosen, values)

    def compute_anchor_losses(self, features, boxes, matches):
        """Return the sum of both losses of anchors."""
        scores, deltas = (), ()
        for n in range(LEVELS):
            n_cells = GRIDS[n][0] * GRIDS[n][1]
            x = mint.nn.functional.relu(self.rpn_feat(features[n]))
            score = self.rpn_score(x).reshape(BATCH, ANCHORS, n_cells)
            scores += (mint.transpose(score, 1, 2).reshape(BATCH, -1),)
            delta = self.rpn_delta(x).reshape(BATCH, ANCHORS, 4, n_cells)
            deltas += (mint.permute(delta, (0, 3, 1, 2)).reshape(BATCH, -1, 4),)
        scores, deltas = mint.cat(scores, 1), mint.cat(deltas, 1)
        is_object = (matches >= 0).astype(ms.float32)
        is_sampled = (matches >= BACKGROUND).astype(ms.float32)
        entropy = mint.log(1 + mint.exp(scores)) - is_object * scores
        targets = encode_box(
            ops.broadcast_to(self.anchors, deltas.shape), self.select_objects(boxes, matches)
        )
        errors = mint.sum(compute_smooth_l1(deltas, targets, ANCHOR_BETA), -1)
        mean = mint.sum(entropy * is_sampled) / mint.sum(is_sampled)
        return mean + mint.sum(errors * is_object) / mint.sum(is_object)

    def compute_shares(self, low, high, cells):
        """Return the shares of rows or columns in bins, (proposals, BINS, cells)."""
        places = low + (high - low) * self.steps - 0.5
        places = mint.clamp(places, min=0.0, max=cells.shape[0] - 1.0).expand_dims(-1)
        shares = mint.nn.functional.relu(1 - mint.abs(places - cells))
        return mint.mean(shares.reshape(BATCH, PROPOSALS, BINS, SAMPLES, -1), 3)

    def align(self, features, proposals):
        """Return (BATCH, PROPOSALS, PYRAMID, BINS, BINS) of each proposal's level."""
        sizes = proposals[..., 2:] - proposals[..., :2]
        is_coarse = (sizes[..., 0] * sizes[..., 1] >= COARSE_SIZE**2).astype(ms.float32)
        level_shares = (1 - is_coarse, is_coarse)
        aligned = 0.0
        for n in range(LEVELS):
            left, top, right, bottom = mint.split(proposals / STRIDES[n], 1, -1)
            row_shares = self.compute_shares(top, bottom, self.centers[n][0])
            column_shares = self.compute_shares(left, right, self.centers[n][1])
            columns = mint.transpose(column_shares, 2, 3).expand_dims(2)
            pooled = mint.matmul(features[n].expand_dims(1), columns)
            pooled = mint.matmul(row_shares.expand_dims(2), pooled)
            aligned = aligned + pooled * level_shares[n].reshape(BATCH, PROPOSALS, 1, 1, 1)
        return aligned

    def compute_box_losses(self, features, boxes, labels, proposals, counts, matches):
        """Return the sum of both losses of proposals."""
        x = self.align(features, proposals).reshape(BATCH, PROPOSALS, -1)
        x = mint.nn.functional.relu(self.fc6(x))
        x = mint.nn.functional.relu(self.fc7(x))
        scores = self.bbox_score(x)
        deltas = self.bbox_delta(x).reshape(BATCH, PROPOSALS, CLASSES, 4)

        is_object = (matches >= 0).astype(ms.float32)
        one_hot = ops.one_hot(labels, CLASSES, 1.0, 0.0)
        one_hot = self.select_objects(one_hot, matches) * is_object.expand_dims(-1)
        targets = mint.cat((one_hot, 1 - is_object.expand_dims(-1)), -1)
        log_total = mint.log(mint.sum(mint.exp(scores), -1))
        entropy = log_total - mint.sum(scores * targets, -1)
        valid = (self.range < counts.expand_dims(1)).astype(ms.float32)
        class_loss = mint.sum(entropy * valid) / mint.sum(valid)

        encoded = encode_box(proposals, self.select_objects(boxes, matches)) * self.weights
        own_deltas = mint.sum(deltas * one_hot.expand_dims(-1), 2)
        errors = mint.sum(compute_smooth_l1(own_deltas, encoded, BOX_BETA), -1)
        return class_loss + mint.sum(errors * is_object) / mint.sum(is_object)

    def construct(
        self, images, gt_bboxes, gt_labels, anchor_matches, proposals, counts, proposal_matches
    ):
        features = self.compute_features(images)
        loss = self.compute_anchor_losses(features, gt_bboxes, anchor_matches)
        return loss + self.compute_box_losses(
            features, gt_bboxes, gt_labels, proposals, counts, proposal_matches
        )
