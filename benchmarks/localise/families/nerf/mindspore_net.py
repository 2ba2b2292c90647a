"""The radiance field in MindSpore, with cells for the encoding, the network and the rendering.

Variant 'split': joined inputs are not joined, each part has a product of its own; weights are the
differences of transmittances, which come from optical depths.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.nerf.architecture import (
    DEPTH_WEIGHT,
    DISTORTION_WEIGHT,
    FAR,
    LAYERS,
    NEAR,
    OPACITY_WEIGHT,
    POINT_FREQUENCIES,
    POINT_SIZE,
    SKIP,
    TINY,
    VIEW_FREQUENCIES,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return RenderLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


class SplitDense(nn.Cell):
    """A linear layer of two inputs, the weight's columns divided between them."""

    def __init__(self, model: Model, path: str, n_first: int) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"]
        n_out, n_in = weight.shape
        bias = Tensor(model.weights[f"{path}.bias"])
        first, second = (
            Tensor(np.ascontiguousarray(part)) for part in np.split(weight, [n_first], axis=1)
        )
        self.first = nn.Dense(n_first, n_out, weight_init=first, has_bias=False)
        self.second = nn.Dense(n_in - n_first, n_out, weight_init=second, bias_init=bias)

    def construct(self, x, y):
        return self.first(x) + self.second(y)


class PositionalEncoding(nn.Cell):
    """A vector, and sines and cosines of its multiples."""

    def __init__(self, model: Model, n_frequencies: int) -> None:
        super().__init__()
        bands = model.frequency_factor * 2.0 ** np.arange(n_frequencies)
        self.freq_bands = Tensor(bands.reshape(-1, 1), ms.float32)
        self.are_sines_grouped = model.are_sines_grouped

    def construct(self, x):
        angles = x.expand_dims(-2) * self.freq_bands
        if self.are_sines_grouped:
            periodic = ops.concat((ops.sin(angles), ops.cos(angles)), -2)
        else:
            periodic = ops.concat((ops.sin(angles), ops.cos(angles)), -1)
        return ops.concat((x, ops.flatten(periodic, start_dim=-2)), -1)


class ListedEncoding(nn.Cell):
    """The same, with each angle twice the one before."""

    def __init__(self, n_frequencies: int) -> None:
        super().__init__()
        self.n_frequencies = n_frequencies

    def construct(self, x):
        parts = (x,)
        angle = x
        for _ in range(self.n_frequencies):
            parts += (ops.sin(angle), ops.cos(angle))
            angle = angle + angle
        return ops.concat(parts, -1)


def build_encoding(model: Model, n_frequencies: int) -> nn.Cell:
    """Return the encoding of vectors."""
    if model.variant == "split":
        return ListedEncoding(n_frequencies)
    return PositionalEncoding(model, n_frequencies)


class RadianceNet(nn.Cell):
    """Colors before the sigmoid, (rays, samples, 3), and densities before the softplus."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layers = nn.CellList([build_dense(model, f"{path}.points.{n}") for n in range(LAYERS)])
        self.sigma = build_dense(model, f"{path}.density")
        self.bottleneck = build_dense(model, f"{path}.feature")
        self.dir_layer = build_dense(model, f"{path}.view")
        self.rgb = build_dense(model, f"{path}.color")
        self.relu = nn.ReLU()
        self.is_skip_last = model.is_skip_last

    def construct(self, x, view):
        out = x
        for i, layer in enumerate(self.layers):
            if i == SKIP:
                out = ops.concat((out, x) if self.is_skip_last else (x, out), -1)
            out = self.relu(layer(out))
        sigma = self.sigma(out).squeeze(-1)
        out = ops.concat((self.bottleneck(out), view), -1)
        return self.rgb(self.relu(self.dir_layer(out))), sigma


class SplitRadianceNet(nn.Cell):
    """The same without joined inputs: a direction is multiplied once for all samples of a ray."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        layers = (build_dense(model, f"{path}.points.{n}") for n in range(SKIP))
        self.stem = nn.SequentialCell([part for layer in layers for part in (layer, nn.ReLU())])
        self.join = SplitDense(model, f"{path}.points.{SKIP}", POINT_SIZE)
        layers = (build_dense(model, f"{path}.points.{n}") for n in range(SKIP + 1, LAYERS))
        self.body = nn.SequentialCell([part for layer in layers for part in (layer, nn.ReLU())])
        self.density_weight = Parameter(Tensor(model.weights[f"{path}.density.weight"][0]))
        self.density_bias = Parameter(Tensor(model.weights[f"{path}.density.bias"]))
        self.feature = build_dense(model, f"{path}.feature")
        self.view_join = SplitDense(model, f"{path}.view", WIDTH)
        self.color = build_dense(model, f"{path}.color")

    def construct(self, x, view):
        hidden = self.body(ops.relu(self.join(x, self.stem(x))))
        sigma = (hidden * self.density_weight).sum(-1) + self.density_bias
        return self.color(ops.relu(self.view_join(self.feature(hidden), view))), sigma


class DistanceGradient(nn.Cell):
    """What comes in goes out; gradients are multiplied by squared distances, that of FAR is 1."""

    def construct(self, x, z_vals):
        return ops.identity(x)

    def bprop(self, x, z_vals, out, gradient):
        return gradient * z_vals * z_vals / FAR**2, ops.zeros_like(z_vals)


class VolumeRender(nn.Cell):
    """Colors, depths and opacities of rays, and weights of samples."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cumprod = ops.CumProd(exclusive=not model.is_product_inclusive)
        self.is_last_endless = model.is_last_endless
        self.density_shift = model.density_shift
        self.is_density_relu = model.density_activation == "relu"
        self.distance_gradient = DistanceGradient() if model.is_gradient_by_distance else None
        self.has_background = model.has_background
        self.is_depth_expected = model.is_depth_expected

    def construct(self, rgb, sigma, z_vals, dir_norm, noise):
        if self.distance_gradient is not None:
            rgb = self.distance_gradient(rgb, z_vals.expand_dims(-1))
            sigma = self.distance_gradient(sigma, z_vals)
        last = FAR - z_vals[:, -1:]
        if self.is_last_endless:
            last = ops.full_like(last, 1e10)
        dists = ops.concat((z_vals[:, 1:] - z_vals[:, :-1], last), 1) * dir_norm
        sigma = sigma + noise + self.density_shift
        sigma = ops.relu(sigma) if self.is_density_relu else ops.softplus(sigma)
        alpha = 1 - ops.exp(-sigma * dists)
        weights = alpha * self.cumprod(1 - alpha + TINY, 1)
        color = (weights.expand_dims(-1) * ops.sigmoid(rgb)).sum(1)
        depth = (weights * z_vals).sum(1)
        opacity = weights.sum(1)
        if self.is_depth_expected:
            depth = depth / (opacity + TINY)
        if self.has_background:
            color = color + (1 - opacity.expand_dims(-1))
        return color, depth, opacity, weights


class OpticalRender(nn.Cell):
    """The same from the transmittances at both ends of each interval."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.density_shift = model.density_shift

    def construct(self, rgb, sigma, z_vals, dir_norm, noise):
        ends = ops.concat((z_vals[:, 1:], ops.full_like(z_vals[:, :1], FAR)), 1)
        raw = sigma + noise + self.density_shift
        thickness = ops.log1p(ops.exp(raw)) * (ends - z_vals) * dir_norm
        left = ops.exp(-ops.cumsum(thickness, 1))
        entered = ops.concat((ops.ones_like(left[:, :1]), left[:, :-1]), 1)
        weights = entered - left
        color = ops.bmm(weights.expand_dims(1), ops.sigmoid(rgb)).squeeze(1) + left[:, -1:]
        depth = (weights * z_vals).sum(1)
        return color, depth, 1 - left[:, -1], weights


class NeRF(nn.Cell):
    """Coarse and fine colors, and depths, opacities and weights of the fine samples."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_split = model.variant == "split"
        net_class = SplitRadianceNet if self.is_split else RadianceNet
        self.pos_encoder = build_encoding(model, POINT_FREQUENCIES)
        self.dir_encoder = build_encoding(model, VIEW_FREQUENCIES)
        self.coarse_net = net_class(model, "coarse")
        self.fine_net = net_class(model, "fine")
        self.render = OpticalRender(model) if self.is_split else VolumeRender(model)
        self.are_views_normalized = model.are_views_normalized

    def encode_points(self, rays_o, rays_d, z_vals):
        """Return (rays, samples, POINT_SIZE)."""
        points = rays_o.expand_dims(1) + rays_d.expand_dims(1) * z_vals.expand_dims(2)
        return self.pos_encoder(points)

    def encode_views(self, view, n_samples):
        """Return (rays, samples, VIEW_SIZE), or (rays, 1, VIEW_SIZE)."""
        encoded = self.dir_encoder(view).expand_dims(1)
        if self.is_split:
            return encoded
        return ops.broadcast_to(encoded, (-1, n_samples, -1))

    def construct(self, rays_o, rays_d, coarse_z, fine_z, coarse_noise, fine_noise):
        dir_norm = ops.sqrt(ops.square(rays_d).sum(-1, keepdims=True))
        view = rays_d / dir_norm if self.are_views_normalized else rays_d
        encoded = self.encode_points(rays_o, rays_d, coarse_z)
        rgb, sigma = self.coarse_net(encoded, self.encode_views(view, coarse_z.shape[1]))
        coarse_color, _, _, _ = self.render(rgb, sigma, coarse_z, dir_norm, coarse_noise)
        encoded = self.encode_points(rays_o, rays_d, fine_z)
        rgb, sigma = self.fine_net(encoded, self.encode_views(view, fine_z.shape[1]))
        color, depth, opacity, weights = self.render(rgb, sigma, fine_z, dir_norm, fine_noise)
        return coarse_color, color, depth, opacity, weights


class RenderLoss(nn.Cell):
    """The loss of a batch of rays."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = NeRF(model)
        self.mse = nn.MSELoss()
        self.coarse_weight = model.coarse_weight
        self.is_distortion_stopped = model.is_distortion_stopped

    def compute_distortion(self, weights, z_vals):
        if self.is_distortion_stopped:
            weights = ops.stop_gradient(weights)
        start = (z_vals - NEAR) / (FAR - NEAR)
        end = ops.concat((start[:, 1:], ops.ones_like(start[:, :1])), 1)
        middle = (start + end) / 2
        gaps = ops.abs(middle.expand_dims(2) - middle.expand_dims(1))
        between = (weights.expand_dims(2) * weights.expand_dims(1) * gaps).sum((1, 2))
        within = (ops.square(weights) * (end - start)).sum(1) / 3
        return (between + within).mean()

    def construct(self, rays_o, rays_d, coarse_z, fine_z, coarse_noise, fine_noise, colors, depths):
        coarse_color, color, depth, opacity, weights = self.network(
            rays_o, rays_d, coarse_z, fine_z, coarse_noise, fine_noise
        )
        loss = self.coarse_weight * self.mse(coarse_color, colors) + self.mse(color, colors)
        loss = loss + DEPTH_WEIGHT * self.mse(depth, depths)
        loss = loss + DISTORTION_WEIGHT * self.compute_distortion(weights, fine_z)
        entropy = -opacity * ops.log(opacity + TINY)
        return loss + OPACITY_WEIGHT * entropy.mean()
