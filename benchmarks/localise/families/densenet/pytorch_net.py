"""The reader of radiographs in PyTorch, with torchvision's DenseNet and PyTorch's weight norm.

Variant 'names': the names of Keras, functions for pooling and relu, nested concatenations, linear
layers for convolutions of one row. Variant 'written': norms, weight norm, heatmaps and the loss of
findings in plain arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from families.densenet.architecture import (
    BETA,
    DEPTHS,
    DEVIATION,
    DILATIONS,
    EPS,
    FINDING_WEIGHTS,
    GAMMA_ABSENT,
    GAMMA_PRESENT,
    HEATMAP_WEIGHT,
    KERNEL,
    MOMENTUM,
    PLACE_WEIGHT,
    TINY,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.is_new_first
        or model.is_pooled_early
        or model.are_absent_weighted
        or model.is_last_centered
        or model.layer_gradient != 1
        or model.are_corners_aligned
        or model.is_carried_stopped
        or model.are_taps_normed
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return KerasStyleLoss(model) if model.variant == "names" else RadiographLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight, and the bias if there is one, at ``path`` into a module."""
    for name, parameter in list(module.named_parameters()):
        values = copy_parameter(model.weights[f"{path}.{name}"].reshape(parameter.shape))
        setattr(module, name, values)
    return module


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Module:
    """Return the convolution at ``path``."""
    n_out, n_in, size, _ = model.weights[f"{path}.weight"].shape
    conv = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)
    return load(conv, model, path)


class WrittenNorm(nn.Module):
    """Batch norm from the mean and the variance of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), unbiased=False, keepdim=True)
        normed = (x - mean) * torch.rsqrt(variance + EPS)
        return normed * self.weight[:, None, None] + self.bias[:, None, None]


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the batch norm at ``path``."""
    channels = len(model.weights[f"{path}.weight"])
    if model.variant == "written":
        return load(WrittenNorm(channels), model, path)
    return load(nn.BatchNorm2d(channels, eps=EPS, momentum=MOMENTUM), model, path)


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``; a convolution of one row is one."""
    n_out, n_in = model.weights[f"{path}.weight"].shape[:2]
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_row_conv(model: Model, path: str) -> nn.Module:
    """Return the convolution of one row at ``path``."""
    n_out, n_in, _ = model.weights[f"{path}.weight"].shape
    return load(nn.Conv1d(n_in, n_out, 1, bias=f"{path}.bias" in model.weights), model, path)


class DenseLayer(nn.Module):
    """What a layer adds to the features."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.relu1 = nn.ReLU()
        self.conv1 = load_conv(model, f"{path}.reduce")
        self.norm2 = load_norm(model, f"{path}.norm2")
        self.relu2 = nn.ReLU()
        self.conv2 = load_conv(model, f"{path}.grow")

    def forward(self, features: list[Tensor]) -> Tensor:
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(bottleneck)))


class DenseBlock(nn.ModuleDict):
    """Layers that read the block's input and the outputs of all earlier layers."""

    def __init__(self, model: Model, block: int) -> None:
        super().__init__()
        for n in range(DEPTHS[block]):
            self.add_module(f"denselayer{n + 1}", DenseLayer(model, f"blocks.{block}.{n}"))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class Transition(nn.Sequential):
    """Half of the channels, a quarter of the pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = load_norm(model, "transition.norm")
        self.relu = nn.ReLU()
        self.conv = load_conv(model, "transition.reduce")
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2)


class WrittenWeightNormConv1d(nn.Module):
    """A dilated convolution with weight norm in plain arithmetic."""

    def __init__(self, model: Model, path: str, dilation: int) -> None:
        super().__init__()
        self.weight_v = copy_parameter(model.weights[f"{path}.direction"])
        self.weight_g = copy_parameter(model.weights[f"{path}.magnitude"])
        self.bias = copy_parameter(model.weights[f"{path}.bias"])
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        norm = self.weight_v.square().sum(dim=(1, 2), keepdim=True).sqrt()
        weight = self.weight_g * self.weight_v / norm
        x = F.pad(x, (self.dilation * (KERNEL - 1), 0))
        return F.conv1d(x, weight, self.bias, dilation=self.dilation)


class CausalConv1d(nn.Module):
    """A dilated convolution, padded on both sides and cut off at the end."""

    def __init__(self, model: Model, path: str, dilation: int) -> None:
        super().__init__()
        self.chomp = dilation * (KERNEL - 1)
        direction = model.weights[f"{path}.direction"]
        n_out, n_in, _ = direction.shape
        conv = nn.Conv1d(n_in, n_out, KERNEL, padding=self.chomp, dilation=dilation)
        conv.bias = copy_parameter(model.weights[f"{path}.bias"])
        self.conv = weight_norm(conv)
        parametrization = self.conv.parametrizations.weight
        parametrization.original0 = copy_parameter(model.weights[f"{path}.magnitude"])
        parametrization.original1 = copy_parameter(direction)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[:, :, : -self.chomp]


class ResidualBlock(nn.Module):
    """Gates; a residual sum, and what is skipped to the end."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"temporal.{n}"
        build = WrittenWeightNormConv1d if model.variant == "written" else CausalConv1d
        self.dilated = build(model, f"{path}.dilated", DILATIONS[n])
        self.residual = None
        if n < len(DILATIONS) - 1:
            self.residual = load_row_conv(model, f"{path}.residual")
        self.skip = load_row_conv(model, f"{path}.skip")
        self.is_skip_residual, self.is_gate_first = model.is_skip_residual, model.is_gate_first

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        filtered, gate = self.dilated(x).chunk(2, dim=1)
        if self.is_gate_first:
            filtered, gate = gate, filtered
        gated = torch.tanh(filtered) * torch.sigmoid(gate)
        if self.residual is None:
            return x, self.skip(gated)
        x = (x + self.residual(gated)) / 2**0.5
        return x, self.skip(x if self.is_skip_residual else gated)


class WaveNet(nn.Module):
    """Logits of landmarks, (batch, LANDMARKS, ROWS), from features of rows."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_projection = load_row_conv(model, "entry")
        blocks = (ResidualBlock(model, n) for n in range(len(DILATIONS)))
        self.residual_layers = nn.ModuleList(blocks)
        self.output = nn.Sequential(
            nn.ReLU(),
            load_row_conv(model, "output.0"),
            nn.ReLU(),
            load_row_conv(model, "output.1"),
        )

    def forward(self, rows: Tensor) -> Tensor:
        x = self.input_projection(rows)
        skips = []
        for layer in self.residual_layers:
            x, skip = layer(x)
            skips.append(skip)
        return self.output(torch.stack(skips).sum(dim=0))


class DenseNet(nn.Module):
    """Logits of findings and of landmarks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", load_conv(model, "stem", 2))
        self.features.add_module("norm0", load_norm(model, "stem.norm"))
        self.features.add_module("relu0", nn.ReLU())
        self.features.add_module("denseblock1", DenseBlock(model, 0))
        self.features.add_module("transition1", Transition(model))
        self.features.add_module("denseblock2", DenseBlock(model, 1))
        self.features.add_module("norm5", load_norm(model, "final"))
        self.classifier = load_linear(model, "findings")
        self.landmarks = WaveNet(model)
        self.has_final_relu = model.has_final_relu

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(images)
        if self.has_final_relu:
            features = F.relu(features)
        pooled = torch.flatten(F.adaptive_avg_pool2d(features, (1, 1)), 1)
        return self.classifier(pooled), self.landmarks(features.mean(dim=-1))


class AsymmetricLoss(nn.Module):
    """Asymmetric loss of findings, summed over them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("pos_weight", torch.tensor(FINDING_WEIGHTS))
        self.clip, self.is_focus_attached = model.margin, model.is_focus_attached
        self.are_uncertain_absent = model.are_uncertain_absent

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        known = labels >= 0
        y = labels.clamp(min=0)
        xs_pos = torch.sigmoid(logits)
        xs_neg = (1 - xs_pos + self.clip).clamp(max=1)
        loss_pos = self.pos_weight * y * torch.log(xs_pos.clamp(min=TINY))
        loss_neg = (1 - y) * torch.log(xs_neg.clamp(min=TINY))
        with torch.set_grad_enabled(self.is_focus_attached):
            pt = xs_pos * y + xs_neg * (1 - y)
            gamma = GAMMA_PRESENT * y + GAMMA_ABSENT * (1 - y)
            focus = torch.pow(1 - pt, gamma)
        losses = (loss_pos + loss_neg) * focus
        if not self.are_uncertain_absent:
            losses = losses * known
        return -losses.sum() / len(logits)


class WrittenAsymmetricLoss(nn.Module):
    """The same, of present and of absent findings, with the logarithm of the sigmoid."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(FINDING_WEIGHTS))
        self.margin = model.margin

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        probabilities = torch.sigmoid(logits)
        shifted = torch.relu(probabilities - self.margin)
        focus = torch.sigmoid(-logits.detach())
        present = -focus * F.logsigmoid(logits) * self.weights
        absent = -shifted.detach().pow(GAMMA_ABSENT) * torch.log1p(-shifted)
        zeros = torch.zeros_like(absent)
        losses = torch.where(labels == 1, present, torch.where(labels == 0, absent, zeros))
        return losses.sum(dim=1).mean()


class LandmarkLoss(nn.Module):
    """Cross entropy of heatmaps and smooth L1 of expected places."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("places", torch.from_numpy(model.get_places()))
        self.is_written = model.variant == "written"

    def forward(self, logits: Tensor, places: Tensor) -> Tensor:
        scores = -((self.places - places[..., None]) ** 2) / (2 * DEVIATION**2)
        probabilities = logits.softmax(dim=-1)
        if self.is_written:
            heat = torch.exp(scores)
            heat = heat / heat.sum(dim=-1, keepdim=True)
            log_sums = logits.logsumexp(dim=-1)
            heatmap_loss = (log_sums - (heat * logits).sum(dim=-1)).mean()
            expected = probabilities @ self.places
        else:
            heat = scores.softmax(dim=-1)
            # Classes come second.
            heatmap_loss = F.cross_entropy(logits.transpose(1, 2), heat.transpose(1, 2))
            expected = (probabilities * self.places).sum(dim=-1)
        place_loss = F.smooth_l1_loss(expected, places, beta=BETA)
        return HEATMAP_WEIGHT * heatmap_loss + PLACE_WEIGHT * place_loss


class RadiographLoss(nn.Module):
    """Losses of findings and of landmarks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = DenseNet(model)
        is_written = model.variant == "written"
        self.asl = WrittenAsymmetricLoss(model) if is_written else AsymmetricLoss(model)
        self.landmark_loss = LandmarkLoss(model)

    def forward(self, images: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        logits, row_logits = self.net(images)
        return self.asl(logits, labels) + self.landmark_loss(row_logits, places)


class KerasConvBlock(nn.Module):
    """The features and what a layer adds to them."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.bn_0, self.conv_1 = (
            load_norm(model, f"{path}.norm1"),
            load_conv(model, f"{path}.reduce"),
        )
        self.bn_1, self.conv_2 = load_norm(model, f"{path}.norm2"), load_conv(model, f"{path}.grow")

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv_1(F.relu(self.bn_0(x)))
        return torch.cat((x, self.conv_2(F.relu(self.bn_1(y)))), dim=1)


class KerasTransition(nn.Module):
    """Half of the channels, a quarter of the pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bn = load_norm(model, "transition.norm")
        self.conv = load_conv(model, "transition.reduce")

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class GatedActivationUnit(nn.Module):
    """A temporal block with linear layers and the channels last."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"temporal.{n}"
        self.conv_filter_gate = CausalConv1d(model, f"{path}.dilated", DILATIONS[n])
        self.conv_skip = load_linear(model, f"{path}.skip")
        self.conv_res = None
        if n < len(DILATIONS) - 1:
            self.conv_res = load_linear(model, f"{path}.residual")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv_filter_gate(x.transpose(1, 2)).transpose(1, 2)
        signal, gate = y.chunk(2, dim=-1)
        y = gate.sigmoid() * signal.tanh()
        if self.conv_res is not None:
            x = (self.conv_res(y) + x) * 0.5**0.5
        return x, self.conv_skip(y)


class KerasStyleLoss(nn.Module):
    """The whole of it in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1_conv, self.conv1_bn = load_conv(model, "stem", 2), load_norm(model, "stem.norm")
        self.conv2, self.conv3 = (
            nn.Sequential(*(KerasConvBlock(model, f"blocks.{block}.{n}") for n in range(depth)))
            for block, depth in enumerate(DEPTHS)
        )
        self.pool2 = KerasTransition(model)
        self.bn = load_norm(model, "final")
        self.predictions = load_linear(model, "findings")
        self.row_input = load_linear(model, "entry")
        units = (GatedActivationUnit(model, n) for n in range(len(DILATIONS)))
        self.row_units = nn.ModuleList(units)
        self.row_hidden = load_linear(model, "output.0")
        self.row_output = load_linear(model, "output.1")
        self.finding_loss, self.row_loss = AsymmetricLoss(model), LandmarkLoss(model)

    def forward(self, images: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        x = self.conv2(F.relu(self.conv1_bn(self.conv1_conv(images))))
        x = F.relu(self.bn(self.conv3(self.pool2(x))))
        loss = self.finding_loss(self.predictions(x.mean(dim=(2, 3))), labels)
        h = self.row_input(x.mean(dim=3).transpose(1, 2))
        total = torch.zeros(())
        for unit in self.row_units:
            h, skip = unit(h)
            total = total + skip
        row_logits = self.row_output(F.relu(self.row_hidden(F.relu(total))))
        return loss + self.row_loss(row_logits.transpose(1, 2), places)
