"""Detection in the bird's-eye view in PyTorch, with modules named as BEVDet's and BEVDepth's.

Variant 'cumsum': modules named as those of Lift, Splat, Shoot, homogeneous matrices, points outside
the grid are dropped, the others sorted, and sums of cells are differences of a cumulative sum with
its own backward pass; norms and losses as functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.bev.architecture import (
    BINS,
    BOX_WEIGHT,
    CELL,
    CODE,
    CODE_WEIGHTS,
    CONTEXT,
    DEPTH_STEP,
    DEPTH_WEIGHT,
    EPS,
    FIRST_DEPTH,
    GRID_X,
    GRID_Y,
    HEADS,
    LOWER,
    MIN_SCORE,
    STRIDE,
    Model,
    make_frustum,
)

NO_DEPTH = 1e5


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return LiftSplatLoss(model) if model.variant == "cumsum" else BEVDepth(model)


def copy(parameter: nn.Parameter, model: Model, name: str) -> None:
    """Copy a weight into a parameter of as many numbers."""
    parameter.data.copy_(torch.from_numpy(model.weights[name]).view_as(parameter))


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    linear = nn.Linear(n_in, n_out)
    copy(linear.weight, model, f"{path}.weight")
    copy(linear.bias, model, f"{path}.bias")
    return linear


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at a path; a linear layer there is one of 1 x 1."""
    n_out, n_in, *kernel = model.weights[f"{path}.weight"].shape
    size = kernel[0] if kernel else 1
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=has_bias)
    copy(conv.weight, model, f"{path}.weight")
    if has_bias:
        copy(conv.bias, model, f"{path}.bias")
    return conv


def load_norm(model: Model, path: str, kind: type = nn.BatchNorm2d) -> nn.Module:
    """Return the batch norm at a path."""
    norm = kind(len(model.weights[f"{path}.weight"]), eps=EPS)
    copy(norm.weight, model, f"{path}.weight")
    copy(norm.bias, model, f"{path}.bias")
    return norm


class ConvModule(nn.Module):
    """A layer."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.conv = load_conv(model, path, stride)
        self.bn = load_norm(model, f"{path}.norm")
        self.activate = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.bn(self.conv(x)))


class BasicBlock(nn.Module):
    """Two convolutions added to their input."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = load_conv(model, f"{path}.first", stride)
        self.bn1 = load_norm(model, f"{path}.first.norm")
        self.conv2 = load_conv(model, f"{path}.second")
        self.bn2 = load_norm(model, f"{path}.second.norm")
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                load_conv(model, f"{path}.shortcut", stride),
                load_norm(model, f"{path}.shortcut.norm"),
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + identity)


class Mlp(nn.Module):
    """What channels are to know of a camera."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = load_linear(model, f"{path}.0")
        self.act = nn.ReLU()
        self.fc2 = load_linear(model, f"{path}.1")

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc2(self.act(self.fc1(x))))


class SELayer(nn.Module):
    """Channels times gates."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv_reduce = load_conv(model, f"{path}.reduce")
        self.act1 = nn.ReLU()
        self.conv_expand = load_conv(model, f"{path}.expand")
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor, x_se: Tensor) -> Tensor:
        x_se = self.conv_expand(self.act1(self.conv_reduce(x_se)))
        return x * self.gate(x_se)


class DepthNet(nn.Module):
    """Logits of bins (views, BINS, rows, columns) and context (views, CONTEXT, ...)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.reduce_conv = ConvModule(model, "depth.layer")
        self.bn = load_norm(model, "camera", nn.BatchNorm1d)
        self.context_mlp = Mlp(model, "context.mlp")
        self.context_se = SELayer(model, "context")
        self.context_conv = load_conv(model, "context.out")
        self.depth_mlp = Mlp(model, "bins.mlp")
        self.depth_se = SELayer(model, "bins")
        self.depth_conv = nn.Sequential(
            BasicBlock(model, "depth.block"), load_conv(model, "bins.out")
        )

    def forward(self, x: Tensor, mlp_input: Tensor) -> tuple[Tensor, Tensor]:
        mlp_input = self.bn(mlp_input.flatten(0, 1))
        x = self.reduce_conv(x)
        context_se = self.context_mlp(mlp_input)[..., None, None]
        context = self.context_conv(self.context_se(x, context_se))
        depth_se = self.depth_mlp(mlp_input)[..., None, None]
        depth = self.depth_conv(self.depth_se(x, depth_se))
        return depth, context


def get_mlp_input(
    rots: Tensor, trans: Tensor, intrins: Tensor, post_rots: Tensor, post_trans: Tensor, bda: Tensor
) -> Tensor:
    """Return the numbers that the depth network reads of cameras, (batch, cameras, CAMERA)."""
    batch, cameras = trans.shape[:2]
    bda = bda.view(batch, 1, 3, 3).expand(batch, cameras, 3, 3)
    numbers = [
        intrins[:, :, 0, 0],
        intrins[:, :, 1, 1],
        intrins[:, :, 0, 2],
        intrins[:, :, 1, 2],
        post_rots[:, :, 0, 0],
        post_rots[:, :, 0, 1],
        post_rots[:, :, 1, 0],
        post_rots[:, :, 1, 1],
        post_trans[:, :, 0],
        post_trans[:, :, 1],
        bda[:, :, 0, 0],
        bda[:, :, 0, 1],
        bda[:, :, 1, 0],
        bda[:, :, 1, 1],
    ]
    sensor2ego = torch.cat([rots, trans[..., None]], dim=-1).reshape(batch, cameras, -1)
    return torch.cat([torch.stack(numbers, dim=-1), sensor2ego], dim=-1)


class LSSViewTransformer(nn.Module):
    """Features of the grid, (batch, CONTEXT, GRID_Y, GRID_X)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("frustum", torch.from_numpy(make_frustum()), persistent=False)
        self.register_buffer("grid_lower_bound", torch.tensor(LOWER), persistent=False)
        self.register_buffer("grid_interval", torch.tensor(CELL), persistent=False)
        self.is_shift_last = model.is_shift_last

    def get_lidar_coor(
        self,
        rots: Tensor,
        trans: Tensor,
        intrins: Tensor,
        post_rots: Tensor,
        post_trans: Tensor,
        bda: Tensor,
    ) -> Tensor:
        """Return the places of all points, (batch, cameras, BINS, rows, columns, 3)."""
        batch, cameras, _ = trans.shape
        undo = torch.inverse(post_rots).view(batch, cameras, 1, 1, 1, 3, 3)
        post_trans = post_trans.view(batch, cameras, 1, 1, 1, 3)
        if self.is_shift_last:
            points = undo.matmul(self.frustum.unsqueeze(-1)) - post_trans.unsqueeze(-1)
        else:
            points = undo.matmul((self.frustum - post_trans).unsqueeze(-1))
        points = torch.cat((points[..., :2, :] * points[..., 2:3, :], points[..., 2:3, :]), -2)
        combine = rots.matmul(torch.inverse(intrins))
        points = combine.view(batch, cameras, 1, 1, 1, 3, 3).matmul(points).squeeze(-1)
        points = points + trans.view(batch, cameras, 1, 1, 1, 3)
        return bda.view(batch, 1, 1, 1, 1, 3, 3).matmul(points.unsqueeze(-1)).squeeze(-1)

    def voxel_pooling(self, coor: Tensor, feat: Tensor) -> Tensor:
        """Return the sums of points in cells."""
        batch = len(feat)
        coor = torch.floor((coor - self.grid_lower_bound) / self.grid_interval).long()
        coor, feat = coor.view(batch, -1, 3), feat.reshape(-1, CONTEXT)
        x, y, z = coor.unbind(-1)
        kept = (x >= 0) & (x < GRID_X) & (y >= 0) & (y < GRID_Y) & (z == 0)
        ranks = torch.arange(batch)[:, None] * (GRID_Y * GRID_X) + y * GRID_X + x
        bev = feat.new_zeros(batch * GRID_Y * GRID_X, CONTEXT)
        bev = bev.index_add(0, ranks[kept], feat[kept.view(-1)])
        return bev.view(batch, GRID_Y, GRID_X, CONTEXT).permute(0, 3, 1, 2).contiguous()

    def forward(self, depth: Tensor, context: Tensor, *cameras: Tensor) -> Tensor:
        batch, n_cameras, _ = cameras[1].shape
        volume = depth.unsqueeze(1) * context.unsqueeze(2)
        volume = volume.unflatten(0, (batch, n_cameras)).permute(0, 1, 3, 4, 5, 2)
        return self.voxel_pooling(self.get_lidar_coor(*cameras), volume)


class CustomResNet(nn.Module):
    """Features of the grid at half and a quarter of its size."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvModule(model, "grid.stem", 2)
        self.layers = nn.ModuleList(
            [BasicBlock(model, "grid.near"), BasicBlock(model, "grid.far", 2)]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        feats = []
        for layer in self.layers:
            x = layer(x)
            feats.append(x)
        return feats


class FPNLSS(nn.Module):
    """Both sizes joined and upsampled to the grid's."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = ConvModule(model, "grid.merge")
        self.up2 = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            ConvModule(model, "grid.last"),
        )

    def forward(self, feats: list[Tensor]) -> Tensor:
        near, far = feats
        return self.up2(self.conv(torch.cat([self.up(far), near], dim=1)))


class SeparateHead(nn.Module):
    """Logits of heatmaps and codes of boxes in all cells."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(
                    ConvModule(model, f"heads.{name}.hidden"),
                    load_conv(model, f"heads.{name}.out"),
                )
                for name in ("heatmap", *(name for name, _ in HEADS))
            }
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head(x) for name, head in self.heads.items()}


def clip_sigmoid(x: Tensor) -> Tensor:
    """Return scores that have a logarithm, as their complement has."""
    return torch.clamp(x.sigmoid(), min=MIN_SCORE, max=1 - MIN_SCORE)


def gaussian_focal_loss(pred: Tensor, gaussian_target: Tensor) -> Tensor:
    """Return the focal loss of each cell."""
    pos_weights = gaussian_target.eq(1)
    neg_weights = (1 - gaussian_target).pow(4)
    pos_loss = -pred.log() * (1 - pred).pow(2) * pos_weights
    neg_loss = -(1 - pred).log() * pred.pow(2) * neg_weights
    return pos_loss + neg_loss


def encode_boxes(boxes: Tensor) -> Tensor:
    """Return the codes of boxes, (batch, objects, CODE)."""
    center, dims, yaw = boxes[..., :2], boxes[..., 3:6], boxes[..., 6:7]
    place = (center - boxes.new_tensor(LOWER[:2])) / boxes.new_tensor(CELL[:2])
    return torch.cat(
        [
            place - place.floor(),
            boxes[..., 2:3],
            dims.log(),
            torch.sin(yaw),
            torch.cos(yaw),
            boxes[..., 7:],
        ],
        dim=-1,
    )


class CenterHead(nn.Module):
    """The losses of heatmaps and boxes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.shared_conv = ConvModule(model, "heads.shared")
        self.task_head = SeparateHead(model)
        weights = torch.tensor(model.code_weights)
        self.register_buffer("code_weights", weights, persistent=False)
        self.are_predictions_transposed = model.are_predictions_transposed

    def forward(
        self, x: Tensor, heatmaps: Tensor, boxes: Tensor, inds: Tensor, masks: Tensor
    ) -> tuple[Tensor, Tensor]:
        preds = self.task_head(self.shared_conv(x))
        num_pos = heatmaps.eq(1).float().sum()
        losses = gaussian_focal_loss(clip_sigmoid(preds["heatmap"]), heatmaps)
        loss_heatmap = losses.sum() / num_pos.clamp(min=1)

        pred = torch.cat([preds[name] for name, _ in HEADS], dim=1)
        axes = (0, 3, 2, 1) if self.are_predictions_transposed else (0, 2, 3, 1)
        pred = pred.permute(*axes).contiguous().view(len(pred), -1, CODE)
        pred = pred.gather(1, inds.unsqueeze(2).expand(-1, -1, CODE))
        bbox_weights = masks.unsqueeze(2) * self.code_weights
        loss_bbox = F.l1_loss(pred, encode_boxes(boxes), reduction="none") * bbox_weights
        return loss_heatmap, BOX_WEIGHT * loss_bbox.sum() / masks.sum().clamp(min=1)


def get_downsampled_gt_depth(gt_depths: Tensor) -> Tensor:
    """Return one-hot vectors of the bins of all cells, zeros if a cell has no depth."""
    batch, cameras, height, width = gt_depths.shape
    gt_depths = gt_depths.view(
        batch * cameras, height // STRIDE, STRIDE, width // STRIDE, STRIDE
    ).permute(0, 1, 3, 2, 4)
    gt_depths = gt_depths.reshape(-1, STRIDE * STRIDE)
    gt_depths = torch.where(gt_depths == 0.0, NO_DEPTH * torch.ones_like(gt_depths), gt_depths)
    gt_depths = torch.min(gt_depths, dim=-1).values
    gt_depths = (gt_depths - (FIRST_DEPTH - DEPTH_STEP)) / DEPTH_STEP
    is_known = (gt_depths < BINS + 1) & (gt_depths >= 0.0)
    gt_depths = torch.where(is_known, gt_depths, torch.zeros_like(gt_depths))
    return F.one_hot(gt_depths.long(), num_classes=BINS + 1)[:, 1:].float()


class BEVDepth(nn.Module):
    """The sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.img_backbone = nn.Sequential(
            ConvModule(model, "encoder.0", 2),
            ConvModule(model, "encoder.1", 2),
            BasicBlock(model, "encoder.block"),
        )
        self.depth_net = DepthNet(model)
        self.img_view_transformer = LSSViewTransformer(model)
        self.img_bev_encoder_backbone = CustomResNet(model)
        self.img_bev_encoder_neck = FPNLSS(model)
        self.pts_bbox_head = CenterHead(model)
        self.is_depth_detached = model.is_depth_detached

    def get_depth_loss(self, depth_labels: Tensor, depth_preds: Tensor) -> Tensor:
        """Return the loss of depths."""
        depth_labels = get_downsampled_gt_depth(depth_labels)
        depth_preds = depth_preds.permute(0, 2, 3, 1).contiguous().view(-1, BINS)
        fg_mask = torch.max(depth_labels, dim=1).values > 0.0
        loss = F.binary_cross_entropy(depth_preds[fg_mask], depth_labels[fg_mask], reduction="none")
        return DEPTH_WEIGHT * loss.sum() / max(1.0, fg_mask.sum())

    def forward(
        self,
        imgs: Tensor,
        rots: Tensor,
        trans: Tensor,
        intrins: Tensor,
        post_rots: Tensor,
        post_trans: Tensor,
        bda: Tensor,
        gt_depth: Tensor,
        heatmaps: Tensor,
        boxes: Tensor,
        inds: Tensor,
        masks: Tensor,
    ) -> Tensor:
        cameras = (rots, trans, intrins, post_rots, post_trans, bda)
        features = self.img_backbone(imgs.flatten(0, 1))
        depth_digit, context = self.depth_net(features, get_mlp_input(*cameras))
        depth = depth_digit.softmax(dim=1)
        lifted = depth.detach() if self.is_depth_detached else depth
        bev = self.img_view_transformer(lifted, context, *cameras)
        bev = self.img_bev_encoder_neck(self.img_bev_encoder_backbone(bev))
        loss_heatmap, loss_bbox = self.pts_bbox_head(bev, heatmaps, boxes, inds, masks)
        return loss_heatmap + loss_bbox + self.get_depth_loss(gt_depth, depth)


class QuickCumsum(Function):
    """Sums of runs of equal ranks, by differences of the cumulative sum."""

    @staticmethod
    def forward(context, x: Tensor, ranks: Tensor) -> Tensor:
        x = x.cumsum(0)
        kept = torch.ones(len(x), dtype=torch.bool)
        kept[:-1] = ranks[1:] != ranks[:-1]
        context.save_for_backward(kept)
        x = x[kept]
        return torch.cat((x[:1], x[1:] - x[:-1]))

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = context.saved_tensors
        back = torch.cumsum(kept, 0)
        back[kept] -= 1
        return gradient[back], None


class ConvNorm(nn.Module):
    """A convolution and the function that normalizes it."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.conv = load_conv(model, path, stride)
        for name in ("weight", "bias"):
            values = torch.from_numpy(model.weights[f"{path}.norm.{name}"]).clone()
            self.register_parameter(name, nn.Parameter(values))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=EPS)


class Residual(nn.Module):
    """The same as BasicBlock."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.first = ConvNorm(model, f"{path}.first", stride)
        self.second = ConvNorm(model, f"{path}.second")
        self.shortcut = ConvNorm(model, f"{path}.shortcut", stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.second(F.relu(self.first(x))))


class CameraGate(nn.Module):
    """Gates of channels from the numbers of a camera, by linear layers."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        names = ("mlp.0", "mlp.1", "reduce", "expand")
        self.layers = nn.ModuleList(load_linear(model, f"{path}.{name}") for name in names)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return torch.sigmoid(self.layers[-1](x))


class CamEncode(nn.Module):
    """Logits of bins and context, (views, rows, columns, ...)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(
            [ConvNorm(model, "encoder.0", 2), ConvNorm(model, "encoder.1", 2)]
        )
        self.block = Residual(model, "encoder.block")
        self.layer = ConvNorm(model, "depth.layer")
        self.bn = load_norm(model, "camera", nn.BatchNorm1d)
        self.context_gate, self.depth_gate = (CameraGate(model, k) for k in ("context", "bins"))
        self.depth_block = Residual(model, "depth.block")
        self.context_out = load_linear(model, "context.out")
        self.depth_out = load_linear(model, "bins.out")

    def forward(self, x: Tensor, camera: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.trunk:
            x = F.relu(layer(x))
        x = F.relu(self.layer(self.block(x)))
        camera = self.bn(camera)
        context = x.movedim(1, -1) * self.context_gate(camera)[:, None, None]
        depth = self.depth_block(x * self.depth_gate(camera)[:, :, None, None])
        return self.depth_out(depth.movedim(1, -1)), self.context_out(context)


class BevEncode(nn.Module):
    """Outputs of all heads, the heatmaps' first, (batch, CLASSES + CODE, GRID_Y, GRID_X)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = ConvNorm(model, "grid.stem", 2)
        self.layer1 = Residual(model, "grid.near")
        self.layer2 = Residual(model, "grid.far", 2)
        self.up1 = ConvNorm(model, "grid.merge")
        self.up2 = ConvNorm(model, "grid.last")
        self.shared = ConvNorm(model, "heads.shared")
        names = ("heatmap", *(name for name, _ in HEADS))
        self.hidden = nn.ModuleList(ConvNorm(model, f"heads.{name}.hidden") for name in names)
        self.out = nn.ModuleList(load_conv(model, f"heads.{name}.out") for name in names)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        x1 = self.layer1(F.relu(self.conv1(x)))
        x = self.layer2(x1)
        x = F.interpolate(x, size=x1.shape[-2:], mode="bilinear", align_corners=True)
        x = F.relu(self.up1(torch.cat((x, x1), dim=1)))
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=True)
        x = F.relu(self.shared(F.relu(self.up2(x))))
        pairs = zip(self.hidden, self.out, strict=True)
        return torch.cat([out(F.relu(hidden(x))) for hidden, out in pairs], dim=1)


def join(matrix: Tensor, shift: Tensor) -> Tensor:
    """Return the homogeneous matrix of a linear map and a shift."""
    upper = torch.cat((matrix, shift.unsqueeze(-1)), dim=-1)
    last = upper.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(*upper.shape[:-2], 1, 4)
    return torch.cat((upper, last), dim=-2)


class LiftSplatLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.camencode = CamEncode(model)
        self.bevencode = BevEncode(model)
        frustum = F.pad(torch.from_numpy(make_frustum()), (0, 1), value=1.0)
        self.register_buffer("frustum", frustum.view(-1, 4).T.contiguous(), persistent=False)
        self.register_buffer("lower", torch.tensor(LOWER), persistent=False)
        self.register_buffer("cell", torch.tensor(CELL), persistent=False)
        self.register_buffer("shares", torch.tensor(CODE_WEIGHTS), persistent=False)

    def get_geometry(
        self,
        rots: Tensor,
        trans: Tensor,
        intrins: Tensor,
        post_rots: Tensor,
        post_trans: Tensor,
        bda: Tensor,
    ) -> Tensor:
        """Return the places of all points, (batch, points, 3)."""
        points = torch.linalg.solve(join(post_rots, post_trans), self.frustum)
        xy, depth, one = points.split((2, 1, 1), dim=2)
        rays = torch.linalg.solve(intrins, torch.cat((xy * depth, depth), dim=2))
        lift = join(bda, torch.zeros_like(bda[..., 0])).unsqueeze(1) @ join(rots, trans)
        points = lift @ torch.cat((rays, one), dim=2)
        return points[:, :, :3].transpose(2, 3).flatten(1, 2)

    def splat(self, geometry: Tensor, volume: Tensor) -> Tensor:
        """Return the sums of cells, of points sorted by their cells."""
        batch = len(geometry)
        coords = torch.div(geometry - self.lower, self.cell, rounding_mode="floor").long()
        size = coords.new_tensor([GRID_X, GRID_Y, 1])
        kept = ((coords >= 0) & (coords < size)).all(dim=-1)
        samples = torch.arange(batch)[:, None].expand_as(kept)[kept]
        x, coords = volume.reshape(*kept.shape, CONTEXT)[kept], coords[kept]
        ranks = (samples * GRID_Y + coords[:, 1]) * GRID_X + coords[:, 0]
        sorts = ranks.argsort(stable=True)
        x, ranks = x[sorts], ranks[sorts]
        x = QuickCumsum.apply(x, ranks)
        bev = torch.zeros(batch * GRID_Y * GRID_X, CONTEXT)
        bev = bev.index_put((torch.unique_consecutive(ranks),), x)
        return bev.unflatten(0, (batch, GRID_Y, GRID_X)).movedim(-1, 1)

    def forward(
        self,
        imgs: Tensor,
        rots: Tensor,
        trans: Tensor,
        intrins: Tensor,
        post_rots: Tensor,
        post_trans: Tensor,
        bda: Tensor,
        gt_depth: Tensor,
        heatmaps: Tensor,
        boxes: Tensor,
        inds: Tensor,
        masks: Tensor,
    ) -> Tensor:
        cameras = (rots, trans, intrins, post_rots, post_trans, bda)
        logits, context = self.camencode(imgs.flatten(0, 1), get_mlp_input(*cameras).flatten(0, 1))
        depth = F.softmax(logits, dim=-1)
        volume = torch.einsum("vhwd,vhwc->vdhwc", depth, context)
        outputs = self.bevencode(self.splat(self.get_geometry(*cameras), volume))
        classes = heatmaps.shape[1]

        score = outputs[:, :classes].sigmoid().clamp(MIN_SCORE, 1 - MIN_SCORE)
        is_center = heatmaps == 1
        positive = torch.log(score[is_center]) * (1 - score[is_center]) ** 2
        negative = torch.log1p(-score) * (score * (1 - heatmaps) ** 2) ** 2
        loss = -(positive.sum() + negative.sum()) / is_center.sum()

        codes = outputs[:, classes:].flatten(2).transpose(1, 2)
        samples, slots = masks.nonzero(as_tuple=True)
        codes = codes[samples, inds[samples, slots]]
        errors = (codes - encode_boxes(boxes[samples, slots])).abs()
        loss = loss + BOX_WEIGHT * (errors @ self.shares).mean()

        labels = get_downsampled_gt_depth(gt_depth)
        likelihood = torch.where(labels > 0, depth.flatten(0, 2), 1 - depth.flatten(0, 2))
        losses = -torch.log(likelihood[labels.sum(dim=1) > 0]).sum(dim=1)
        return loss + DEPTH_WEIGHT * losses.mean()
