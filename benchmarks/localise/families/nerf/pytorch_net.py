"""The radiance field in PyTorch, with the modules and functions of the usual port of NeRF.

Variant 'fields': the parts as a library of radiance fields has them: broadcast encodings, a trunk
with a list of skips, heads, and renderers; weights come from optical depths.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.nerf.architecture import (
    DEPTH_WEIGHT,
    DISTORTION_WEIGHT,
    FAR,
    LAYERS,
    NEAR,
    OPACITY_WEIGHT,
    POINT_FREQUENCIES,
    SKIP,
    TINY,
    VIEW_FREQUENCIES,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FieldLoss(model) if model.variant == "fields" else NeRFLoss(model)


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    weight, bias = (
        torch.from_numpy(np.array(model.weights[f"{path}.{name}"])) for name in ("weight", "bias")
    )
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight.data.copy_(weight)
    linear.bias.data.copy_(bias)
    return linear


class Embedder(nn.Module):
    """A vector, and sines and cosines of its multiples."""

    def __init__(self, model: Model, multires: int) -> None:
        super().__init__()
        self.freq_bands = [model.frequency_factor * 2.0**n for n in range(multires)]
        self.are_sines_grouped = model.are_sines_grouped

    def forward(self, inputs: Tensor) -> Tensor:
        sines, cosines = [], []
        for freq in self.freq_bands:
            sines.append(torch.sin(inputs * freq))
            cosines.append(torch.cos(inputs * freq))
        if self.are_sines_grouped:
            return torch.cat([inputs, *sines, *cosines], -1)
        outputs = [inputs]
        for pair in zip(sines, cosines, strict=True):
            outputs.extend(pair)
        return torch.cat(outputs, -1)


class NeRF(nn.Module):
    """Raw colors and densities (points, 4) of encoded points and directions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_skip_last = model.is_skip_last
        self.pts_linears = nn.ModuleList(
            load_linear(model, f"{path}.points.{n}") for n in range(LAYERS)
        )
        self.views_linears = nn.ModuleList([load_linear(model, f"{path}.view")])
        self.feature_linear = load_linear(model, f"{path}.feature")
        self.alpha_linear = load_linear(model, f"{path}.density")
        self.rgb_linear = load_linear(model, f"{path}.color")

    def forward(self, input_pts: Tensor, input_views: Tensor) -> Tensor:
        h = input_pts
        for i, linear in enumerate(self.pts_linears):
            if i == SKIP:
                parts = [h, input_pts] if self.is_skip_last else [input_pts, h]
                h = torch.cat(parts, -1)
            h = F.relu(linear(h))
        alpha = self.alpha_linear(h)
        h = torch.cat([self.feature_linear(h), input_views], -1)
        for linear in self.views_linears:
            h = F.relu(linear(h))
        return torch.cat([self.rgb_linear(h), alpha], -1)


class GradientScaler(torch.autograd.Function):
    """Multiplies the gradients of samples by their squared distances, that of FAR is 1."""

    @staticmethod
    def forward(context, raw: Tensor, z_vals: Tensor) -> Tensor:
        context.save_for_backward(z_vals)
        return raw.view_as(raw)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        (z_vals,) = context.saved_tensors
        distances = z_vals[..., None]
        return gradient * distances * distances / FAR**2, None


class NeRFLoss(nn.Module):
    """The loss of a batch of rays."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.embed_fn = Embedder(model, POINT_FREQUENCIES)
        self.embeddirs_fn = Embedder(model, VIEW_FREQUENCIES)
        self.network_fn = NeRF(model, "coarse")
        self.network_fine = NeRF(model, "fine")

    def run_network(self, pts: Tensor, viewdirs: Tensor, network: nn.Module) -> Tensor:
        """Return raw outputs (rays, samples, 4)."""
        embedded = self.embed_fn(pts.reshape(-1, 3))
        if self.model.are_views_tiled:
            dirs = viewdirs.repeat(pts.shape[1], 1)
        else:
            dirs = viewdirs[:, None].expand(pts.shape).reshape(-1, 3)
        raw = network(embedded, self.embeddirs_fn(dirs))
        return raw.reshape(*pts.shape[:-1], 4)

    def raw2outputs(
        self, raw: Tensor, z_vals: Tensor, rays_d: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return colors, depths and opacities of rays, and weights of samples."""
        if self.model.is_gradient_by_distance:
            raw = GradientScaler.apply(raw, z_vals)
        dists = z_vals[..., 1:] - z_vals[..., :-1]
        if self.model.is_last_endless:
            last = torch.tensor([1e10]).expand(dists[..., :1].shape)
        else:
            last = FAR - z_vals[..., -1:]
        dists = torch.cat([dists, last], -1)
        dists = dists * torch.norm(rays_d[..., None, :], dim=-1)

        rgb = torch.sigmoid(raw[..., :3])
        activate = F.relu if self.model.density_activation == "relu" else F.softplus
        density = activate(raw[..., 3] + noise + self.model.density_shift)
        alpha = 1.0 - torch.exp(-density * dists)
        ones = torch.ones((alpha.shape[0], 1))
        clear = 1.0 - alpha + TINY
        if self.model.is_product_inclusive:
            transmittance = torch.cumprod(clear, -1)
        else:
            transmittance = torch.cumprod(torch.cat([ones, clear], -1), -1)[:, :-1]
        weights = alpha * transmittance
        rgb_map = torch.sum(weights[..., None] * rgb, -2)
        depth_map = torch.sum(weights * z_vals, -1)
        acc_map = torch.sum(weights, -1)
        if self.model.has_background:
            rgb_map = rgb_map + (1.0 - acc_map[..., None])
        return rgb_map, depth_map, acc_map, weights

    def compute_distortion(self, weights: Tensor, z_vals: Tensor) -> Tensor:
        if self.model.is_distortion_stopped:
            weights = weights.detach()
        edges = (F.pad(z_vals, (0, 1), value=FAR) - NEAR) / (FAR - NEAR)
        mid = 0.5 * (edges[:, 1:] + edges[:, :-1])
        gaps = torch.abs(mid[:, :, None] - mid[:, None, :])
        loss_inter = torch.sum(weights * torch.sum(weights[:, None, :] * gaps, -1), -1)
        loss_intra = torch.sum(weights**2 * (edges[:, 1:] - edges[:, :-1]), -1) / 3
        return torch.mean(loss_inter + loss_intra)

    def forward(
        self,
        rays_o: Tensor,
        rays_d: Tensor,
        z_vals: Tensor,
        z_fine: Tensor,
        noise: Tensor,
        noise_fine: Tensor,
        target: Tensor,
        target_depth: Tensor,
    ) -> Tensor:
        viewdirs = rays_d
        if self.model.are_views_normalized:
            viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
        pts = rays_o[:, None, :] + rays_d[:, None, :] * z_vals[:, :, None]
        raw = self.run_network(pts, viewdirs, self.network_fn)
        rgb0, _, _, _ = self.raw2outputs(raw, z_vals, rays_d, noise)
        pts = rays_o[:, None, :] + rays_d[:, None, :] * z_fine[:, :, None]
        raw = self.run_network(pts, viewdirs, self.network_fine)
        rgb, depth, acc, weights = self.raw2outputs(raw, z_fine, rays_d, noise_fine)

        loss = F.mse_loss(rgb, target) + self.model.coarse_weight * F.mse_loss(rgb0, target)
        loss = loss + DEPTH_WEIGHT * F.mse_loss(depth, target_depth)
        loss = loss + DISTORTION_WEIGHT * self.compute_distortion(weights, z_fine)
        opacity = acc + TINY
        return loss + OPACITY_WEIGHT * torch.mean(-opacity * torch.log(opacity))


class HarmonicEncoding(nn.Module):
    """The same encoding from one product with all frequencies."""

    def __init__(self, n_frequencies: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(n_frequencies))

    def forward(self, in_tensor: Tensor) -> Tensor:
        scaled = in_tensor[..., None, :] * self.frequencies[:, None]
        periodic = torch.stack((scaled.sin(), scaled.cos()), dim=-2)
        return torch.cat((in_tensor, periodic.flatten(-3)), dim=-1)


class MLP(nn.Module):
    """Linear layers with relu, the input joined again before one of them."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(load_linear(model, f"{path}.{n}") for n in range(LAYERS))
        self.activation = nn.ReLU()
        self.skip_connections = {SKIP}

    def forward(self, in_tensor: Tensor) -> Tensor:
        x = in_tensor
        for i, layer in enumerate(self.layers):
            if i in self.skip_connections:
                x = torch.cat((in_tensor, x), dim=-1)
            x = self.activation(layer(x))
        return x


class NeRFField(nn.Module):
    """Densities (rays, samples, 1) and colors (rays, samples, 3)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.position_encoding = HarmonicEncoding(POINT_FREQUENCIES)
        self.direction_encoding = HarmonicEncoding(VIEW_FREQUENCIES)
        self.mlp_base = MLP(model, f"{path}.points")
        self.field_output_density = load_linear(model, f"{path}.density")
        self.bottleneck = load_linear(model, f"{path}.feature")
        self.mlp_head = nn.Sequential(load_linear(model, f"{path}.view"), nn.ReLU())
        self.field_output_rgb = nn.Sequential(load_linear(model, f"{path}.color"), nn.Sigmoid())
        self.density_activation = nn.Softplus()
        self.density_shift = model.density_shift

    def forward(self, positions: Tensor, directions: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        base = self.mlp_base(self.position_encoding(positions))
        raw = self.field_output_density(base) + noise.unsqueeze(-1)
        density = self.density_activation(raw + self.density_shift)
        encoded = self.direction_encoding(directions).unsqueeze(1)
        encoded = encoded.expand(-1, positions.shape[1], -1)
        hidden = self.mlp_head(torch.cat((self.bottleneck(base), encoded), dim=-1))
        return density, self.field_output_rgb(hidden)


class VolumeRenderer(nn.Module):
    """Composites samples by their optical depths."""

    def get_weights(self, densities: Tensor, deltas: Tensor) -> Tensor:
        delta_density = deltas * densities
        alphas = 1 - torch.exp(-delta_density)
        optical_depth = torch.cumsum(delta_density[:, :-1], dim=1)
        zeros = torch.zeros_like(delta_density[:, :1])
        return alphas * torch.exp(-torch.cat((zeros, optical_depth), dim=1))

    def forward(
        self, densities: Tensor, rgb: Tensor, starts: Tensor, ends: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weights = self.get_weights(densities, (ends - starts) * lengths.unsqueeze(1))
        accumulation = weights.sum(dim=1)
        background = torch.ones_like(rgb[:, 0])
        comp_rgb = torch.einsum("rsi,rsc->rc", weights, rgb) + background * (1 - accumulation)
        depth = torch.sum(weights * starts, dim=1)
        return comp_rgb, depth, accumulation, weights


class FieldLoss(nn.Module):
    """The loss from fields and a renderer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.field_coarse = NeRFField(model, "coarse")
        self.field_fine = NeRFField(model, "fine")
        self.renderer = VolumeRenderer()
        self.rgb_loss = nn.MSELoss()
        self.coarse_weight = model.coarse_weight

    def render(
        self, field: nn.Module, origins: Tensor, directions: Tensor, starts: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lengths = torch.linalg.vector_norm(directions, dim=-1, keepdim=True)
        starts = starts.unsqueeze(-1)
        ends = torch.cat((starts[:, 1:], torch.full_like(starts[:, :1], FAR)), dim=1)
        positions = torch.addcmul(origins.unsqueeze(1), directions.unsqueeze(1), starts)
        densities, rgb = field(positions, directions / lengths, noise)
        return self.renderer(densities, rgb, starts, ends, lengths)

    def compute_distortion(self, weights: Tensor, starts: Tensor) -> Tensor:
        """Return the mean distortion, from sums over the samples before each one."""
        starts = (starts - NEAR) / (FAR - NEAR)
        ends = torch.cat((starts[:, 1:], torch.ones_like(starts[:, :1])), dim=1)
        mids = (starts + ends) / 2
        moments = weights * mids
        before = weights.cumsum(dim=1) - weights
        moments_before = moments.cumsum(dim=1) - moments
        bilateral = 2 * (moments * before - weights * moments_before).sum(dim=1)
        unilateral = (weights.square() * (ends - starts)).sum(dim=1) / 3
        return (bilateral + unilateral).mean()

    def forward(
        self,
        origins: Tensor,
        directions: Tensor,
        coarse_starts: Tensor,
        fine_starts: Tensor,
        coarse_noise: Tensor,
        fine_noise: Tensor,
        image: Tensor,
        termination: Tensor,
    ) -> Tensor:
        rgb_coarse, _, _, _ = self.render(
            self.field_coarse, origins, directions, coarse_starts, coarse_noise
        )
        rgb_fine, depth, accumulation, weights = self.render(
            self.field_fine, origins, directions, fine_starts, fine_noise
        )
        losses = [
            self.coarse_weight * self.rgb_loss(rgb_coarse, image),
            self.rgb_loss(rgb_fine, image),
            DEPTH_WEIGHT * (depth.squeeze(-1) - termination).square().mean(),
            DISTORTION_WEIGHT * self.compute_distortion(weights.squeeze(-1), fine_starts),
            OPACITY_WEIGHT * torch.special.entr(accumulation).mean(),
        ]
        return torch.stack(losses).sum()
