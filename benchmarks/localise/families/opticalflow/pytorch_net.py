"""Optical flow in PyTorch, with the modules of RAFT's repository.

Variant 'written': other names, norms in plain arithmetic, each image encoded by itself, correlation
by einsum, pyramid by means of blocks, lookup of whole pixels by indexing, both gates in one
convolution, neighbours by slices of the padded flow.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.opticalflow.architecture import (
    CONTEXT,
    EPS,
    FACTOR,
    FEATURES,
    GAMMA,
    HIDDEN,
    ITERATIONS,
    LEVELS,
    MASK_SCALE,
    MAX_FLOW,
    NEIGHBOURS,
    RADIUS,
    WINDOW,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FlowTrainer(model) if model.variant == "written" else SequenceLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the size, up to its stride."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    conv = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=has_bias)
    conv.weight.data.copy_(weight)
    if has_bias:
        conv.bias.data.copy_(read(model, f"{path}.bias"))
    return conv


def load_norm(model: Model, path: str, width: int) -> nn.Module:
    """Return a batch norm, or an instance norm if there are no weights."""
    if f"{path}.weight" not in model.weights:
        return nn.InstanceNorm2d(width, eps=EPS)
    norm = nn.BatchNorm2d(width, eps=EPS)
    norm.weight.data.copy_(read(model, f"{path}.weight"))
    norm.bias.data.copy_(read(model, f"{path}.bias"))
    return norm


class ResidualBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        self.conv1 = load_conv(model, f"{path}.conv1", stride)
        self.conv2 = load_conv(model, f"{path}.conv2")
        planes = self.conv1.out_channels
        self.norm1 = load_norm(model, f"{path}.norm1", planes)
        self.norm2 = load_norm(model, f"{path}.norm2", planes)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride > 1:
            norm = load_norm(model, f"{path}.skip_norm", planes)
            self.downsample = nn.Sequential(load_conv(model, f"{path}.skip", stride), norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(x + y)


class BasicEncoder(nn.Module):
    """Features of images, a quarter of their height and width."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = load_conv(model, f"{path}.stem", 2)
        self.norm1 = load_norm(model, f"{path}.stem_norm", self.conv1.out_channels)
        self.relu1 = nn.ReLU()
        self.layer1 = ResidualBlock(model, f"{path}.blocks.0", 1)
        self.layer2 = ResidualBlock(model, f"{path}.blocks.1", 2)
        self.conv2 = load_conv(model, f"{path}.out")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.norm1(self.conv1(x)))
        return self.conv2(self.layer2(self.layer1(x)))


def coords_grid(batch: int, height: int, width: int) -> Tensor:
    """Return (x, y) of all pixels: (batch, 2, height, width)."""
    coords = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    coords = torch.stack(coords[::-1], dim=0).float()
    return coords[None].repeat(batch, 1, 1, 1)


def bilinear_sampler(img: Tensor, coords: Tensor, *, align_corners: bool) -> Tensor:
    """Return images at coordinates in pixels."""
    height, width = img.shape[-2:]
    xgrid, ygrid = coords.split([1, 1], dim=-1)
    xgrid = 2 * xgrid / (width - 1) - 1
    ygrid = 2 * ygrid / (height - 1) - 1
    return F.grid_sample(img, torch.cat([xgrid, ygrid], dim=-1), align_corners=align_corners)


class CorrBlock:
    """The pyramid of the correlations of all pairs of pixels."""

    def __init__(
        self, fmap1: Tensor, fmap2: Tensor, gradient: float, *, align_corners: bool
    ) -> None:
        batch, dim, height, width = fmap1.shape
        fmap1, fmap2 = fmap1.view(batch, dim, -1), fmap2.view(batch, dim, -1)
        corr = torch.matmul(fmap1.transpose(1, 2), fmap2) / dim**0.5
        corr = corr.reshape(batch * height * width, 1, height, width)
        self.gradient, self.corr_pyramid = gradient, [corr]
        self.align_corners = align_corners
        for _ in range(LEVELS - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.corr_pyramid.append(corr)

    def __call__(self, coords: Tensor) -> Tensor:
        """Return a window of each level around the coordinates, as channels."""
        coords = coords.permute(0, 2, 3, 1)
        batch, height, width, _ = coords.shape
        d = torch.linspace(-RADIUS, RADIUS, WINDOW)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1)
        out_pyramid = []
        for level, corr in enumerate(self.corr_pyramid):
            centroid = coords.reshape(-1, 1, 1, 2) / 2**level
            sampled = bilinear_sampler(corr, centroid + delta, align_corners=self.align_corners)
            out_pyramid.append(sampled.view(batch, height, width, -1))
        out = torch.cat(out_pyramid, dim=-1).permute(0, 3, 1, 2).contiguous()
        return out if self.gradient == 1 else scaled_gradient(out, self.gradient)


class MotionEncoder(nn.Module):
    """Motion features of correlations and flow."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.convc1 = load_conv(model, "motion.correlation")
        self.convf1 = load_conv(model, "motion.flow")
        self.conv = load_conv(model, "motion.join")

    def forward(self, flow: Tensor, corr: Tensor) -> Tensor:
        cor, flo = F.relu(self.convc1(corr)), F.relu(self.convf1(flow))
        out = F.relu(self.conv(torch.cat([cor, flo], dim=1)))
        return torch.cat([out, flow], dim=1)


class ConvGRU(nn.Module):
    """A gated recurrent cell of convolutions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.convz, self.convr, self.convq = (load_conv(model, f"gru.{gate}") for gate in "zrq")

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        hx = torch.cat([h, x], dim=1)
        z = torch.sigmoid(self.convz(hx))
        r = torch.sigmoid(self.convr(hx))
        q = torch.tanh(self.convq(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class FlowHead(nn.Module):
    """The change of the coordinates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1, self.conv2 = load_conv(model, "flow.0"), load_conv(model, "flow.1")
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.relu(self.conv1(x)))


class UpdateBlock(nn.Module):
    """The next hidden state, and what it makes: a mask and a change of the coordinates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.gru = MotionEncoder(model), ConvGRU(model)
        self.flow_head = FlowHead(model)
        self.mask = nn.Sequential(load_conv(model, "mask.0"), nn.ReLU(), load_conv(model, "mask.1"))

    def forward(
        self, net: Tensor, inp: Tensor, corr: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        motion_features = self.encoder(flow, corr)
        net = self.gru(net, torch.cat([inp, motion_features], dim=1))
        return net, MASK_SCALE * self.mask(net), self.flow_head(net)


def upsample_flow(flow: Tensor, mask: Tensor, factor: float) -> Tensor:
    """Return flow of all pixels, convex combinations of nine neighbours."""
    batch, _, height, width = flow.shape
    mask = mask.view(batch, 1, NEIGHBOURS, FACTOR, FACTOR, height, width)
    mask = torch.softmax(mask, dim=2)
    if factor != 1:
        flow = factor * flow
    up_flow = F.unfold(flow, [3, 3], padding=1)
    up_flow = up_flow.view(batch, 2, NEIGHBOURS, 1, 1, height, width)
    up_flow = torch.sum(mask * up_flow, dim=2).permute(0, 1, 4, 2, 5, 3)
    return up_flow.reshape(batch, 2, FACTOR * height, FACTOR * width)


class RAFT(nn.Module):
    """Flow after each iteration."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fnet, self.cnet = BasicEncoder(model, "features"), BasicEncoder(model, "context")
        self.update_block = UpdateBlock(model)
        self.flow_factor, self.coords_offset = model.flow_factor, model.coords_offset
        self.is_context_second = model.is_context_second
        self.are_coords_attached = model.are_coords_attached
        self.correlation_gradient = model.correlation_gradient
        self.align_corners = model.are_corners_aligned

    def initialize_flow(self, img: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coordinates of the coarse pixels, twice: flow is their difference."""
        batch, _, height, width = img.shape
        coords = coords_grid(batch, height // FACTOR, width // FACTOR)
        if self.coords_offset:
            coords = coords + self.coords_offset
        return coords, coords.clone()

    def forward(self, image1: Tensor, image2: Tensor) -> list[Tensor]:
        image1 = 2 * (image1 / 255.0) - 1.0
        image2 = 2 * (image2 / 255.0) - 1.0
        fmap1, fmap2 = torch.chunk(self.fnet(torch.cat([image1, image2], dim=0)), 2, dim=0)
        corr_fn = CorrBlock(
            fmap1, fmap2, self.correlation_gradient, align_corners=self.align_corners
        )
        cnet = self.cnet(image2 if self.is_context_second else image1)
        net, inp = torch.split(cnet, [HIDDEN, CONTEXT], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        coords0, coords1 = self.initialize_flow(image1)
        flow_predictions = []
        for _ in range(ITERATIONS):
            if not self.are_coords_attached:
                coords1 = coords1.detach()
            corr = corr_fn(coords1)
            net, up_mask, delta_flow = self.update_block(net, inp, corr, coords1 - coords0)
            coords1 = coords1 + delta_flow
            flow_predictions.append(upsample_flow(coords1 - coords0, up_mask, self.flow_factor))
        return flow_predictions


class SequenceLoss(nn.Module):
    """The weighted L1 distances of all iterations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.raft = RAFT(model)
        self.is_gamma_reversed = model.is_gamma_reversed

    def forward(self, image1: Tensor, image2: Tensor, flow_gt: Tensor, valid: Tensor) -> Tensor:
        flow_preds = self.raft(image1, image2)
        mag = torch.sum(flow_gt**2, dim=1).sqrt()
        valid = (valid >= 0.5) & (mag < MAX_FLOW)
        flow_loss = 0.0
        for i, flow_pred in enumerate(flow_preds):
            i_weight = GAMMA ** (i if self.is_gamma_reversed else len(flow_preds) - i - 1)
            i_loss = (flow_pred - flow_gt).abs()
            flow_loss = flow_loss + i_weight * (valid[:, None] * i_loss).mean()
        return flow_loss


class PlainConv(nn.Module):
    """A convolution of some kernels joined, and its norm from mean and variance if it has one."""

    def __init__(
        self, model: Model, *paths: str, stride: int = 1, norm: str = "", axes: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.cat([read(model, f"{path}.weight") for path in paths]))
        self.offset = self.gain = self.shift = None
        if f"{paths[0]}.bias" in model.weights:
            self.offset = nn.Parameter(torch.cat([read(model, f"{path}.bias") for path in paths]))
        if f"{norm}.weight" in model.weights:
            self.gain = nn.Parameter(read(model, f"{norm}.weight").view(1, -1, 1, 1))
            self.shift = nn.Parameter(read(model, f"{norm}.bias").view(1, -1, 1, 1))
        self.stride, self.axes = stride, axes

    def forward(self, x: Tensor) -> Tensor:
        padding = self.kernel.shape[-1] // 2
        x = F.conv2d(x, self.kernel, self.offset, self.stride, padding)
        if self.axes:
            x = x - x.mean(self.axes, keepdim=True)
            x = x * torch.rsqrt(x.square().mean(self.axes, keepdim=True) + EPS)
        return x if self.gain is None else x * self.gain + self.shift


class Stage(nn.Module):
    """A residual block."""

    def __init__(self, model: Model, path: str, stride: int, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.second = (
            PlainConv(model, f"{path}.conv{n}", stride=s, norm=f"{path}.norm{n}", axes=axes)
            for n, s in ((1, stride), (2, 1))
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = PlainConv(
                model, f"{path}.skip", stride=stride, norm=f"{path}.skip_norm", axes=axes
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + F.relu(self.second(F.relu(self.first(x)))))


def build_encoder(model: Model, path: str, axes: tuple[int, ...]) -> nn.Sequential:
    """Return an encoder whose norms reduce some axes."""
    return nn.Sequential(
        PlainConv(model, f"{path}.stem", stride=2, norm=f"{path}.stem_norm", axes=axes),
        nn.ReLU(),
        Stage(model, f"{path}.blocks.0", 1, axes),
        Stage(model, f"{path}.blocks.1", 2, axes),
        PlainConv(model, f"{path}.out"),
    )


def build_pyramid(first: Tensor, second: Tensor) -> list[Tensor]:
    """Return correlations, (batch, height, width, rows, columns) each."""
    maps = [torch.einsum("bcij,bckl->bijkl", first, second) * FEATURES**-0.5]
    for _ in range(LEVELS - 1):
        rows, columns = (size // 2 for size in maps[-1].shape[-2:])
        even = maps[-1][..., : 2 * rows, : 2 * columns]
        maps.append(even.unflatten(-1, (columns, 2)).unflatten(-3, (rows, 2)).mean((-1, -3)))
    return maps


def look_up(level: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the window around (x, y) of each pixel, (batch, height, width, WINDOW^2).

    Whole pixels of a window that is one larger are read, zeros outside, then interpolated.
    """
    rows, columns = level.shape[-2:]
    steps = torch.arange(-RADIUS, RADIUS + 2)
    left, top = x.floor(), y.floor()
    i, j = ((low.long()[..., None] + steps) for low in (top, left))
    is_inside = ((i >= 0) & (i < rows))[..., None, :] & ((j >= 0) & (j < columns))[..., None]
    index = i.clamp(0, rows - 1)[..., None, :] * columns + j.clamp(0, columns - 1)[..., None]
    values = level.flatten(3).gather(3, index.flatten(3)).view_as(index)
    values = torch.where(is_inside, values, 0.0)
    values = torch.lerp(values[..., :-1, :], values[..., 1:, :], (x - left)[..., None, None])
    values = torch.lerp(values[..., :-1], values[..., 1:], (y - top)[..., None, None])
    return values.flatten(3)


class RecurrentCell(nn.Module):
    """Motion features and the gated cell."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.of_correlation = PlainConv(model, "motion.correlation")
        self.of_flow = PlainConv(model, "motion.flow")
        self.joint = PlainConv(model, "motion.join")
        self.gates, self.candidate = PlainConv(model, "gru.z", "gru.r"), PlainConv(model, "gru.q")

    def forward(self, state: Tensor, context: Tensor, read: Tensor, flow: Tensor) -> Tensor:
        seen = torch.cat((self.of_correlation(read), self.of_flow(flow)), dim=1).relu()
        inputs = torch.cat((context, self.joint(seen).relu(), flow), dim=1)
        update, reset = self.gates(torch.cat((state, inputs), dim=1)).sigmoid().chunk(2, dim=1)
        candidate = self.candidate(torch.cat((reset * state, inputs), dim=1)).tanh()
        return state + update * (candidate - state)


def combine(flow: Tensor, scores: Tensor) -> Tensor:
    """Return the flow of all pixels."""
    height, width = flow.shape[-2:]
    padded = F.pad(flow, (1, 1, 1, 1))
    around = torch.stack(
        [padded[..., i : i + height, j : j + width] for i, j in product(range(3), repeat=2)], dim=2
    )
    shares = scores.unflatten(1, (NEIGHBOURS, FACTOR, FACTOR)).softmax(dim=1)
    fine = torch.einsum("bnuvij,bcnij->bciujv", shares, around)
    return FACTOR * fine.flatten(4, 5).flatten(2, 3)


class FlowTrainer(nn.Module):
    """The net and its loss in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_encoder = build_encoder(model, "features", (2, 3))
        self.context_encoder = build_encoder(model, "context", (0, 2, 3))
        self.recurrent_block = RecurrentCell(model)
        self.flow_predictor, self.mask_predictor = (
            nn.Sequential(PlainConv(model, f"{name}.0"), nn.ReLU(), PlainConv(model, f"{name}.1"))
            for name in ("flow", "mask")
        )

    def estimate(self, first: Tensor, second: Tensor) -> Tensor:
        """Return flow of all iterations, (ITERATIONS, batch, 2, height, width)."""
        features = self.feature_encoder(first)
        pyramid = build_pyramid(features, self.feature_encoder(second))
        encoded = self.context_encoder(first)
        state, context = encoded[:, :HIDDEN].tanh(), encoded[:, HIDDEN:].relu()
        batch, _, height, width = features.shape
        x, y = torch.arange(width).float(), torch.arange(height).float()[:, None]
        flow = features.new_zeros(batch, 2, height, width)
        estimates = []
        for _ in range(ITERATIONS):
            flow = flow.detach()
            u, v = x + flow[:, 0], y + flow[:, 1]
            windows = [look_up(level, u / 2**n, v / 2**n) for n, level in enumerate(pyramid)]
            read = torch.cat(windows, dim=-1).movedim(-1, 1)
            state = self.recurrent_block(state, context, read, flow)
            flow = flow + self.flow_predictor(state)
            estimates.append(combine(flow, MASK_SCALE * self.mask_predictor(state)))
        return torch.stack(estimates)

    def forward(self, image1: Tensor, image2: Tensor, flow_gt: Tensor, valid: Tensor) -> Tensor:
        first, second = (image / 127.5 - 1 for image in (image1, image2))
        distances = (self.estimate(first, second) - flow_gt).abs()
        is_counted = (valid > 0.5) & (torch.linalg.vector_norm(flow_gt, dim=1) < MAX_FLOW)
        losses = torch.where(is_counted[:, None], distances, 0.0).mean((1, 2, 3, 4))
        return (losses * GAMMA ** torch.arange(ITERATIONS - 1, -1, -1)).sum()
