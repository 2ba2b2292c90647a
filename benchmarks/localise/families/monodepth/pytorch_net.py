"""Self-supervised depth from video in PyTorch, frame by frame and scale by scale.

Variant 'batched': other names, the encoder as one sequence, both frames and all scales warped in
one batch, rotations from skew-symmetric matrices, pooling by convolutions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.monodepth.architecture import (
    BATCH,
    C1,
    C2,
    COLORS,
    DEPTH_WEIGHT,
    DEVIATION,
    EPS,
    FARTHEST,
    HEIGHT,
    MEAN,
    NEAREST,
    NOISE,
    PIXELS,
    POINTS,
    POSE_SCALE,
    SCALES,
    SMOOTHNESS,
    SOURCES,
    SSIM_SHARE,
    TARGET,
    TINY,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return BatchedLoss(model) if model.variant == "batched" else SelfSupervisedLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name]).clone()


def load(layer: nn.Module, model: Model, path: str) -> nn.Module:
    """Return a layer with the weights of a path."""
    for name, parameter in layer.named_parameters():
        parameter.data.copy_(read(model, f"{path}.{name}"))
    return layer


def load_conv(
    model: Model, path: str, stride: int = 1, padding: int | None = None, mode: str = "zeros"
) -> nn.Conv2d:
    """Return the convolution at a path, which keeps the size if nothing else is said."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    padding = kernel // 2 if padding is None else padding
    has_bias = f"{path}.bias" in model.weights
    layer = nn.Conv2d(n_in, n_out, kernel, stride, padding, bias=has_bias, padding_mode=mode)
    return load(layer, model, path)


def load_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm at a path."""
    return load(nn.BatchNorm2d(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


class BasicBlock(nn.Module):
    """A residual block with stride 2."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = load_conv(model, f"{path}.conv1", 2)
        self.bn1 = load_norm(model, f"{path}.norm1")
        self.relu = nn.ReLU(inplace=False)
        self.conv2 = load_conv(model, f"{path}.conv2")
        self.bn2 = load_norm(model, f"{path}.norm2")
        self.downsample = nn.Sequential(
            load_conv(model, f"{path}.down", 2), load_norm(model, f"{path}.down_norm")
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class ResnetEncoder(nn.Module):
    """Features of a half, a fourth and an eighth of the size."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = load_conv(model, "encoder.stem", 2)
        self.bn1 = load_norm(model, "encoder.stem_norm")
        self.relu = nn.ReLU(inplace=False)
        self.layer1 = BasicBlock(model, "encoder.1")
        self.layer2 = BasicBlock(model, "encoder.2")

    def forward(self, input_image: Tensor) -> list[Tensor]:
        x = (input_image - MEAN) / DEVIATION
        features = [self.relu(self.bn1(self.conv1(x)))]
        features.append(self.layer1(features[-1]))
        features.append(self.layer2(features[-1]))
        return features


class Conv3x3(nn.Module):
    """Padding by reflection, and a convolution."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.conv = load_conv(model, path, padding=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pad(x))


class ConvBlock(nn.Module):
    """A convolution with ELU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv = Conv3x3(model, path)
        self.nonlin = nn.ELU(inplace=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlin(self.conv(x))


class DepthDecoder(nn.Module):
    """Disparities of all scales, the finest one first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        stages = range(SCALES)
        self.upconv0 = nn.ModuleList(ConvBlock(model, f"decoder.{n}.up") for n in stages)
        self.upconv1 = nn.ModuleList(ConvBlock(model, f"decoder.{n}.join") for n in stages)
        self.dispconv = nn.ModuleList(Conv3x3(model, f"decoder.{n}.disparity") for n in stages)
        self.sigmoid = nn.Sigmoid()

    def forward(self, input_features: list[Tensor]) -> list[Tensor]:
        disps = []
        x = input_features[-1]
        for i in range(SCALES - 1, -1, -1):
            x = self.upconv0[i](x)
            x = [F.interpolate(x, scale_factor=2, mode="nearest")]
            if i > 0:
                x.append(input_features[i - 1])
            x = self.upconv1[i](torch.cat(x, 1))
            disps.append(self.sigmoid(self.dispconv[i](x)))
        return disps[::-1]


class PoseCNN(nn.Module):
    """Axis-angle and translation, (batch, 3) each, between two frames."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.convs = nn.ModuleList(load_conv(model, f"pose.{n}", 2) for n in range(3))
        self.squeeze = load_conv(model, "pose.squeeze")
        self.pose_conv = load_conv(model, "pose.out")
        self.relu = nn.ReLU(inplace=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        out = (images - MEAN) / DEVIATION
        for conv in self.convs:
            out = self.relu(conv(out))
        out = self.pose_conv(self.relu(self.squeeze(out)))
        out = POSE_SCALE * out.mean(3).mean(2)
        return out[:, :3], out[:, 3:]


def rot_from_axisangle(vec: Tensor) -> Tensor:
    """Return rotations (batch, 4, 4) by Rodrigues' formula."""
    angle = torch.norm(vec, 2, 1, True)
    axis = vec / (angle + TINY)
    ca, sa = torch.cos(angle)[:, 0], torch.sin(angle)[:, 0]
    c = 1 - ca
    x, y, z = axis.unbind(1)
    xs, ys, zs = x * sa, y * sa, z * sa
    xc, yc, zc = x * c, y * c, z * c
    xyc, yzc, zxc = x * yc, y * zc, z * xc
    rows = [x * xc + ca, xyc - zs, zxc + ys, xyc + zs, y * yc + ca, yzc - xs]
    rows += [zxc - ys, yzc + xs, z * zc + ca]
    return F.pad(torch.stack(rows, 1).view(-1, 3, 3), (0, 1, 0, 1)) + last_corner(vec)


def last_corner(like: Tensor) -> Tensor:
    """Return a matrix (4, 4) with a one in the last row and column."""
    return torch.diag(like.new_tensor([0.0, 0.0, 0.0, 1.0]))


def get_translation_matrix(translation: Tensor) -> Tensor:
    """Return translations (batch, 4, 4)."""
    column = F.pad(translation, (0, 1))[:, :, None]
    return F.pad(column, (3, 0)) + torch.eye(4, device=translation.device)


def transformation_from_parameters(axisangle: Tensor, translation: Tensor, invert: bool) -> Tensor:
    """Return the matrix of a motion, or of the inverse one."""
    rotation = rot_from_axisangle(axisangle)
    if invert:
        return torch.matmul(rotation.transpose(1, 2), get_translation_matrix(-translation))
    return torch.matmul(get_translation_matrix(translation), rotation)


def disp_to_depth(disp: Tensor) -> Tensor:
    """Return depths between the nearest and the farthest one."""
    min_disp, max_disp = 1 / FARTHEST, 1 / NEAREST
    return 1 / (min_disp + (max_disp - min_disp) * disp)


class BackprojectDepth(nn.Module):
    """Points (batch, 4, PIXELS) of depths."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        axes = torch.arange(WIDTH), torch.arange(HEIGHT)
        indexing = "ij" if model.are_pixels_by_columns else "xy"
        x, y = (axis.flatten().float() for axis in torch.meshgrid(*axes, indexing=indexing))
        ones = torch.ones(1, 1, PIXELS)
        pix_coords = torch.stack([x, y], 0).unsqueeze(0)
        self.register_buffer("pix_coords", torch.cat([pix_coords, ones], 1))
        self.register_buffer("ones", ones.repeat(BATCH, 1, 1))

    def forward(self, depth: Tensor, inv_K: Tensor) -> Tensor:
        cam_points = torch.matmul(inv_K[:, :3, :3], self.pix_coords)
        return torch.cat([depth.view(BATCH, 1, -1) * cam_points, self.ones], 1)


class Project3D(nn.Module):
    """Places (batch, HEIGHT, WIDTH, 2), from -1 to 1, of points in a camera."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.tensor([WIDTH - 1.0, HEIGHT - 1.0]))

    def forward(self, points: Tensor, K: Tensor, T: Tensor) -> Tensor:
        P = torch.matmul(K, T)[:, :3, :]
        cam_points = torch.matmul(P, points)
        pix_coords = cam_points[:, :2, :] / (cam_points[:, 2, :].unsqueeze(1) + TINY)
        pix_coords = pix_coords.view(BATCH, 2, HEIGHT, WIDTH).permute(0, 2, 3, 1)
        return (pix_coords / self.size - 0.5) * 2


class SSIM(nn.Module):
    """(1 - SSIM) / 2 of two images."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1)
        self.refl = nn.ReflectionPad2d(1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.refl(x), self.refl(y)
        mu_x, mu_y = self.pool(x), self.pool(y)
        sigma_x = self.pool(x**2) - mu_x**2
        sigma_y = self.pool(y**2) - mu_y**2
        sigma_xy = self.pool(x * y) - mu_x * mu_y
        SSIM_n = (2 * mu_x * mu_y + C1) * (2 * sigma_xy + C2)
        SSIM_d = (mu_x**2 + mu_y**2 + C1) * (sigma_x + sigma_y + C2)
        return torch.clamp((1 - SSIM_n / SSIM_d) / 2, 0, 1)


def get_smooth_loss(disp: Tensor, img: Tensor) -> Tensor:
    """Return the smoothness of disparities, less where colors change."""
    grad_disp_x = torch.abs(disp[:, :, :, :-1] - disp[:, :, :, 1:])
    grad_disp_y = torch.abs(disp[:, :, :-1, :] - disp[:, :, 1:, :])
    grad_img_x = torch.mean(torch.abs(img[:, :, :, :-1] - img[:, :, :, 1:]), 1, keepdim=True)
    grad_img_y = torch.mean(torch.abs(img[:, :, :-1, :] - img[:, :, 1:, :]), 1, keepdim=True)
    grad_disp_x = grad_disp_x * torch.exp(-grad_img_x)
    grad_disp_y = grad_disp_y * torch.exp(-grad_img_y)
    return grad_disp_x.mean() + grad_disp_y.mean()


class SparseDepthLoss(nn.Module):
    """Distance of logarithms of depths at some pixels, with the scale aligned."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_ratio_detached = model.is_ratio_detached

    def forward(self, depth: Tensor, pixels: Tensor, depth_gt: Tensor, counts: Tensor) -> Tensor:
        valid = (torch.arange(POINTS, device=counts.device) < counts[:, None]).float()
        depth_pred = depth.flatten(1).gather(1, pixels)
        total = (depth_pred * valid).sum(1, keepdim=True)
        ratio = (depth_gt * valid).sum(1, keepdim=True) / total
        if self.is_ratio_detached:
            ratio = ratio.detach()
        error = torch.log(depth_gt.clamp(min=TINY)) - torch.log(depth_pred * ratio)
        return (error.abs() * valid).sum() / valid.sum()


class SelfSupervisedLoss(nn.Module):
    """Photometric error, smoothness and sparse depths."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = ResnetEncoder(model)
        self.depth = DepthDecoder(model)
        self.pose = PoseCNN(model)
        self.backproject_depth = BackprojectDepth(model)
        self.project_3d = Project3D()
        self.ssim = SSIM()
        self.sparse_loss = SparseDepthLoss(model)
        self.are_corners_aligned = model.are_corners_aligned
        self.is_inverse_detached = model.is_inverse_detached
        self.is_smoothness_divided = model.is_smoothness_divided

    def predict_poses(self, color_aug: Tensor) -> list[Tensor]:
        """Return the matrix from the target to each of the other frames."""
        matrices = []
        for f_i in SOURCES:
            first, second = sorted((f_i, TARGET))
            pair = torch.cat([color_aug[:, first], color_aug[:, second]], 1)
            T = transformation_from_parameters(*self.pose(pair), invert=f_i < TARGET)
            if f_i < TARGET and self.is_inverse_detached:
                T = T.detach()
            matrices.append(T)
        return matrices

    def compute_reprojection_loss(self, pred: Tensor, target: Tensor) -> Tensor:
        """Return errors (batch, 1, HEIGHT, WIDTH)."""
        l1_loss = torch.abs(target - pred).mean(1, True)
        ssim_loss = self.ssim(pred, target).mean(1, True)
        return SSIM_SHARE * ssim_loss + (1 - SSIM_SHARE) * l1_loss

    def forward(
        self,
        color: Tensor,
        color_aug: Tensor,
        K: Tensor,
        inv_K: Tensor,
        mask: Tensor,
        noise: Tensor,
        pixels: Tensor,
        depth_gt: Tensor,
        counts: Tensor,
    ) -> Tensor:
        disps = self.depth(self.encoder(color_aug[:, TARGET]))
        poses = self.predict_poses(color_aug)
        target = color[:, TARGET]
        identity_losses = [self.compute_reprojection_loss(color[:, f_i], target) for f_i in SOURCES]
        identity_loss = torch.cat(identity_losses, 1) + noise * NOISE

        depths, losses = [], []
        for scale, disp in enumerate(disps):
            full_disp = F.interpolate(disp, [HEIGHT, WIDTH], mode="bilinear", align_corners=False)
            depths.append(disp_to_depth(full_disp))
            cam_points = self.backproject_depth(depths[-1], inv_K)
            reprojection_losses = []
            for f_i, T in zip(SOURCES, poses, strict=True):
                grid = self.project_3d(cam_points, K, T)
                pred = F.grid_sample(
                    color[:, f_i],
                    grid,
                    padding_mode="border",
                    align_corners=self.are_corners_aligned,
                )
                reprojection_losses.append(self.compute_reprojection_loss(pred, target))
            combined = torch.cat([identity_loss, *reprojection_losses], 1)
            to_optimise, _ = torch.min(combined, dim=1, keepdim=True)
            loss = (to_optimise * mask).sum() / mask.sum()

            mean_disp = disp.mean(2, True).mean(3, True)
            img = F.avg_pool2d(target, 2**scale)
            smooth_loss = get_smooth_loss(disp / (mean_disp + TINY), img)
            divisor = 2**scale if self.is_smoothness_divided else 1
            losses.append(loss + SMOOTHNESS * smooth_loss / divisor)
        sparse_loss = self.sparse_loss(depths[0], pixels, depth_gt, counts)
        return sum(losses) / SCALES + DEPTH_WEIGHT * sparse_loss


class ReflectedStage(nn.Module):
    """A stage of the decoder; its convolutions pad."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.reduce = load_conv(model, f"{path}.up", mode="reflect")
        self.fuse = load_conv(model, f"{path}.join", mode="reflect")
        self.head = load_conv(model, f"{path}.disparity", mode="reflect")

    def forward(self, x: Tensor, skips: list[Tensor]) -> tuple[Tensor, Tensor]:
        x = F.elu(self.reduce(x)).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        x = F.elu(self.fuse(torch.cat([x, *skips], dim=1)))
        return x, self.head(x).sigmoid()


class Ego(nn.Module):
    """Rotations (2 * batch, 3, 3) and translations (2 * batch, 3, 1) to frames behind and before.

    Both pairs are one batch, and the inverse is written down.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = [load_conv(model, f"pose.{n}", 2) for n in range(3)]
        layers.append(load_conv(model, "pose.squeeze"))
        self.trunk = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
        self.motion = load_conv(model, "pose.out")
        generators = torch.zeros(3, 3, 3)
        for n in range(3):
            generators[n, (n + 2) % 3, (n + 1) % 3] = 1
            generators[n, (n + 1) % 3, (n + 2) % 3] = -1
        self.register_buffer("generators", generators)

    def forward(self, video: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.cat([video[:, :2].flatten(1, 2), video[:, 1:].flatten(1, 2)])
        motion = self.motion(self.trunk((pairs - MEAN).div(DEVIATION))).flatten(2).mean(dim=-1)
        vector, shift = (motion * POSE_SCALE).split(3, dim=1)
        angle = vector.square().sum(dim=1).sqrt()[:, None, None]
        skew = torch.einsum("bn,nij->bij", vector, self.generators) / (angle + TINY)
        rotation = torch.eye(3) + angle.sin() * skew + (1 - angle.cos()) * (skew @ skew)
        before, behind = rotation.chunk(2)
        shift_before, shift_behind = shift[:, :, None].chunk(2)
        inverse = before.mT
        return torch.cat([inverse, behind]), torch.cat([-(inverse @ shift_before), shift_behind])


class BatchedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            load_conv(model, "encoder.stem", 2), load_norm(model, "encoder.stem_norm"), nn.ReLU()
        )
        self.blocks = nn.ModuleList(BasicBlock(model, f"encoder.{n}") for n in (1, 2))
        self.stages = nn.ModuleList(
            ReflectedStage(model, f"decoder.{n}") for n in reversed(range(SCALES))
        )
        self.ego = Ego(model)
        y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
        rays = torch.stack([x, y, torch.ones_like(x)]).float().flatten(1)
        self.register_buffer("rays", rays)
        self.register_buffer("box", torch.full((COLORS, 1, 3, 3), 1 / 9))

    def average(self, x: Tensor) -> Tensor:
        """Return means of 3 x 3 pixels."""
        x = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.conv2d(x, self.box, groups=COLORS)

    def compare(self, warped: Tensor, target: Tensor) -> Tensor:
        """Return errors (images, HEIGHT, WIDTH)."""
        mean_a, mean_b = self.average(warped), self.average(target)
        variances = self.average(warped.square() + target.square())
        variances = variances - mean_a.square() - mean_b.square()
        covariance = self.average(warped * target) - mean_a * mean_b
        luminance = torch.addcmul(mean_a.square() + C1, mean_b, mean_b).reciprocal()
        luminance = luminance * (2 * mean_a * mean_b + C1)
        similarity = luminance * (2 * covariance + C2) / (variances + C2)
        dissimilarity = (0.5 - 0.5 * similarity).clamp(0, 1)
        return torch.lerp((warped - target).abs(), dissimilarity, SSIM_SHARE).mean(dim=1)

    def predict(self, image: Tensor) -> list[Tensor]:
        """Return disparities, the finest ones first."""
        features = [self.stem((image - MEAN).div(DEVIATION))]
        for block in self.blocks:
            features.append(block(features[-1]))
        x = features.pop()
        disparities = []
        for stage in self.stages:
            x, disparity = stage(x, [features.pop()] if features else [])
            disparities.insert(0, disparity)
        return disparities

    def find_places(
        self, depths: Tensor, video: Tensor, intrinsics: Tensor, inverse: Tensor
    ) -> Tensor:
        """Return places (SCALES, 2 * BATCH, HEIGHT, WIDTH, 2), from -1 to 1."""
        rotation, shift = self.ego(video)
        camera = intrinsics[:, :3, :3].repeat(2, 1, 1)
        inverse = inverse[:, :3, :3].repeat(2, 1, 1)
        homography = camera @ rotation @ inverse @ self.rays
        points = homography * depths.flatten(2).repeat(1, 2, 1)[:, :, None] + camera @ shift
        places = points[:, :, :2] / (points[:, :, 2:] + TINY)
        size = places.new_tensor([[WIDTH - 1], [HEIGHT - 1]])
        return (2 * places / size - 1).mT.unflatten(2, (HEIGHT, WIDTH))

    def forward(
        self,
        video: Tensor,
        jittered: Tensor,
        intrinsics: Tensor,
        inverse: Tensor,
        shown: Tensor,
        noise: Tensor,
        pixels: Tensor,
        sparse: Tensor,
        counts: Tensor,
    ) -> Tensor:
        disparities = self.predict(jittered[:, TARGET])
        smoothness = 0.0
        for n, disparity in enumerate(disparities):
            image = video[:, TARGET].unflatten(2, (-1, 2**n)).unflatten(4, (-1, 2**n)).mean((3, 5))
            smooth = disparity / (disparity.mean(dim=(2, 3), keepdim=True) + TINY)
            for dim in (2, 3):
                edges = image.diff(dim=dim).abs().mean(dim=1, keepdim=True)
                changes = smooth.diff(dim=dim).abs() * (-edges).exp()
                smoothness = smoothness + changes.mean() * 0.5**n

        full = [
            F.interpolate(disparity, (HEIGHT, WIDTH), mode="bilinear") for disparity in disparities
        ]
        slope = 1 / NEAREST - 1 / FARTHEST
        depths = torch.stack(full).squeeze(2).mul(slope).add(1 / FARTHEST).reciprocal()
        grid = self.find_places(depths, jittered, intrinsics, inverse)
        sources = torch.cat([video[:, f] for f in SOURCES])
        targets = video[:, TARGET].repeat(2, 1, 1, 1)
        many = sources.repeat(SCALES, 1, 1, 1)
        warped = F.grid_sample(many, grid.flatten(0, 1), padding_mode="border", align_corners=True)
        errors = self.compare(warped, targets.repeat(SCALES, 1, 1, 1))
        least = errors.view(SCALES, 2, BATCH, HEIGHT, WIDTH).amin(dim=1)
        unmoved = self.compare(sources, targets).view(2, BATCH, HEIGHT, WIDTH)
        unmoved = torch.add(unmoved, noise.transpose(0, 1), alpha=NOISE).amin(dim=0)
        photometric = torch.minimum(least, unmoved)[:, shown[:, 0] > 0].mean()

        sample, point = (torch.arange(POINTS) < counts[:, None]).nonzero(as_tuple=True)
        own = depths[0].flatten(1)[sample, pixels[sample, point]]
        known = sparse[sample, point]
        with torch.no_grad():
            totals = torch.zeros(2, BATCH).index_add(1, sample, torch.stack([known, own]))
            shift = (totals[0] / totals[1]).log()[sample]
        sparse_error = (own.log() + shift - known.log()).abs().mean()
        return photometric + SMOOTHNESS * smoothness / SCALES + DEPTH_WEIGHT * sparse_error
