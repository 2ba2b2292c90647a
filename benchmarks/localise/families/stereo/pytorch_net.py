"""Stereo depth estimation in PyTorch, with modules named as PSMNet's and GwcNet's.

Variant 'openstereo': other names, functional norms, volumes from slices of a padded image, both
costs in one resize, warps by grid_sample, smooth L1 and SSIM in plain arithmetic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.stereo.architecture import (
    BATCH,
    C1,
    C2,
    CONSISTENCY,
    DEVIATION,
    DILATIONS,
    EDGE_FACTOR,
    EPS,
    GROUPS,
    HEIGHT,
    LEVELS,
    MAX_DISPARITY,
    MEAN,
    PHOTOMETRIC,
    POOLS,
    SLOPE,
    SMOOTHNESS,
    SSIM_SHARE,
    STAGE_WEIGHTS,
    STAGES,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return OpenStereoLoss(model) if model.variant == "openstereo" else StereoLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name].copy())


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at a path into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return module


def load_conv(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Module:
    """Return the convolution at a path, in two or three dimensions."""
    shape = model.weights[f"{path}.weight"].shape
    conv = (nn.Conv2d if len(shape) == 4 else nn.Conv3d)(
        shape[1],
        shape[0],
        shape[2],
        stride,
        padding=dilation * (shape[2] // 2),
        dilation=dilation,
        bias=f"{path}.bias" in model.weights,
    )
    return load(conv, model, path)


def load_transposed(model: Model, path: str) -> nn.Module:
    """Return the transposed convolution at a path, which doubles sizes."""
    n_in, n_out, kernel = model.weights[f"{path}.weight"].shape[:3]
    conv = nn.ConvTranspose3d(
        n_in, n_out, kernel, stride=2, padding=1, output_padding=1, bias=False
    )
    return load(conv, model, path)


def load_norm(model: Model, path: str, kind: type[nn.Module]) -> nn.Module:
    """Return the batch norm at a path."""
    return load(kind(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


def convbn(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return a convolution and its norm."""
    conv = load_conv(model, path, stride, dilation)
    return nn.Sequential(conv, load_norm(model, f"{path}.norm", nn.BatchNorm2d))


def convbn_3d(model: Model, path: str, stride: int = 1) -> nn.Sequential:
    """Return a convolution in three dimensions and its norm."""
    conv = load_conv(model, path, stride)
    return nn.Sequential(conv, load_norm(model, f"{path}.norm", nn.BatchNorm3d))


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, model: Model, path: str, stride: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(
            convbn(model, f"{path}.first", stride, dilation), nn.ReLU(inplace=True)
        )
        self.conv2 = convbn(model, f"{path}.second", 1, dilation)
        self.downsample = convbn(model, f"{path}.shortcut", stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x))
        if self.downsample is not None:
            x = self.downsample(x)
        return out + x


class FeatureExtraction(nn.Module):
    """Features for the correlation, and reduced ones, of an image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.firstconv = nn.Sequential(convbn(model, "stem", 2), nn.ReLU(inplace=True))
        self.layer1 = BasicBlock(model, "blocks.0", 2, 1)
        self.layer2 = BasicBlock(model, "blocks.1", 1, 2)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.AvgPool2d(pool, stride=pool),
                convbn(model, f"branches.{n}"),
                nn.ReLU(inplace=True),
            )
            for n, pool in enumerate(POOLS)
        )
        self.lastconv = nn.Sequential(convbn(model, "fusion"), nn.ReLU(inplace=True))
        self.gwc_feature = load_conv(model, "features")
        self.concat_feature = load_conv(model, "reduction")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output_raw = self.layer1(self.firstconv(x))
        output_skip = self.layer2(output_raw)
        outputs = [output_raw, output_skip]
        for branch in self.branches:
            pooled = branch(output_skip)
            outputs.append(
                F.interpolate(
                    pooled, size=output_skip.shape[2:], mode="bilinear", align_corners=False
                )
            )
        fused = self.lastconv(torch.cat(outputs, dim=1))
        return self.gwc_feature(fused), self.concat_feature(fused)


def groupwise_correlation(fea1: Tensor, fea2: Tensor) -> Tensor:
    """Return the mean product of each group of channels."""
    batch, channels, height, width = fea1.shape
    cost = (fea1 * fea2).view(batch, GROUPS, channels // GROUPS, height, width)
    return cost.mean(dim=2)


class CostVolume(nn.Module):
    """Correlations and features of both images at each disparity."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_volume_rolled = model.is_volume_rolled
        self.is_volume_leftward = model.is_volume_leftward

    def get_columns(self, disparity: int, width: int) -> tuple[slice, slice]:
        """Return the columns of the left image and those of the right one that they have."""
        late, early = slice(disparity, None), slice(None, width - disparity)
        return (late, early) if self.is_volume_leftward else (early, late)

    def build_gwc_volume(self, left: Tensor, right: Tensor) -> Tensor:
        """Return correlations (batch, GROUPS, LEVELS, rows, columns)."""
        if self.is_volume_rolled:
            return torch.stack(
                [groupwise_correlation(left, right.roll(i, dims=3)) for i in range(LEVELS)], dim=2
            )
        batch, _, height, width = left.shape
        volume = left.new_zeros(batch, GROUPS, LEVELS, height, width)
        for i in range(LEVELS):
            own, other = self.get_columns(i, width)
            volume[:, :, i, :, own] = groupwise_correlation(left[..., own], right[..., other])
        return volume

    def build_concat_volume(self, left: Tensor, right: Tensor) -> Tensor:
        """Return features (batch, 2 * REDUCED, LEVELS, rows, columns)."""
        if self.is_volume_rolled:
            return torch.stack(
                [torch.cat((left, right.roll(i, dims=3)), dim=1) for i in range(LEVELS)], dim=2
            )
        batch, channels, height, width = left.shape
        volume = left.new_zeros(batch, 2 * channels, LEVELS, height, width)
        for i in range(LEVELS):
            own, other = self.get_columns(i, width)
            volume[:, :channels, i, :, own] = left[..., own]
            volume[:, channels:, i, :, own] = right[..., other]
        return volume

    def forward(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
        gwc_volume = self.build_gwc_volume(left[0], right[0])
        return torch.cat((gwc_volume, self.build_concat_volume(left[1], right[1])), dim=1)


class Hourglass(nn.Module):
    """Half the size and back, with a skip connection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(convbn_3d(model, "hourglass.down", 2), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(convbn_3d(model, "hourglass.middle"), nn.ReLU(inplace=True))
        self.conv3 = nn.Sequential(
            load_transposed(model, "hourglass.up"),
            load_norm(model, "hourglass.up.norm", nn.BatchNorm3d),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv3(self.conv2(self.conv1(x))) + x)


class DisparityRegression(nn.Module):
    """The mean disparity of costs."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_cost_similarity = model.is_cost_similarity
        disp = torch.arange(MAX_DISPARITY, dtype=torch.float32)
        self.register_buffer("disp", disp.reshape(1, -1, 1, 1))

    def forward(self, cost: Tensor) -> Tensor:
        cost = F.interpolate(
            cost, size=(MAX_DISPARITY, HEIGHT, WIDTH), mode="trilinear", align_corners=False
        ).squeeze(1)
        prob = F.softmax(cost if self.is_cost_similarity else -cost, dim=1)
        return torch.sum(prob * self.disp, dim=1, keepdim=True)


class CostAggregation(nn.Module):
    """The disparities of two stages from a volume."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dres0 = nn.Sequential(
            convbn_3d(model, "volume.0"),
            nn.ReLU(inplace=True),
            convbn_3d(model, "volume.1"),
            nn.ReLU(inplace=True),
        )
        self.dres1 = Hourglass(model)
        self.classif0, self.classif1 = (
            nn.Sequential(
                convbn_3d(model, f"costs.{n}.0"),
                nn.ReLU(inplace=True),
                load_conv(model, f"costs.{n}.1"),
            )
            for n in range(STAGES)
        )
        self.regression = DisparityRegression(model)

    def forward(self, volume: Tensor) -> tuple[Tensor, Tensor]:
        out0 = self.dres0(volume)
        cost0 = self.classif0(out0)
        cost1 = self.classif1(self.dres1(out0)) + cost0
        return self.regression(cost0), self.regression(cost1)


def find_cells(width: int, disp: Tensor) -> tuple[Tensor, Tensor]:
    """Return the column left of each place that a warp reads, and the share of the one behind."""
    x = torch.arange(width, dtype=disp.dtype) - disp
    x = x.clamp(0, width - 1)
    x0 = x.floor().clamp(max=width - 2)
    return x0.long(), x - x0


def read_columns(image: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values at the columns of an index, and behind them."""
    index = index.expand(-1, image.shape[1], -1, -1)
    return image.gather(3, index), image.gather(3, index + 1)


class WarpFunction(Function):
    """A warp with its own backward pass."""

    @staticmethod
    def forward(ctx: Function, image: Tensor, disp: Tensor) -> Tensor:
        ctx.save_for_backward(image, disp)
        index, share = find_cells(image.shape[3], disp)
        low, high = read_columns(image, index)
        return low * (1 - share) + high * share

    @staticmethod
    def backward(ctx: Function, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        image, disp = ctx.saved_tensors
        width = image.shape[3]
        index, share = find_cells(width, disp)
        low, high = read_columns(image, index)
        index = index.expand_as(image)
        grad_image = torch.zeros_like(image)
        grad_image.scatter_add_(3, index, grad_output * (1 - share))
        grad_image.scatter_add_(3, index + 1, grad_output * share)
        grad_x = ((high - low) * grad_output).sum(dim=1, keepdim=True)
        x = torch.arange(width, dtype=disp.dtype) - disp
        return grad_image, grad_x * ((x >= 0) & (x <= width - 1))


class Warp(nn.Module):
    """An image read at the places that disparities say."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_gradient_positive = model.is_warp_gradient_positive
        self.are_corners_aligned = model.are_warp_corners_aligned

    def forward(self, image: Tensor, disp: Tensor) -> Tensor:
        if self.is_gradient_positive:
            return WarpFunction.apply(image, disp)
        if not self.are_corners_aligned:
            return sample_columns(image, disp, are_corners_aligned=False)
        index, share = find_cells(image.shape[3], disp)
        low, high = read_columns(image, index)
        return low * (1 - share) + high * share


class Refinement(nn.Module):
    """A residual of the disparity from the images' distance."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.warp = Warp(model)
        conv1, conv2, conv3 = (
            load_conv(model, f"refinement.{n}", 1, dilation) for n, dilation in enumerate(DILATIONS)
        )
        self.conv = nn.Sequential(conv1, nn.LeakyReLU(SLOPE), conv2, nn.LeakyReLU(SLOPE), conv3)

    def forward(self, left: Tensor, right: Tensor, disp: Tensor) -> Tensor:
        error = (left - self.warp(right, disp)).abs()
        residual = self.conv(torch.cat((left, error, disp / MAX_DISPARITY), dim=1))
        return F.relu(disp + residual)


class StereoNet(nn.Module):
    """All disparities of the left image, and one of the right image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_extraction = FeatureExtraction(model)
        self.cost_volume = CostVolume(model)
        self.aggregation = CostAggregation(model)
        self.refinement = Refinement(model)
        self.register_buffer("mean", torch.tensor(MEAN).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(DEVIATION).reshape(3, 1, 1))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        left_features = self.feature_extraction((left - self.mean) / self.std)
        right_features = self.feature_extraction((right - self.mean) / self.std)
        pred0, pred1 = self.aggregation(self.cost_volume(left_features, right_features))
        refined = self.refinement(left, right, pred1)
        mirrored_left = tuple(x.flip(3) for x in right_features)
        mirrored_right = tuple(x.flip(3) for x in left_features)
        _, mirrored = self.aggregation(self.cost_volume(mirrored_left, mirrored_right))
        return pred0, pred1, refined, mirrored.flip(3)


class SSIM(nn.Module):
    """The dissimilarity of windows, from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mu_x, mu_y = self.pool(x), self.pool(y)
        sigma_x = self.pool(x**2) - mu_x**2
        sigma_y = self.pool(y**2) - mu_y**2
        sigma_xy = self.pool(x * y) - mu_x * mu_y
        ssim_n = (2 * mu_x * mu_y + C1) * (2 * sigma_xy + C2)
        ssim_d = (mu_x**2 + mu_y**2 + C1) * (sigma_x + sigma_y + C2)
        return torch.clamp((1 - ssim_n / ssim_d) / 2, 0, 1)


def get_mask(sizes: Tensor) -> Tensor:
    """Return which pixels are no padding, (batch, 1, HEIGHT, WIDTH)."""
    height, width = sizes.reshape(-1, 2, 1, 1, 1).unbind(dim=1)
    rows, columns = torch.arange(HEIGHT)[:, None], torch.arange(WIDTH)
    return ((rows < height) & (columns < width)).float()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over channels and the pixels of a mask."""
    return (values * mask).sum() / (mask.sum() * values.shape[1])


class StereoLoss(nn.Module):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = StereoNet(model)
        self.warp = Warp(model)
        self.ssim = SSIM()
        self.is_consistency_attached = model.is_consistency_attached

    def compute_photometric(
        self, image: Tensor, other: Tensor, disp: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the distance of an image from the other one, warped."""
        warped = self.warp(other, disp)
        ssim = masked_mean(self.ssim(warped, image), mask[..., 1:-1, 1:-1])
        return SSIM_SHARE * ssim + (1 - SSIM_SHARE) * masked_mean((warped - image).abs(), mask)

    def compute_smoothness(self, disp: Tensor, image: Tensor, mask: Tensor) -> Tensor:
        """Return the disparity's gradients where the image has none."""
        disp = disp / (disp.mean(dim=(2, 3), keepdim=True) + 1e-7)
        grad_x = (disp[..., :-1] - disp[..., 1:]).abs()
        grad_y = (disp[..., :-1, :] - disp[..., 1:, :]).abs()
        edge_x = (image[..., :-1] - image[..., 1:]).abs().mean(dim=1, keepdim=True)
        edge_y = (image[..., :-1, :] - image[..., 1:, :]).abs().mean(dim=1, keepdim=True)
        grad_x = grad_x * torch.exp(-EDGE_FACTOR * edge_x)
        grad_y = grad_y * torch.exp(-EDGE_FACTOR * edge_y)
        return masked_mean(grad_x, mask[..., 1:]) + masked_mean(grad_y, mask[..., 1:, :])

    def forward(self, left: Tensor, right: Tensor, disp_gt: Tensor, sizes: Tensor) -> Tensor:
        *preds, right_disp = self.net(left, right)
        disp_gt = disp_gt.unsqueeze(1)
        valid = (disp_gt > 0) & (disp_gt < MAX_DISPARITY)
        loss = sum(
            weight * F.smooth_l1_loss(pred[valid], disp_gt[valid])
            for weight, pred in zip(STAGE_WEIGHTS, preds, strict=True)
        )
        mask = get_mask(sizes)
        disp = preds[-1]
        photometric = self.compute_photometric(left, right, disp, mask)
        photometric = photometric + self.compute_photometric(
            right.flip(3), left.flip(3), right_disp.flip(3), mask.flip(3)
        )
        smoothness = self.compute_smoothness(disp, left, mask)
        if not self.is_consistency_attached:
            right_disp = right_disp.detach()
        consistency = masked_mean((disp - self.warp(right_disp, disp)).abs(), mask)
        return (
            loss + PHOTOMETRIC * photometric + SMOOTHNESS * smoothness + CONSISTENCY * consistency
        )


class ConvNorm(nn.Module):
    """A convolution, a norm as a function, and relu if it has one."""

    def __init__(
        self,
        model: Model,
        path: str,
        stride: int = 1,
        dilation: int = 1,
        *,
        is_transposed: bool = False,
        is_activated: bool = True,
    ) -> None:
        super().__init__()
        self.conv = (
            load_transposed(model, path)
            if is_transposed
            else load_conv(model, path, stride, dilation)
        )
        self.gamma = nn.Parameter(read(model, f"{path}.norm.weight"))
        self.beta = nn.Parameter(read(model, f"{path}.norm.bias"))
        self.is_activated = is_activated

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.conv(x), None, None, self.gamma, self.beta, training=True, eps=EPS)
        return torch.relu(x) if self.is_activated else x


class Backbone(nn.Module):
    """The encoder, with both kinds of features in one tensor."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvNorm(model, "stem", 2)
        self.down = ConvNorm(model, "blocks.0.shortcut", 2, is_activated=False)
        self.first = nn.ModuleList(
            (ConvNorm(model, "blocks.0.first", 2), ConvNorm(model, "blocks.1.first", 1, 2))
        )
        self.second = nn.ModuleList(
            ConvNorm(model, f"blocks.{n}.second", 1, n + 1, is_activated=False) for n in range(2)
        )
        self.spp = nn.ModuleList(ConvNorm(model, f"branches.{n}") for n in range(len(POOLS)))
        self.fuse = ConvNorm(model, "fusion")
        self.group_head = load_conv(model, "features")
        self.concat_head = load_conv(model, "reduction")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        low = self.down(x) + self.second[0](self.first[0](x))
        high = low + self.second[1](self.first[1](low))
        upsample = nn.Upsample(size=high.shape[2:], mode="bilinear")
        context = [
            upsample(conv(F.adaptive_avg_pool2d(high, (high.shape[2] // n, high.shape[3] // n))))
            for conv, n in zip(self.spp, POOLS, strict=True)
        ]
        fused = self.fuse(torch.cat((low, high, *context), dim=1))
        return self.group_head(fused), self.concat_head(fused)


class CostProcessor(nn.Module):
    """Both costs of a volume."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entry = nn.Sequential(ConvNorm(model, "volume.0"), ConvNorm(model, "volume.1"))
        self.down = ConvNorm(model, "hourglass.down", 2)
        self.mid = ConvNorm(model, "hourglass.middle")
        self.up = ConvNorm(model, "hourglass.up", is_transposed=True, is_activated=False)
        self.heads = nn.ModuleList(ConvNorm(model, f"costs.{n}.0") for n in range(STAGES))
        self.outs = nn.ModuleList(load_conv(model, f"costs.{n}.1") for n in range(STAGES))

    def forward(self, volume: Tensor) -> Tensor:
        x = self.entry(volume)
        y = torch.relu(x + self.up(self.mid(self.down(x))))
        first, more = (
            out(head(z)) for head, out, z in zip(self.heads, self.outs, (x, y), strict=True)
        )
        return torch.cat((first, first + more), dim=1)


def slice_volume(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Return the volume, from slices of right features that are padded with zeros."""
    width = left[0].shape[3]
    shifted = [
        torch.stack(
            [padded[..., LEVELS - 1 - d : LEVELS - 1 - d + width] for d in range(LEVELS)],
            dim=2,
        )
        for padded in (F.pad(x, (LEVELS - 1, 0)) for x in right)
    ]
    products = (left[0].unsqueeze(2) * shifted[0]).unflatten(1, (GROUPS, -1))
    is_inside = torch.arange(width) >= torch.arange(LEVELS)[:, None]
    own = left[1].unsqueeze(2) * is_inside[:, None].float()
    return torch.cat((products.mean(dim=2), own, shifted[1]), dim=1)


def sample_columns(image: Tensor, disp: Tensor, *, are_corners_aligned: bool = True) -> Tensor:
    """Return an image at the places that disparities say, by grid_sample."""
    x = 2 * (torch.arange(WIDTH) - disp.squeeze(1)) / (WIDTH - 1) - 1
    y = torch.linspace(-1, 1, HEIGHT)[:, None].expand_as(x)
    grid = torch.stack((x, y), dim=-1)
    return F.grid_sample(image, grid, padding_mode="border", align_corners=are_corners_aligned)


class OpenStereoLoss(nn.Module):
    """The same losses in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = Backbone(model)
        self.cost_processor = CostProcessor(model)
        self.refine = nn.ModuleList(
            load_conv(model, f"refinement.{n}", 1, dilation) for n, dilation in enumerate(DILATIONS)
        )

    def predict(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
        """Return both disparities, (batch, STAGES, HEIGHT, WIDTH)."""
        costs = self.cost_processor(slice_volume(left, right))
        costs = F.interpolate(costs, size=(MAX_DISPARITY, HEIGHT, WIDTH), mode="trilinear")
        values = torch.arange(MAX_DISPARITY, dtype=torch.float32)
        return torch.einsum("bsdhw,d->bshw", (-costs).softmax(dim=2), values)

    def compute_residual(self, left: Tensor, right: Tensor, disp: Tensor) -> Tensor:
        """Return what refinement adds to a disparity."""
        distance = torch.abs(sample_columns(right, disp) - left)
        x = torch.cat((left, distance, disp / MAX_DISPARITY), dim=1)
        for conv in self.refine[:-1]:
            x = F.leaky_relu(conv(x), SLOPE)
        return self.refine[-1](x)

    def compute_distance(self, image: Tensor, warped: Tensor, mask: Tensor) -> Tensor:
        """Return the photometric distance of two images."""
        stacked = torch.cat((warped, image, warped.square(), image.square(), warped * image), dim=1)
        means = F.avg_pool2d(stacked, 3, stride=1)
        x, y, xx, yy, xy = means.chunk(5, dim=1)
        product, squares = x * y, x.square() + y.square()
        ssim = (2 * product + C1) * (2 * (xy - product) + C2)
        ssim = ssim / ((squares + C1) * (xx + yy - squares + C2))
        structure = (0.5 - 0.5 * ssim).clamp(0, 1).mean(dim=1)
        colors = (image - warped).abs().mean(dim=1)
        inner = mask[:, 0, 1:-1, 1:-1]
        return (
            SSIM_SHARE * (structure * inner).sum() / inner.sum()
            + (1 - SSIM_SHARE) * (colors * mask[:, 0]).sum() / mask.sum()
        )

    def compute_roughness(self, disp: Tensor, image: Tensor, mask: Tensor, dim: int) -> Tensor:
        """Return the mean of the disparity's gradients along an axis, less at edges."""
        weight = torch.exp(image.diff(dim=dim).abs().mean(dim=1, keepdim=True) * -EDGE_FACTOR)
        counted = mask.narrow(dim, 1, mask.shape[dim] - 1)
        return (disp.diff(dim=dim).abs() * weight * counted).sum() / counted.sum()

    def forward(self, left: Tensor, right: Tensor, disp_gt: Tensor, sizes: Tensor) -> Tensor:
        mean, std = (torch.tensor(x).reshape(3, 1, 1) for x in (MEAN, DEVIATION))
        left_features = self.backbone((left - mean) / std)
        right_features = self.backbone((right - mean) / std)
        disps = self.predict(left_features, right_features)
        disp = torch.relu(disps[:, 1:] + self.compute_residual(left, right, disps[:, 1:]))
        mirrored = self.predict(
            tuple(x.flip(3) for x in right_features), tuple(x.flip(3) for x in left_features)
        )[:, 1:]

        labels = disp_gt.unsqueeze(1)
        valid = (labels.gt(0) & labels.lt(MAX_DISPARITY)).float()
        errors = (torch.cat((disps, disp), dim=1) - labels).abs()
        errors = torch.where(errors < 1, 0.5 * errors.square(), errors - 0.5) * valid
        loss = errors.sum(dim=(0, 2, 3)).dot(torch.tensor(STAGE_WEIGHTS)) / valid.sum()

        mask = get_mask(sizes)
        loss = loss + PHOTOMETRIC * self.compute_distance(left, sample_columns(right, disp), mask)
        warped = sample_columns(left.flip(3), mirrored)
        loss = loss + PHOTOMETRIC * self.compute_distance(right.flip(3), warped, mask.flip(3))
        relative = disp / (disp.reshape(BATCH, -1).mean(dim=1).reshape(-1, 1, 1, 1) + 1e-7)
        for dim in (2, 3):
            loss = loss + SMOOTHNESS * self.compute_roughness(relative, left, mask, dim)
        target = sample_columns(mirrored.detach().flip(3), disp)
        return loss + CONSISTENCY * ((disp - target).abs() * mask).sum() / mask.sum()
