"""A siamese tracker in PyTorch, with modules named as PySOT's.

Variant 'joined': other names, norms as functions, both branches of a level in one convolution,
correlation by unfolding, levels stacked and summed at once, cross entropies of differences.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.tracker.architecture import (
    ANCHORS,
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
    TRACK_WEIGHT,
    Model,
    make_centers,
    make_sizes,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return JoinedLoss(model) if model.variant == "joined" else ModelBuilder(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name].copy())


def load_conv(
    model: Model, path: str, stride: int = 1, dilation: int = 1, *, is_padded: bool = True
) -> nn.Conv2d:
    """Return the convolution at a path."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    conv = nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        padding=dilation * (kernel // 2) if is_padded else 0,
        dilation=dilation,
        bias=f"{path}.bias" in model.weights,
    )
    conv.load_state_dict({name: read(model, f"{path}.{name}") for name in conv.state_dict()})
    return conv


def load_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm of the convolution at a path; one with statistics is frozen."""
    weight, bias = read(model, f"{path}.norm.weight"), read(model, f"{path}.norm.bias")
    norm = nn.BatchNorm2d(len(weight), eps=EPS)
    state = {"weight": weight, "bias": bias}
    if f"{path}.norm.mean" in model.weights:
        state["running_mean"] = read(model, f"{path}.norm.mean")
        state["running_var"] = read(model, f"{path}.norm.variance")
        norm.eval()
    norm.load_state_dict(state, strict=False)
    return norm


def conv_bn(
    model: Model, path: str, stride: int = 1, dilation: int = 1, *, is_padded: bool = True
) -> nn.Sequential:
    """Return a layer."""
    conv = load_conv(model, path, stride, dilation, is_padded=is_padded)
    return nn.Sequential(conv, load_norm(model, path))


def conv_bn_relu(
    model: Model, path: str, stride: int = 1, dilation: int = 1, *, is_padded: bool = True
) -> nn.Sequential:
    """Return a layer with a ReLU."""
    conv = load_conv(model, path, stride, dilation, is_padded=is_padded)
    return nn.Sequential(conv, load_norm(model, path), nn.ReLU(inplace=True))


class BasicBlock(nn.Module):
    """Two layers added to their input."""

    def __init__(self, model: Model, n: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.conv1 = load_conv(model, f"{path}.first", stride, dilation)
        self.bn1 = load_norm(model, f"{path}.first")
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = load_conv(model, f"{path}.second", 1, dilation)
        self.bn2 = load_norm(model, f"{path}.second")
        has_shortcut = f"{path}.shortcut.weight" in model.weights
        self.downsample = conv_bn(model, f"{path}.shortcut", stride) if has_shortcut else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += residual
        return self.relu(out)


class ResNet(nn.Module):
    """Features of three levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = conv_bn_relu(model, "stem", 2)
        self.stem.requires_grad_(False)
        self.layer2 = BasicBlock(model, 0, stride=2)
        self.layer3 = BasicBlock(model, 1, dilation=2)
        self.layer4 = BasicBlock(model, 2, dilation=2)

    def forward(self, x: Tensor) -> list[Tensor]:
        p2 = self.layer2(self.stem(x))
        p3 = self.layer3(p2)
        return [p2, p3, self.layer4(p3)]


class AdjustLayer(nn.Module):
    """A level with HIDDEN channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.downsample = conv_bn_relu(model, f"necks.{n}")

    def forward(self, x: Tensor) -> Tensor:
        return self.downsample(x)


def crop_center(x: Tensor) -> Tensor:
    """Return the cells in the middle."""
    start = (x.size(3) - CROP) // 2
    return x[:, :, start : start + CROP, start : start + CROP]


def xcorr_depthwise(x: Tensor, kernel: Tensor) -> Tensor:
    """Return the correlation of each channel with its own kernel."""
    batch, channel = kernel.shape[:2]
    x = x.view(1, batch * channel, x.size(2), x.size(3))
    kernel = kernel.view(batch * channel, 1, kernel.size(2), kernel.size(3))
    out = F.conv2d(x, kernel, groups=batch * channel)
    return out.view(batch, channel, out.size(2), out.size(3))


class DepthwiseXCorr(nn.Module):
    """What a head of a level reads."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv_kernel = conv_bn_relu(model, f"{path}.kernel", is_padded=False)
        self.conv_search = conv_bn_relu(model, f"{path}.search", is_padded=False)
        self.hidden = conv_bn_relu(model, f"{path}.hidden")

    def forward(self, kernel: Tensor, search: Tensor) -> Tensor:
        kernel = self.conv_kernel(kernel)
        search = self.conv_search(search)
        return self.hidden(xcorr_depthwise(search, kernel))


class DepthwiseRPN(nn.Module):
    """Logits, deltas and logits of IoUs of a level."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.cls = DepthwiseXCorr(model, f"cls.{n}")
        self.cls_head = load_conv(model, f"cls.{n}.out")
        self.loc = DepthwiseXCorr(model, f"loc.{n}")
        self.loc_head = load_conv(model, f"loc.{n}.out")
        self.iou_head = load_conv(model, f"iou.{n}.out")

    def forward(self, z_f: Tensor, x_f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cls = self.cls_head(self.cls(z_f, x_f))
        feature = self.loc(z_f, x_f)
        return cls, self.loc_head(feature), self.iou_head(feature)


class MultiRPN(nn.Module):
    """The sum of all levels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rpns = nn.ModuleList(DepthwiseRPN(model, n) for n in range(LEVELS))
        self.cls_weight = nn.Parameter(read(model, "fusion.cls"))
        self.loc_weight = nn.Parameter(read(model, "fusion.loc"))
        self.is_fusion_linear = model.is_fusion_linear

    def normalize(self, weight: Tensor) -> Tensor:
        """Return shares of levels."""
        if self.is_fusion_linear:
            weight = F.relu(weight)
            return weight / (weight.sum() + 1e-4)
        return F.softmax(weight, 0)

    def forward(self, z_fs: list[Tensor], x_fs: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        levels = [rpn(z_f, x_f) for rpn, z_f, x_f in zip(self.rpns, z_fs, x_fs, strict=True)]
        cls, loc, iou = zip(*levels, strict=True)
        cls_weight, loc_weight = self.normalize(self.cls_weight), self.normalize(self.loc_weight)

        def weighted_avg(values: tuple[Tensor, ...], weight: Tensor) -> Tensor:
            return sum(weight[n] * level for n, level in enumerate(values))

        return (
            weighted_avg(cls, cls_weight),
            weighted_avg(loc, loc_weight),
            weighted_avg(iou, loc_weight),
        )


class ScaleGradient(Function):
    """The input; its gradient is multiplied by a factor."""

    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.factor, None


class Anchors(nn.Module):
    """Centers and sizes of anchors, each (2, ANCHORS, SCORES, SCORES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        places = torch.from_numpy(make_centers())
        indexing = "ij" if model.are_centers_transposed else "xy"
        centers = torch.stack(torch.meshgrid(places, places, indexing=indexing))
        sizes = torch.from_numpy(make_sizes()).T.reshape(2, ANCHORS, 1, 1)
        shape = (2, ANCHORS, SCORES, SCORES)
        self.register_buffer("centers", centers.unsqueeze(1).expand(shape).contiguous())
        self.register_buffer("sizes", sizes.expand(shape).contiguous())

    def encode(self, boxes: Tensor) -> Tensor:
        """Return deltas (batch, 4, ...) of boxes (batch, 4)."""
        boxes = boxes[:, :, None, None, None]
        centers = (boxes[:, :2] - self.centers) / self.sizes
        return torch.cat((centers, torch.log(boxes[:, 2:] / self.sizes)), dim=1)

    def forward(self, deltas: Tensor) -> Tensor:
        centers = deltas[:, :2] * self.sizes + self.centers
        return torch.cat((centers, torch.exp(deltas[:, 2:]) * self.sizes), dim=1)


def center2corner(boxes: Tensor) -> tuple[Tensor, ...]:
    """Return left, top, right and bottom of boxes (batch, 4, ...)."""
    x, y, w, h = boxes.unbind(dim=1)
    return x - w * 0.5, y - h * 0.5, x + w * 0.5, y + h * 0.5


def compute_iou(pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and GIoU of boxes (batch, 4, ...) and boxes (batch, 4)."""
    target = target[:, :, None, None, None]
    x1, y1, x2, y2 = center2corner(pred)
    tx1, ty1, tx2, ty2 = center2corner(target)
    pred_area = (x2 - x1) * (y2 - y1)
    target_area = (tx2 - tx1) * (ty2 - ty1)
    w_intersect = (torch.min(x2, tx2) - torch.max(x1, tx1)).clamp(min=0)
    h_intersect = (torch.min(y2, ty2) - torch.max(y1, ty1)).clamp(min=0)
    area_intersect = w_intersect * h_intersect
    area_union = pred_area + target_area - area_intersect
    ious = area_intersect / area_union
    g_w = torch.max(x2, tx2) - torch.min(x1, tx1)
    g_h = torch.max(y2, ty2) - torch.min(y1, ty1)
    ac_union = g_w * g_h
    return ious, ious - (ac_union - area_union) / ac_union


def get_cls_loss(pred: Tensor, label: Tensor, select: Tensor) -> Tensor:
    """Return the cross entropy of selected rows."""
    return F.nll_loss(pred.index_select(0, select), label.index_select(0, select))


def select_cross_entropy_loss(pred: Tensor, label: Tensor) -> Tensor:
    """Return the cross entropy, half of objects and half of background."""
    pred, label = pred.view(-1, 2), label.view(-1)
    pos = label.eq(1).nonzero().squeeze(1)
    neg = label.eq(0).nonzero().squeeze(1)
    return get_cls_loss(pred, label, pos) * 0.5 + get_cls_loss(pred, label, neg) * 0.5


def weight_smooth_l1_loss(pred_loc: Tensor, label_loc: Tensor, loss_weight: Tensor) -> Tensor:
    """Return the weighted errors of deltas."""
    diff = F.smooth_l1_loss(pred_loc, label_loc, reduction="none", beta=BETA).sum(dim=1)
    return (diff * loss_weight).sum().div(pred_loc.size(0))


class TrackingLoss(nn.Module):
    """The expected 1 - IoU of the box that the tracker takes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        hanning = torch.hann_window(SCORES, periodic=False)
        window = torch.outer(hanning, hanning).flatten()
        if model.is_window_interleaved:
            window = window.repeat_interleave(ANCHORS)
        else:
            window = window.repeat(ANCHORS)
        self.register_buffer("window", window)
        self.is_penalty_stopped = model.is_penalty_stopped

    @staticmethod
    def change(r: Tensor) -> Tensor:
        """Return the larger one of a quotient and its inverse."""
        return torch.max(r, 1.0 / r)

    @staticmethod
    def sz(w: Tensor, h: Tensor) -> Tensor:
        """Return the side of the crop around a box."""
        pad = (w + h) * 0.5
        return torch.sqrt((w + pad) * (h + pad))

    def forward(
        self, score: Tensor, size: Tensor, iou: Tensor, last_size: Tensor, has_object: Tensor
    ) -> Tensor:
        w, h = size.flatten(2).unbind(dim=1)
        last_w, last_h = last_size.unsqueeze(2).unbind(dim=1)
        s_c = self.change(self.sz(w, h) / self.sz(last_w, last_h))
        r_c = self.change((last_w / last_h) / (w / h))
        penalty = torch.exp(-(r_c * s_c - 1) * PENALTY)
        if self.is_penalty_stopped:
            penalty = penalty.detach()
        pscore = penalty * score.flatten(1)
        pscore = pscore * (1 - INFLUENCE) + self.window * INFLUENCE
        probability = pscore / pscore.sum(dim=1, keepdim=True)
        risk = (probability * (1 - iou.flatten(1))).sum(dim=1)
        return risk[has_object].mean()


class ModelBuilder(nn.Module):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = ResNet(model)
        self.neck = nn.ModuleList(AdjustLayer(model, n) for n in range(LEVELS))
        self.rpn_head = MultiRPN(model)
        self.anchors = Anchors(model)
        self.tracking_loss = TrackingLoss(model)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(DEVIATION).view(3, 1, 1))
        self.backbone_gradient = model.backbone_gradient

    def extract(self, image: Tensor) -> list[Tensor]:
        """Return all levels of an image."""
        levels = self.backbone((image - self.mean) / self.std)
        if self.backbone_gradient != 1:
            levels = [ScaleGradient.apply(level, self.backbone_gradient) for level in levels]
        return [adjust(level) for adjust, level in zip(self.neck, levels, strict=True)]

    def forward(
        self, template: Tensor, search: Tensor, bbox: Tensor, last_size: Tensor, label_cls: Tensor
    ) -> Tensor:
        zf = [crop_center(level) for level in self.extract(template)]
        xf = self.extract(search)
        cls, loc, iou_logit = self.rpn_head(zf, xf)
        batch = cls.size(0)
        cls = cls.view(batch, 2, ANCHORS, SCORES, SCORES).permute(0, 2, 3, 4, 1).contiguous()
        cls = F.log_softmax(cls, dim=4)
        loc = loc.view(batch, 4, ANCHORS, SCORES, SCORES)
        positive = label_cls.eq(1)

        cls_loss = select_cross_entropy_loss(cls, label_cls)
        count = positive.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1)
        loc_loss = weight_smooth_l1_loss(loc, self.anchors.encode(bbox), positive.float() / count)
        boxes = self.anchors(loc)
        iou, giou = compute_iou(boxes, bbox)
        giou_loss = (1 - giou[positive]).mean()
        iou_loss = F.binary_cross_entropy_with_logits(iou_logit[positive], iou[positive].detach())
        score = cls[..., 1].exp() * torch.sigmoid(iou_logit)
        has_object = positive.flatten(1).any(dim=1)
        track_loss = self.tracking_loss(score, boxes[:, 2:], iou, last_size, has_object)
        return (
            cls_loss
            + LOC_WEIGHT * loc_loss
            + GIOU_WEIGHT * giou_loss
            + IOU_WEIGHT * iou_loss
            + TRACK_WEIGHT * track_loss
        )


def join(model: Model, *paths: str) -> Model:
    """Return weights of the layer 'joined', whose channels are those of layers at paths."""
    names = ("weight", "norm.weight", "norm.bias")
    joined = {
        f"joined.{name}": torch.cat([read(model, f"{path}.{name}") for path in paths]).numpy()
        for name in names
    }
    return Model(model.name, joined)


class ConvNorm(nn.Module):
    """A layer, with its norm as a function."""

    def __init__(
        self,
        model: Model,
        path: str,
        stride: int = 1,
        dilation: int = 1,
        *,
        pad: bool = True,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.weight"))
        self.gamma = nn.Parameter(read(model, f"{path}.norm.weight"))
        self.beta = nn.Parameter(read(model, f"{path}.norm.bias"))
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = dilation * (self.weight.shape[2] // 2) if pad else 0

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.weight, None, self.stride, self.padding, self.dilation, self.groups)
        return F.batch_norm(x, None, None, self.gamma, self.beta, training=True, eps=EPS)


class Stage(nn.Module):
    """A block, and what the heads read of it."""

    def __init__(self, model: Model, n: int, stride: int, dilation: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.first = ConvNorm(model, f"{path}.first", stride, dilation)
        self.second = ConvNorm(model, f"{path}.second", 1, dilation)
        has_shortcut = f"{path}.shortcut.weight" in model.weights
        self.skip = ConvNorm(model, f"{path}.shortcut", stride) if has_shortcut else nn.Identity()
        self.lateral = ConvNorm(model, f"necks.{n}")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.skip(x) + self.second(F.relu(self.first(x))))
        return x, F.relu(self.lateral(x))


class Extractor(nn.Module):
    """Levels of an image behind a frozen stem."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name in ("weight", "norm.weight", "norm.bias", "norm.mean", "norm.variance"):
            self.register_buffer(name.replace(".", "_"), read(model, f"stem.{name}"))
        self.stages = nn.ModuleList(
            (Stage(model, 0, 2, 1), Stage(model, 1, 1, 2), Stage(model, 2, 1, 2))
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        mean, std = (x.new_tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
        x = F.conv2d((x - mean) / std, self.weight, stride=2, padding=1)
        x = F.batch_norm(
            x, self.norm_mean, self.norm_variance, self.norm_weight, self.norm_bias, eps=EPS
        )
        x = F.relu(x)
        levels = []
        for stage in self.stages:
            x, level = stage(x)
            levels.append(level)
        return levels


class JoinedHead(nn.Module):
    """Both branches of a level in one."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        kernel, search, hidden = (
            join(model, f"cls.{n}.{name}", f"loc.{n}.{name}")
            for name in ("kernel", "search", "hidden")
        )
        self.kernel = ConvNorm(kernel, "joined", pad=False)
        self.search = ConvNorm(search, "joined", pad=False)
        self.tower = ConvNorm(hidden, "joined", groups=2)
        self.cls_pred = load_conv(model, f"cls.{n}.out")
        self.bbox_pred = load_conv(model, f"loc.{n}.out")
        self.quality_pred = load_conv(model, f"iou.{n}.out")

    def forward(self, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kernel = F.relu(self.kernel(z)).flatten(2)
        search = F.relu(self.search(x))
        windows = F.unfold(search, KERNEL).unflatten(1, (2 * HIDDEN, KERNEL**2))
        product = torch.einsum("bckp,bck->bcp", windows, kernel)
        product = product.unflatten(2, (SCORES, SCORES))
        cls_tower, reg_tower = F.relu(self.tower(product)).split(HIDDEN, dim=1)
        return self.cls_pred(cls_tower), self.bbox_pred(reg_tower), self.quality_pred(reg_tower)


class JoinedLoss(nn.Module):
    """The same losses in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.extractor = Extractor(model)
        self.heads = nn.ModuleList(JoinedHead(model, n) for n in range(LEVELS))
        self.cls_scale = nn.Parameter(read(model, "fusion.cls"))
        self.reg_scale = nn.Parameter(read(model, "fusion.loc"))
        places = torch.from_numpy(make_centers())
        sizes = torch.from_numpy(make_sizes())
        self.register_buffer("x", places)
        self.register_buffer("y", places[:, None])
        self.register_buffer("w", sizes[:, 0, None, None])
        self.register_buffer("h", sizes[:, 1, None, None])
        hann = torch.sin(torch.arange(SCORES) * (torch.pi / (SCORES - 1))) ** 2
        self.register_buffer("hann", hann)

    def fuse(self, levels: tuple[Tensor, ...], scale: Tensor) -> Tensor:
        """Return the sum of levels, anchors behind channels."""
        fused = torch.einsum("nbchw,n->bchw", torch.stack(levels), scale.softmax(dim=0))
        return fused.unflatten(1, (-1, ANCHORS))

    def compute_risk(
        self, logit: Tensor, quality: Tensor, w: Tensor, h: Tensor, iou: Tensor, last_size: Tensor
    ) -> Tensor:
        """Return the expected 1 - IoU of each pair."""
        last_w, last_h = last_size[:, :, None, None, None].unbind(dim=1)
        side = ((3 * w + h) * (w + 3 * h)) / ((3 * last_w + last_h) * (last_w + 3 * last_h))
        side = side.sqrt()
        aspect = (w * last_h) / (h * last_w)
        change = torch.maximum(side, 1 / side) * torch.maximum(aspect, 1 / aspect)
        score = logit.sigmoid() * quality.sigmoid() * torch.exp(PENALTY * (1 - change))
        score = torch.lerp(score, torch.outer(self.hann, self.hann).expand_as(score), INFLUENCE)
        dims = (1, 2, 3)
        return 1 - (score * iou).sum(dim=dims) / score.sum(dim=dims)

    def forward(
        self, template: Tensor, search: Tensor, bbox: Tensor, last_size: Tensor, labels: Tensor
    ) -> Tensor:
        z = [F.pad(f, [(CROP - f.shape[3]) // 2] * 4) for f in self.extractor(template)]
        x = self.extractor(search)
        outputs = [head(*pair) for head, *pair in zip(self.heads, z, x, strict=True)]
        cls, reg, quality = zip(*outputs, strict=True)
        cls = self.fuse(cls, self.cls_scale)
        dx, dy, dw, dh = self.fuse(reg, self.reg_scale).unbind(dim=1)
        quality = self.fuse(quality, self.reg_scale).squeeze(1)
        x, y = torch.addcmul(self.x, dx, self.w), torch.addcmul(self.y, dy, self.h)
        w, h = self.w * dw.exp(), self.h * dh.exp()

        gx, gy, gw, gh = bbox[:, :, None, None, None].unbind(dim=1)
        cut_w = torch.minimum(x + w / 2, gx + gw / 2) - torch.maximum(x - w / 2, gx - gw / 2)
        cut_h = torch.minimum(y + h / 2, gy + gh / 2) - torch.maximum(y - h / 2, gy - gh / 2)
        hull = (w + gw - cut_w) * (h + gh - cut_h)
        cut = F.relu(cut_w) * F.relu(cut_h)
        union = w * h + gw * gh - cut
        iou = cut / union

        logit = cls[:, 1] - cls[:, 0]
        is_positive, is_negative = labels == 1, labels == 0
        loss = 0.5 * F.softplus(-logit[is_positive]).mean()
        loss = loss + 0.5 * F.softplus(logit[is_negative]).mean()

        targets = ((gx - self.x) / self.w, (gy - self.y) / self.h, gw / self.w, gh / self.h)
        targets = (*targets[:2], targets[2].log(), targets[3].log())
        errors = sum(
            F.huber_loss(delta, target.expand_as(delta), reduction="none", delta=BETA) / BETA
            for delta, target in zip((dx, dy, dw, dh), targets, strict=True)
        )
        counts = is_positive.flatten(1).sum(dim=1)
        has_object = counts > 0
        errors = (errors * is_positive).flatten(1).sum(dim=1)[has_object] / counts[has_object]
        loss = loss + LOC_WEIGHT * errors.sum() / len(bbox)

        loss = loss + GIOU_WEIGHT * (2 - iou - union / hull)[is_positive].mean()
        quality_loss = F.softplus(quality) - iou.detach() * quality
        loss = loss + IOU_WEIGHT * quality_loss[is_positive].mean()
        risk = self.compute_risk(logit, quality, w, h, iou, last_size)
        return loss + TRACK_WEIGHT * risk[has_object].mean()
