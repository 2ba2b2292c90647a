"""Gaussian splatting in PyTorch, with functions named as gsplat's and parameters as splatfacto's.

Variant 'inria': names of the first published code, covariances from their square roots in images,
harmonics term by term, points sorted by advanced indices, transmittances from sums of logarithms,
windows of SSIM in two passes, entropies by a loss function.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.splat.architecture import (
    BLUR,
    C0,
    C1,
    C2,
    DEPTH,
    EMBEDDING,
    ENTROPY,
    FRUSTUM,
    HEIGHT,
    IMAGES,
    LAYERS,
    MAX_ALPHA,
    MAX_RATIO,
    MIN_ALPHA,
    NEAR,
    PIXELS,
    RATIO,
    SIZE,
    SSIM_C1,
    SSIM_C2,
    SSIM_SHARE,
    WIDTH,
    WINDOW,
    Model,
    make_window,
)

FAR_AWAY = 1e10


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return InriaLoss(model) if model.variant == "inria" else SplatLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


def load_linear(model: Model, n: int) -> nn.Linear:
    """Return a layer of the mlp."""
    return load(nn.Linear(LAYERS[n], LAYERS[n + 1]), model, f"mlp.{n}")


def quat_scale_to_covar(quats: Tensor, scales: Tensor) -> Tensor:
    """Return covariances, (points, 3, 3)."""
    w, x, y, z = F.normalize(quats, dim=-1).unbind(-1)
    rotmats = torch.stack(
        [
            1 - 2 * (y**2 + z**2),
            2 * (x * y - w * z),
            2 * (x * z + w * y),
            2 * (x * y + w * z),
            1 - 2 * (x**2 + z**2),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x**2 + y**2),
        ],
        dim=-1,
    ).view(-1, 3, 3)
    m = rotmats * scales[..., None, :]
    return torch.bmm(m, m.transpose(-1, -2))


def world_to_cam(means: Tensor, covars: Tensor, viewmats: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions (views, points, 3) and covariances as cameras have them."""
    rot, trans = viewmats[:, :3, :3], viewmats[:, :3, 3]
    means_c = torch.einsum("cij,nj->cni", rot, means) + trans[:, None]
    covars_c = torch.einsum("cij,njk,clk->cnil", rot, covars, rot)
    return means_c, covars_c


def persp_proj(
    xy: Tensor, tz: Tensor, covars_c: Tensor, intrinsics: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means (views, points, 2) and covariances (views, points, 2, 2) in images."""
    tx, ty = xy.unbind(-1)
    fx, fy, cx, cy = intrinsics[:, None].unbind(-1)
    height, width = sizes[:, None].unbind(-1)
    lim_x, lim_y = FRUSTUM * 0.5 * width / fx, FRUSTUM * 0.5 * height / fy
    clamped_x = tz * torch.clamp(tx / tz, min=-lim_x, max=lim_x)
    clamped_y = tz * torch.clamp(ty / tz, min=-lim_y, max=lim_y)
    zeros = torch.zeros_like(tz)
    jac = torch.stack(
        [fx / tz, zeros, -fx * clamped_x / tz**2, zeros, fy / tz, -fy * clamped_y / tz**2], dim=-1
    ).view(*tz.shape, 2, 3)
    cov2d = jac @ covars_c @ jac.transpose(-1, -2)
    means2d = torch.stack([fx * tx / tz + cx, fy * ty / tz + cy], dim=-1)
    return means2d, cov2d


def compute_det(covars2d: Tensor) -> Tensor:
    """Return determinants of symmetric matrices."""
    return covars2d[..., 0, 0] * covars2d[..., 1, 1] - covars2d[..., 0, 1] ** 2


def invert(covars2d: Tensor) -> Tensor:
    """Return the upper triangles of the inverses, (views, points, 3)."""
    a, b, c = covars2d[..., 0, 0], covars2d[..., 0, 1], covars2d[..., 1, 1]
    return torch.stack([c, -b, a], dim=-1) / (a * c - b**2)[..., None]


class InverseFunction(Function):
    """The same with its own backward pass: G = -V dV V, of which the upper triangle is taken."""

    @staticmethod
    def forward(context, covars2d: Tensor) -> Tensor:
        conics = invert(covars2d)
        context.save_for_backward(conics)
        return conics

    @staticmethod
    def backward(context, v_conics: Tensor) -> Tensor:
        (conics,) = context.saved_tensors
        inverse = conics[..., [0, 1, 1, 2]].unflatten(-1, (2, 2))
        v_a, v_b, v_c = v_conics.unbind(-1)
        v_inverse = torch.stack([v_a, v_b / 2, v_b / 2, v_c], dim=-1).unflatten(-1, (2, 2))
        return torch.triu(-inverse @ v_inverse @ inverse)


class Projection(nn.Module):
    """Points in images: means, conics, compensations of opacities, depths, and what is seen."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.invert = InverseFunction.apply if model.is_covariance_gradient_halved else invert

    def forward(
        self, means: Tensor, covars: Tensor, viewmats: Tensor, intrinsics: Tensor, sizes: Tensor
    ) -> tuple[Tensor, ...]:
        means_c, covars_c = world_to_cam(means, covars, viewmats)
        depths = means_c[..., 2]
        valid = depths > NEAR
        depths = torch.where(valid, depths, torch.ones_like(depths))
        means2d, covars2d = persp_proj(means_c[..., :2], depths, covars_c, intrinsics, sizes)
        det_orig = compute_det(covars2d)
        covars2d = covars2d + torch.eye(2) * BLUR
        compensations = torch.sqrt(torch.clamp(det_orig / compute_det(covars2d), min=0.0))
        return means2d, self.invert(covars2d), compensations, depths, valid


class SphericalHarmonics(nn.Module):
    """Colors of points as cameras see them, (views, points, 3)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_reversed = model.are_views_reversed
        self.are_detached = model.are_views_detached

    def forward(self, means: Tensor, coeffs: Tensor, viewmats: Tensor) -> Tensor:
        if self.are_detached:
            means = means.detach()
        camtoworlds = torch.inverse(viewmats)
        dirs = means[None] - camtoworlds[:, None, :3, 3]
        if self.are_reversed:
            dirs = camtoworlds[:, None, :3, 3] - means[None]
        x, y, z = F.normalize(dirs, dim=-1).unbind(-1)
        bases = torch.stack(
            [
                torch.full_like(x, C0),
                -C1 * y,
                C1 * z,
                -C1 * x,
                C2[0] * x * y,
                C2[1] * y * z,
                C2[2] * (2 * z * z - x * x - y * y),
                C2[3] * x * z,
                C2[4] * (x * x - y * y),
            ],
            dim=-1,
        )
        colors = torch.einsum("cnk,nkd->cnd", bases, coeffs)
        return torch.clamp(colors + 0.5, min=0.0)


class AppearanceModule(nn.Module):
    """Colors of points as they are in an image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeds = load(nn.Embedding(IMAGES, EMBEDDING), model, "images")
        self.color_head = nn.Sequential(
            load_linear(model, 0),
            nn.ReLU(),
            load_linear(model, 1),
            nn.ReLU(),
            load_linear(model, 2),
        )

    def forward(self, features: Tensor, embed_ids: Tensor, colors: Tensor) -> Tensor:
        n_views, n_points, _ = colors.shape
        embeds = self.embeds(embed_ids)[:, None].expand(-1, n_points, -1)
        features = features[None].expand(n_views, -1, -1)
        out = self.color_head(torch.cat([embeds, features, colors], dim=-1))
        gain, shift = out.chunk(2, dim=-1)
        return F.relu(colors * (1 + gain) + shift)


class Rasterizer(nn.Module):
    """Images (views, HEIGHT, WIDTH, 3) and depths (views, PIXELS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        ys, xs = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
        pixels = torch.stack([xs, ys], dim=-1).view(-1, 2) + model.pixel_center
        self.register_buffer("pixels", pixels, persistent=False)

    def forward(
        self,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        depths: Tensor,
        valid: Tensor,
        background: Tensor,
    ) -> tuple[Tensor, Tensor]:
        order = torch.argsort(depths.masked_fill(~valid, FAR_AWAY), dim=1)
        means2d = means2d.gather(1, order[..., None].expand_as(means2d))
        conics = conics.gather(1, order[..., None].expand_as(conics))
        colors = colors.gather(1, order[..., None].expand_as(colors))
        opacities, depths, valid = (x.gather(1, order) for x in (opacities, depths, valid))

        dx, dy = (self.pixels - means2d[:, :, None]).unbind(-1)
        a, b, c = conics[:, :, None].unbind(-1)
        sigmas = 0.5 * (a * dx**2 + c * dy**2) + b * dx * dy
        alphas = torch.clamp_max(opacities[..., None] * torch.exp(-sigmas), MAX_ALPHA)
        is_kept = (alphas >= MIN_ALPHA) & valid[..., None]
        alphas = torch.where(is_kept, alphas, torch.zeros_like(alphas))
        trans = torch.cumprod(1 - alphas, dim=1)
        weights = alphas * torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], dim=1)
        renders = torch.einsum("cnp,cnd->cpd", weights, colors)
        renders = renders + trans[:, -1, :, None] * background
        accumulated = weights.sum(dim=1)
        expected = torch.einsum("cnp,cn->cp", weights, depths) / accumulated.clamp(min=1e-10)
        return renders.unflatten(1, (HEIGHT, WIDTH)), expected


class SSIM(nn.Module):
    """The similarity of windows, (views, 3, HEIGHT, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        window = torch.from_numpy(make_window())
        window = torch.outer(window, window).expand(3, 1, -1, -1).contiguous()
        self.register_buffer("window", window, persistent=False)

    def filter(self, x: Tensor) -> Tensor:
        """Return the mean of windows."""
        return F.conv2d(x, self.window, padding=WINDOW // 2, groups=3)

    def forward(self, img1: Tensor, img2: Tensor) -> Tensor:
        mu1, mu2 = self.filter(img1), self.filter(img2)
        sigma1_sq = self.filter(img1 * img1) - mu1.pow(2)
        sigma2_sq = self.filter(img2 * img2) - mu2.pow(2)
        sigma12 = self.filter(img1 * img2) - mu1 * mu2
        return ((2 * mu1 * mu2 + SSIM_C1) * (2 * sigma12 + SSIM_C2)) / (
            (mu1.pow(2) + mu2.pow(2) + SSIM_C1) * (sigma1_sq + sigma2_sq + SSIM_C2)
        )


class SplatLoss(nn.Module):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        names = {
            "means": "positions",
            "scales": "log_scales",
            "quats": "quaternions",
            "opacities": "opacities",
            "features_dc": "harmonics.dc",
            "features_rest": "harmonics.rest",
            "appearance": "features",
        }
        self.gauss_params = nn.ParameterDict(
            {key: copy_parameter(model.weights[name]) for key, name in names.items()}
        )
        self.projection = Projection(model)
        self.sh = SphericalHarmonics(model)
        self.appearance = AppearanceModule(model)
        self.background = copy_parameter(model.weights["background"])
        self.rasterizer = Rasterizer(model)
        self.ssim = SSIM()

    def forward(
        self,
        viewmats: Tensor,
        intrinsics: Tensor,
        sizes: Tensor,
        embed_ids: Tensor,
        images: Tensor,
        masks: Tensor,
        pixel_ids: Tensor,
        depths: Tensor,
        confidences: Tensor,
    ) -> Tensor:
        means, scales = self.gauss_params["means"], torch.exp(self.gauss_params["scales"])
        opacities = torch.sigmoid(self.gauss_params["opacities"])
        covars = quat_scale_to_covar(self.gauss_params["quats"], scales)
        means2d, conics, compensations, means_z, valid = self.projection(
            means, covars, viewmats, intrinsics, sizes
        )
        coeffs = torch.cat(
            [self.gauss_params["features_dc"], self.gauss_params["features_rest"]], dim=1
        )
        colors = self.sh(means, coeffs, viewmats)
        colors = self.appearance(self.gauss_params["appearance"], embed_ids, colors)
        renders, expected = self.rasterizer(
            means2d,
            conics,
            opacities * compensations,
            colors,
            means_z,
            valid,
            torch.sigmoid(self.background),
        )

        pred, target = renders * masks[..., None], images * masks[..., None]
        count = 3 * masks.sum()
        l1 = (pred - target).abs().sum() / count
        ssim = self.ssim(pred.permute(0, 3, 1, 2), target.permute(0, 3, 1, 2))
        simloss = 1 - (ssim * masks[:, None]).sum() / count
        depth_errors = F.smooth_l1_loss(expected.gather(1, pixel_ids), depths, reduction="none")
        depth_errors = depth_errors * confidences
        depth_loss = (depth_errors.sum(dim=1) / confidences.sum(dim=1)).mean()
        entropy = -opacities * torch.log(opacities) - (1 - opacities) * torch.log(1 - opacities)
        ratio = scales.amax(dim=-1) / scales.amin(dim=-1)
        scale_reg = torch.clamp(ratio, min=MAX_RATIO) - MAX_RATIO
        loss = (1 - SSIM_SHARE) * l1 + SSIM_SHARE * simloss + DEPTH * depth_loss
        return loss + ENTROPY * entropy.mean() + SIZE * scales.mean() + RATIO * scale_reg.mean()


def build_scaling_rotation(scaling: Tensor, rotation: Tensor) -> Tensor:
    """Return rotations times sizes, (points, 3, 3)."""
    r, x, y, z = (rotation / rotation.norm(dim=1, keepdim=True)).T
    rows = (
        torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - r * z), 2 * (x * z + r * y)), dim=1),
        torch.stack((2 * (x * y + r * z), 1 - 2 * (x * x + z * z), 2 * (y * z - r * x)), dim=1),
        torch.stack((2 * (x * z - r * y), 2 * (y * z + r * x), 1 - 2 * (x * x + y * y)), dim=1),
    )
    return torch.stack(rows, dim=1) @ torch.diag_embed(scaling)


def eval_sh(sh: Tensor, dirs: Tensor) -> Tensor:
    """Return the colors of harmonics (points, 3, HARMONICS) in directions, without 0.5."""
    x, y, z = dirs.split(1, dim=-1)
    xx, yy, zz = x * x, y * y, z * z
    result = C0 * sh[..., 0]
    result = result - C1 * y * sh[..., 1] + C1 * z * sh[..., 2] - C1 * x * sh[..., 3]
    result = result + C2[0] * (x * y) * sh[..., 4] + C2[1] * (y * z) * sh[..., 5]
    result = result + C2[2] * (2.0 * zz - xx - yy) * sh[..., 6]
    return result + C2[3] * (x * z) * sh[..., 7] + C2[4] * (xx - yy) * sh[..., 8]


class InriaModel(nn.Module):
    """The points and the mlp of their colors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._xyz = copy_parameter(model.weights["positions"])
        self._scaling = copy_parameter(model.weights["log_scales"])
        self._rotation = copy_parameter(model.weights["quaternions"])
        self._opacity = copy_parameter(model.weights["opacities"][:, None])
        self._features_dc = copy_parameter(model.weights["harmonics.dc"])
        self._features_rest = copy_parameter(model.weights["harmonics.rest"])
        self._embeddings = copy_parameter(model.weights["features"])
        self.appearance_embeddings = copy_parameter(model.weights["images.weight"])
        self.appearance_mlp = nn.ModuleList(load_linear(model, n) for n in range(len(LAYERS) - 1))

    def get_colors(self, offsets: Tensor, image_ids: Tensor) -> Tensor:
        """Return colors of all points in each image, (views, points, 3)."""
        shs = torch.cat((self._features_dc, self._features_rest), dim=1).transpose(1, 2)
        dirs = offsets / offsets.norm(dim=-1, keepdim=True)
        colors = torch.clamp_min(eval_sh(shs, dirs) + 0.5, 0.0)
        shape = (*colors.shape[:2], -1)
        x = torch.cat(
            (
                self.appearance_embeddings[image_ids].unsqueeze(1).expand(shape),
                self._embeddings.expand(shape),
                colors,
            ),
            dim=-1,
        )
        for layer in self.appearance_mlp[:-1]:
            x = torch.relu(layer(x))
        mul, offset = self.appearance_mlp[-1](x).split(3, dim=-1)
        return torch.relu(torch.addcmul(colors + offset, colors, mul))


def render(
    model: InriaModel,
    viewmatrices: Tensor,
    intrinsics: Tensor,
    sizes: Tensor,
    colors: Tensor,
    bg_color: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return images (views, 3, PIXELS) and depths (views, PIXELS)."""
    rotation, translation = viewmatrices[:, None, :3, :3], viewmatrices[:, None, :3, 3]
    t = (rotation @ model._xyz.unsqueeze(-1)).squeeze(-1) + translation
    in_frustum = t[..., 2] > NEAR
    depth = torch.where(in_frustum, t[..., 2], 1.0).unsqueeze(-1)
    focal, center = intrinsics.unsqueeze(1).chunk(2, dim=-1)
    slopes = t[..., :2] / depth
    points_image = torch.addcmul(center, focal, slopes)
    limits = FRUSTUM * sizes.flip(1).unsqueeze(1) / (2 * focal)
    clamped = torch.maximum(torch.minimum(slopes, limits), -limits)
    jacobian = torch.cat(
        (torch.diag_embed(focal / depth), -(focal * clamped / depth)[..., None]), -1
    )
    square_roots = build_scaling_rotation(torch.exp(model._scaling), model._rotation)
    square_roots = (jacobian @ rotation) @ square_roots
    cov = torch.einsum("vnik,vnjk->vnij", square_roots, square_roots)
    xx, xy, yy = cov[..., 0, 0], cov[..., 0, 1], cov[..., 1, 1]
    det = (xx + BLUR) * (yy + BLUR) - xy * xy
    coef = torch.sqrt((xx * yy - xy * xy) / det)
    opacity = torch.sigmoid(model._opacity).T * coef

    views = torch.arange(len(t)).unsqueeze(1)
    indices = torch.sort(torch.where(in_frustum, depth.squeeze(-1), FAR_AWAY), dim=1)[1]
    points_image, opacity, colors, depth, in_frustum, xx, xy, yy, det = (
        values[views, indices]
        for values in (points_image, opacity, colors, depth, in_frustum, xx, xy, yy, det)
    )
    ids = torch.arange(PIXELS)
    pixels = torch.stack((ids % WIDTH + 0.5, ids // WIDTH + 0.5), dim=1)
    d_x, d_y = (points_image.unsqueeze(2) - pixels).unbind(dim=-1)
    power = (yy + BLUR).unsqueeze(2) * d_x * d_x - 2 * xy.unsqueeze(2) * d_x * d_y
    power = -0.5 * (power + (xx + BLUR).unsqueeze(2) * d_y * d_y) / det.unsqueeze(2)
    alpha = torch.minimum(opacity.unsqueeze(2) * torch.exp(power), torch.tensor(MAX_ALPHA))
    alpha = alpha * (in_frustum.unsqueeze(2) & (alpha >= MIN_ALPHA))
    log_t = torch.log1p(-alpha)
    weights = alpha * torch.exp(log_t.cumsum(dim=1) - log_t)
    image = colors.transpose(1, 2) @ weights
    image = image + torch.exp(log_t.sum(dim=1, keepdim=True)) * bg_color.unsqueeze(1)
    return image, (depth * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1e-10)


def compute_ssim(img1: Tensor, img2: Tensor) -> Tensor:
    """Return the similarity of windows, (views, 3, HEIGHT, WIDTH)."""
    stacked = torch.cat((img1, img2, img1 * img1, img2 * img2, img1 * img2), dim=1)
    gauss = torch.from_numpy(make_window())
    stacked = stacked.reshape(-1, 1, HEIGHT, WIDTH)
    stacked = F.conv2d(stacked, gauss.view(1, 1, -1, 1), padding=(WINDOW // 2, 0))
    stacked = F.conv2d(stacked, gauss.view(1, 1, 1, -1), padding=(0, WINDOW // 2))
    mu1, mu2, sq1, sq2, cross = stacked.view(-1, 5, 3, HEIGHT, WIDTH).unbind(dim=1)
    mu1_mu2 = mu1 * mu2
    mu_sq = mu1 * mu1 + mu2 * mu2
    contrast = (2 * (cross - mu1_mu2) + SSIM_C2) / (sq1 + sq2 - mu_sq + SSIM_C2)
    return contrast * (2 * mu1_mu2 + SSIM_C1) / (mu_sq + SSIM_C1)


class InriaLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gaussians = InriaModel(model)
        self.bg = copy_parameter(model.weights["background"])

    def forward(
        self,
        viewmatrices: Tensor,
        intrinsics: Tensor,
        sizes: Tensor,
        image_ids: Tensor,
        gt_images: Tensor,
        masks: Tensor,
        pixel_ids: Tensor,
        gt_depths: Tensor,
        confidences: Tensor,
    ) -> Tensor:
        rotation, translation = viewmatrices[:, :3, :3], viewmatrices[:, :3, 3:]
        camera_centers = -(rotation.transpose(1, 2) @ translation).transpose(1, 2)
        colors = self.gaussians.get_colors(self.gaussians._xyz - camera_centers, image_ids)
        image, depth = render(
            self.gaussians, viewmatrices, intrinsics, sizes, colors, torch.sigmoid(self.bg)
        )

        image = image.view(-1, 3, HEIGHT, WIDTH)
        gt_image = gt_images.permute(0, 3, 1, 2)
        mask = masks.unsqueeze(1).expand_as(image)
        is_counted = mask > 0
        l1 = F.l1_loss(image[is_counted], gt_image[is_counted])
        ssim_value = compute_ssim(image * mask, gt_image * mask)[is_counted].mean()
        loss = torch.lerp(l1, 1.0 - ssim_value, SSIM_SHARE)

        errors = (depth.gather(1, pixel_ids) - gt_depths).abs()
        errors = torch.where(errors < 1, 0.5 * errors * errors, errors - 0.5)
        shares = confidences / confidences.sum(dim=1, keepdim=True)
        loss = loss + DEPTH * torch.einsum("vk,vk->v", errors, shares).mean()
        logits = self.gaussians._opacity
        entropy = F.binary_cross_entropy_with_logits(logits, torch.sigmoid(logits))
        log_scales = self.gaussians._scaling
        ratio = torch.exp(log_scales.max(dim=1)[0] - log_scales.min(dim=1)[0])
        loss = loss + ENTROPY * entropy + RATIO * F.relu(ratio - MAX_RATIO).mean()
        return loss + SIZE * torch.exp(log_scales).mean()
