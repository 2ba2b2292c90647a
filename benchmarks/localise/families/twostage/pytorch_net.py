"""The two-stage detector in PyTorch, with the modules of torchvision's Faster R-CNN.

Variant 'detectron': Detectron2's names, fused norms, RoI align by grid_sample of the proposals that
are no padding, losses of all anchors by masks.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.twostage.architecture import (
    BACKGROUND,
    BINS,
    BOX_BETA,
    BOX_WEIGHTS,
    CLASSES,
    COARSE_SIZE,
    EPS,
    LEVELS,
    SAMPLES,
    STRIDES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DetectronLoss(model) if model.variant == "detectron" else FasterRCNN(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at a path into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return module


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Module:
    """Return the convolution at a path."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=has_bias)
    return load(conv, model, path)


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose statistics and weights are fixed."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.eps = model.norm_eps
        self.register_buffer("weight", read(model, f"{path}.weight"))
        self.register_buffer("bias", read(model, f"{path}.bias"))
        self.register_buffer("running_mean", read(model, f"{path}.mean"))
        self.register_buffer("running_var", read(model, f"{path}.variance"))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.reshape(1, -1, 1, 1)
        b = self.bias.reshape(1, -1, 1, 1)
        rv = self.running_var.reshape(1, -1, 1, 1)
        rm = self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + self.eps).rsqrt()
        bias = b - rm * scale
        return x * scale + bias


class BasicBlock(nn.Module):
    """Two convolutions, the first of stride 2, and a strided shortcut."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = load_conv(model, f"{path}.first", 2)
        self.bn1 = FrozenBatchNorm2d(model, f"{path}.first.norm")
        self.relu = nn.ReLU()
        self.conv2 = load_conv(model, f"{path}.second")
        self.bn2 = FrozenBatchNorm2d(model, f"{path}.second.norm")
        self.downsample = nn.Sequential(
            load_conv(model, f"{path}.shortcut", 2),
            FrozenBatchNorm2d(model, f"{path}.shortcut.norm"),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.downsample(x))


class ResNet(nn.Module):
    """Features of all levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = load_conv(model, "stem", 2)
        self.bn1 = FrozenBatchNorm2d(model, "stem.norm")
        self.relu = nn.ReLU()
        self.layer1, self.layer2 = (BasicBlock(model, f"stages.{n}") for n in range(LEVELS))

    def forward(self, x: Tensor) -> list[Tensor]:
        fine = self.layer1(self.relu(self.bn1(self.conv1(x))))
        return [fine, self.layer2(fine)]


class FeaturePyramidNetwork(nn.Module):
    """The coarse level upsampled into the fine one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList(load_conv(model, f"lateral.{n}") for n in range(LEVELS))
        self.layer_blocks = nn.ModuleList(load_conv(model, f"output.{n}") for n in range(LEVELS))

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        last_inner = self.inner_blocks[-1](x[-1])
        results = [self.layer_blocks[-1](last_inner)]
        for n in reversed(range(LEVELS - 1)):
            lateral = self.inner_blocks[n](x[n])
            top_down = F.interpolate(last_inner, size=lateral.shape[-2:], mode="nearest")
            last_inner = lateral + top_down
            results.insert(0, self.layer_blocks[n](last_inner))
        return results


def encode_boxes(reference_boxes: Tensor, proposals: Tensor) -> Tensor:
    """Return the deltas of boxes from proposals."""
    ex_sizes = proposals[..., 2:] - proposals[..., :2]
    ex_centers = proposals[..., :2] + 0.5 * ex_sizes
    gt_sizes = reference_boxes[..., 2:] - reference_boxes[..., :2]
    gt_centers = reference_boxes[..., :2] + 0.5 * gt_sizes
    return torch.cat([(gt_centers - ex_centers) / ex_sizes, torch.log(gt_sizes / ex_sizes)], dim=-1)


class RPNHead(nn.Module):
    """Objectness and deltas of all anchors, (batch, anchors) and (batch, anchors, 4)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = nn.Sequential(load_conv(model, "anchors.hidden"), nn.ReLU())
        self.cls_logits = load_conv(model, "anchors.objectness")
        self.bbox_pred = load_conv(model, "anchors.deltas")

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        objectness, deltas = [], []
        for feature in features:
            t = self.conv(feature)
            objectness.append(self.cls_logits(t).permute(0, 2, 3, 1).flatten(1))
            deltas.append(self.bbox_pred(t).permute(0, 2, 3, 1).reshape(len(t), -1, 4))
        return torch.cat(objectness, dim=1), torch.cat(deltas, dim=1)


class RegionProposalNetwork(nn.Module):
    """The losses of sampled anchors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head = RPNHead(model)
        self.register_buffer("anchors", torch.from_numpy(model.anchors()))
        self.beta = model.anchor_beta
        self.is_divided_by_sampled = model.anchor_divisor == "sampled"

    def forward(
        self, features: list[Tensor], gt_boxes: Tensor, matches: Tensor
    ) -> tuple[Tensor, Tensor]:
        objectness, pred_deltas = self.head(features)
        image, sampled_pos = torch.where(matches >= 0)
        sampled = matches >= BACKGROUND
        labels = (matches >= 0).float()

        matched_gt_boxes = gt_boxes[image, matches[image, sampled_pos]]
        regression_targets = encode_boxes(matched_gt_boxes, self.anchors[sampled_pos])
        box_loss = F.smooth_l1_loss(
            pred_deltas[image, sampled_pos], regression_targets, beta=self.beta, reduction="sum"
        )
        divisor = sampled.sum() if self.is_divided_by_sampled else len(sampled_pos)
        objectness_loss = F.binary_cross_entropy_with_logits(objectness[sampled], labels[sampled])
        return objectness_loss, box_loss / divisor


class _Lookup(torch.autograd.Function):
    """Cells of features, whose gradient is stored at each cell without being added."""

    @staticmethod
    def forward(context, features: Tensor, batch: Tensor, y: Tensor, x: Tensor) -> Tensor:
        context.save_for_backward(batch, y, x)
        context.shape = features.shape
        return features[batch, :, y, x]

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        batch, y, x = context.saved_tensors
        grad_features = gradient.new_zeros(context.shape)
        grad_features[batch, :, y, x] += gradient
        return grad_features, None, None, None


class RoIAlign(nn.Module):
    """Means of bilinear samples in the bins of boxes, (boxes, channels, BINS, BINS)."""

    def __init__(self, model: Model, stride: int) -> None:
        super().__init__()
        self.spatial_scale = 1 / stride
        self.is_gradient_overwritten = model.is_gradient_overwritten

    def get_places(self, start: Tensor, size: Tensor, length: int) -> tuple[Tensor, ...]:
        """Return the two cells next to each sample, and the share of the second one."""
        n_samples = BINS * SAMPLES
        steps = torch.arange(n_samples) + 0.5
        place = start[:, None] + steps * (size / n_samples)[:, None]
        place = place.clamp(min=0, max=length - 1)
        low = place.floor()
        high = (low + 1).clamp(max=length - 1)
        return low.long(), high.long(), place - low

    def get_cells(self, features: Tensor, batch: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Return features (boxes, rows, columns, channels) at rows and columns."""
        batch, y, x = batch[:, None, None], y[:, :, None], x[:, None, :]
        if self.is_gradient_overwritten:
            return _Lookup.apply(features, batch, y, x)
        return features[batch, :, y, x]

    def forward(self, features: Tensor, boxes: Tensor, batch: Tensor) -> Tensor:
        start_w, start_h, end_w, end_h = (boxes * self.spatial_scale - 0.5).unbind(dim=1)
        y_low, y_high, ly = self.get_places(start_h, end_h - start_h, features.shape[2])
        x_low, x_high, lx = self.get_places(start_w, end_w - start_w, features.shape[3])
        ly, lx = ly[:, :, None, None], lx[:, None, :, None]
        hy, hx = 1 - ly, 1 - lx
        v1 = self.get_cells(features, batch, y_low, x_low)
        v2 = self.get_cells(features, batch, y_low, x_high)
        v3 = self.get_cells(features, batch, y_high, x_low)
        v4 = self.get_cells(features, batch, y_high, x_high)
        values = hy * hx * v1 + hy * lx * v2 + ly * hx * v3 + ly * lx * v4
        bins = values.reshape(len(boxes), BINS, SAMPLES, BINS, SAMPLES, -1).mean(dim=(2, 4))
        return bins.permute(0, 3, 1, 2)


class MultiScaleRoIAlign(nn.Module):
    """RoI align on the level of each box."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pools = nn.ModuleList(RoIAlign(model, stride) for stride in STRIDES)

    def map_levels(self, boxes: Tensor) -> Tensor:
        """Return the level of each box."""
        s = torch.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
        levels = torch.floor(1 + torch.log2(s / COARSE_SIZE))
        return levels.clamp(min=0, max=LEVELS - 1).long()

    def forward(self, features: list[Tensor], boxes: Tensor, batch: Tensor) -> Tensor:
        levels = self.map_levels(boxes)
        result = torch.zeros(len(boxes), features[0].shape[1], BINS, BINS)
        for level, (feature, pool) in enumerate(zip(features, self.pools, strict=True)):
            index = torch.where(levels == level)[0]
            result[index] = pool(feature, boxes[index], batch[index])
        return result


class TwoMLPHead(nn.Module):
    """Two linear layers with relu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc6 = load_linear(model, "boxes.first")
        self.fc7 = load_linear(model, "boxes.second")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc6(x.flatten(start_dim=1)))
        return F.relu(self.fc7(x))


class FastRCNNPredictor(nn.Module):
    """Scores of the classes, and deltas of each class."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cls_score = load_linear(model, "boxes.classes")
        self.bbox_pred = load_linear(model, "boxes.deltas")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.cls_score(x), self.bbox_pred(x)


class RoIHeads(nn.Module):
    """The losses of proposals."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.box_roi_pool = MultiScaleRoIAlign(model)
        self.box_head = TwoMLPHead(model)
        self.box_predictor = FastRCNNPredictor(model)
        self.register_buffer("box_weights", torch.tensor(BOX_WEIGHTS))

    def forward(
        self,
        features: list[Tensor],
        gt_boxes: Tensor,
        gt_classes: Tensor,
        proposals: Tensor,
        counts: Tensor,
        matches: Tensor,
    ) -> tuple[Tensor, Tensor]:
        n_images, n_proposals = matches.shape
        batch = torch.arange(n_images).repeat_interleave(n_proposals)
        box_features = self.box_roi_pool(features, proposals.flatten(0, 1), batch)
        class_logits, box_regression = self.box_predictor(self.box_head(box_features))

        index = matches.clamp(min=0)
        labels = torch.where(matches >= 0, gt_classes.gather(1, index), CLASSES).flatten()
        is_valid = (torch.arange(n_proposals) < counts[:, None]).flatten()
        class_loss = F.cross_entropy(class_logits[is_valid], labels[is_valid])

        matched_gt_boxes = gt_boxes.gather(1, index[..., None].expand(-1, -1, 4))
        targets = (encode_boxes(matched_gt_boxes, proposals) * self.box_weights).flatten(0, 1)
        sampled_pos = torch.where(matches.flatten() >= 0)[0]
        box_regression = box_regression.reshape(len(labels), -1, 4)
        box_loss = F.smooth_l1_loss(
            box_regression[sampled_pos, labels[sampled_pos]],
            targets[sampled_pos],
            beta=BOX_BETA,
            reduction="sum",
        )
        return class_loss, box_loss / len(sampled_pos)


class FasterRCNN(nn.Module):
    """The sum of the four losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict(
            {"body": ResNet(model), "fpn": FeaturePyramidNetwork(model)},
        )
        self.rpn = RegionProposalNetwork(model)
        self.roi_heads = RoIHeads(model)

    def forward(
        self,
        images: Tensor,
        boxes: Tensor,
        classes: Tensor,
        anchor_matches: Tensor,
        proposals: Tensor,
        counts: Tensor,
        proposal_matches: Tensor,
    ) -> Tensor:
        features = self.backbone["fpn"](self.backbone["body"](images))
        losses = self.rpn(features, boxes, anchor_matches)
        losses += self.roi_heads(features, boxes, classes, proposals, counts, proposal_matches)
        return sum(losses)


class ConvNorm(nn.Conv2d):
    """A convolution, its norm in one operator, and relu if it has one."""

    def __init__(self, model: Model, path: str, stride: int, activation: nn.Module | None) -> None:
        n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
        super().__init__(n_in, n_out, kernel, stride, padding=kernel // 2, bias=False)
        load(self, model, path)
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(f"norm_{name}", read(model, f"{path}.norm.{name}"))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(
            super().forward(x),
            self.norm_mean,
            self.norm_variance,
            self.norm_weight,
            self.norm_bias,
            training=False,
            eps=EPS,
        )
        return x if self.activation is None else self.activation(x)


class ResNetBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.shortcut = ConvNorm(model, f"{path}.shortcut", 2, None)
        self.conv1 = ConvNorm(model, f"{path}.first", 2, nn.ReLU())
        self.conv2 = ConvNorm(model, f"{path}.second", 1, None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(self.conv1(x)) + self.shortcut(x))


class FPN(nn.Module):
    """The backbone and its pyramid."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bottom_up = nn.Sequential(
            ConvNorm(model, "stem", 2, nn.ReLU()),
            *(ResNetBlock(model, f"stages.{n}") for n in range(LEVELS)),
        )
        self.fpn_lateral2, self.fpn_lateral3 = (load_conv(model, f"lateral.{n}") for n in (0, 1))
        self.fpn_output2, self.fpn_output3 = (load_conv(model, f"output.{n}") for n in (0, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        res2 = self.bottom_up[1](self.bottom_up[0](images))
        p3 = self.fpn_lateral3(self.bottom_up[2](res2))
        upsampled = p3.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        return self.fpn_output2(upsampled + self.fpn_lateral2(res2)), self.fpn_output3(p3)


class StandardRPNHead(nn.Module):
    """Objectness and deltas of a level, (batch, cells, ANCHORS) and (batch, cells * ANCHORS, 4)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = load_conv(model, "anchors.hidden")
        self.objectness_logits = load_conv(model, "anchors.objectness")
        self.anchor_deltas = load_conv(model, "anchors.deltas")

    def forward(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        t = F.relu(self.conv(feature))
        logits = self.objectness_logits(t).flatten(2).transpose(1, 2)
        deltas = self.anchor_deltas(t)
        deltas = deltas.view(len(t), -1, 4, *deltas.shape[-2:]).permute(0, 3, 4, 1, 2)
        return logits.flatten(1), deltas.flatten(1, 3)


def compute_smooth_l1(errors: Tensor, beta: float) -> Tensor:
    """Return the losses of errors, which are squares below beta."""
    n = errors.abs()
    return torch.where(n < beta, 0.5 * n**2 / beta, n - 0.5 * beta)


def get_deltas(src_boxes: Tensor, target_boxes: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Return the weighted deltas of target boxes from source boxes."""
    src_x1, src_y1, src_x2, src_y2 = src_boxes.unbind(dim=-1)
    target_x1, target_y1, target_x2, target_y2 = target_boxes.unbind(dim=-1)
    wx, wy, ww, wh = weights
    dx = wx * (target_x1 + target_x2 - src_x1 - src_x2) / 2 / (src_x2 - src_x1)
    dy = wy * (target_y1 + target_y2 - src_y1 - src_y2) / 2 / (src_y2 - src_y1)
    dw = ww * (torch.log(target_x2 - target_x1) - torch.log(src_x2 - src_x1))
    dh = wh * (torch.log(target_y2 - target_y1) - torch.log(src_y2 - src_y1))
    return torch.stack((dx, dy, dw, dh), dim=-1)


class ROIPooler(nn.Module):
    """Means of samples by grid_sample on both levels, of which each box has one."""

    def sample(self, feature: Tensor, boxes: Tensor, stride: int) -> Tensor:
        """Return (boxes, channels, BINS, BINS) of features (boxes, channels, rows, columns)."""
        steps = (torch.arange(BINS * SAMPLES) + 0.5) / (BINS * SAMPLES)
        low, size = boxes[:, None, :2] / stride, (boxes[:, 2:] - boxes[:, :2])[:, None] / stride
        places = low + steps[:, None] * size
        cells = torch.tensor([feature.shape[3], feature.shape[2]])
        x, y = (2 * places / cells - 1).unbind(dim=-1)
        grid = torch.stack(
            [x[:, None].expand(-1, len(steps), -1), y[:, :, None].expand(-1, -1, len(steps))], -1
        )
        samples = F.grid_sample(
            feature, grid, mode="bilinear", padding_mode="border", align_corners=False
        )
        return F.avg_pool2d(samples, SAMPLES)

    def forward(self, features: tuple[Tensor, Tensor], boxes: Tensor, batch: Tensor) -> Tensor:
        fine, coarse = (
            self.sample(feature[batch], boxes, stride)
            for feature, stride in zip(features, STRIDES, strict=True)
        )
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=-1)
        is_coarse = (areas >= COARSE_SIZE**2).reshape(-1, 1, 1, 1)
        return torch.where(is_coarse, coarse, fine)


class FastRCNNOutputLayers(nn.Module):
    """Scores of the classes and deltas of each class, from two linear layers with relu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Flatten(),
            load_linear(model, "boxes.first"),
            nn.ReLU(),
            load_linear(model, "boxes.second"),
            nn.ReLU(),
        )
        self.cls_score = load_linear(model, "boxes.classes")
        self.bbox_pred = load_linear(model, "boxes.deltas")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fc(x)
        return self.cls_score(x), self.bbox_pred(x).view(len(x), CLASSES, 4)


class DetectronLoss(nn.Module):
    """The same losses: of all anchors by masks, of the proposals that are no padding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = FPN(model)
        self.rpn_head = StandardRPNHead(model)
        self.box_pooler = ROIPooler()
        self.box_predictor = FastRCNNOutputLayers(model)
        self.register_buffer("anchors", torch.from_numpy(model.anchors()))
        self.anchor_beta = model.anchor_beta

    def compute_anchor_losses(
        self, features: tuple[Tensor, Tensor], boxes: Tensor, matches: Tensor
    ) -> Tensor:
        """Return the sum of both losses of anchors."""
        outputs = [self.rpn_head(feature) for feature in features]
        logits, deltas = (torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True))
        is_object, is_sampled = (matches >= 0).float(), (matches >= BACKGROUND).float()
        entropy = F.softplus(logits) - is_object * logits
        image = torch.arange(len(boxes))[:, None]
        targets = get_deltas(self.anchors, boxes[image, matches.clamp(min=0)], (1, 1, 1, 1))
        errors = compute_smooth_l1(deltas - targets, self.anchor_beta).sum(dim=-1)
        entropy_mean = (entropy * is_sampled).sum() / is_sampled.sum()
        return entropy_mean + (errors * is_object).sum() / is_object.sum()

    def compute_box_losses(
        self,
        features: tuple[Tensor, Tensor],
        boxes: Tensor,
        classes: Tensor,
        proposals: Tensor,
        batch: Tensor,
        matches: Tensor,
    ) -> Tensor:
        """Return the sum of both losses of proposals."""
        scores, deltas = self.box_predictor(self.box_pooler(features, proposals, batch))
        is_object = matches >= 0
        labels = torch.full_like(matches, CLASSES)
        labels[is_object] = classes[batch[is_object], matches[is_object]]
        log_probs = scores - torch.logsumexp(scores, dim=-1, keepdim=True)
        class_loss = -log_probs.gather(1, labels[:, None]).mean()
        matched_boxes = boxes[batch[is_object], matches[is_object]]
        targets = get_deltas(proposals[is_object], matched_boxes, BOX_WEIGHTS)
        own_deltas = deltas[is_object].gather(1, labels[is_object][:, None, None].expand(-1, -1, 4))
        errors = compute_smooth_l1(own_deltas.squeeze(1) - targets, BOX_BETA)
        return class_loss + 4 * errors.mean()

    def forward(
        self,
        images: Tensor,
        boxes: Tensor,
        classes: Tensor,
        anchor_matches: Tensor,
        proposals: Tensor,
        counts: Tensor,
        proposal_matches: Tensor,
    ) -> Tensor:
        features = self.backbone(images)
        loss = self.compute_anchor_losses(features, boxes, anchor_matches)
        batch, place = torch.where(torch.arange(proposals.shape[1]) < counts[:, None])
        return loss + self.compute_box_losses(
            features,
            boxes,
            classes,
            proposals[batch, place],
            batch,
            proposal_matches[batch, place],
        )
