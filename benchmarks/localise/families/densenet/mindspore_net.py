"""The reader of radiographs in MindSpore, with MindCV's cells of a DenseNet.

Variant 'split': 1x1 convolutions of a dense layer as a sum over what is concatenated, and the
logarithm of the sigmoid. Variant 'pooled': the transition has its mean in front of the convolution,
and the loss of findings is a choice between two. Variant 'linear': the sequence has its channels
last, a dilated convolution is a sum of products.
"""

from __future__ import annotations

from itertools import pairwise

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.densenet.architecture import (
    BATCH,
    BETA,
    COMPRESSED,
    DEPTHS,
    DEVIATION,
    DILATIONS,
    EPS,
    FINDING_WEIGHTS,
    GAMMA_ABSENT,
    GAMMA_PRESENT,
    GROWTH,
    HEATMAP_WEIGHT,
    KERNEL,
    MARGIN,
    MOMENTUM,
    PLACE_WEIGHT,
    ROW_CHANNELS,
    STEM,
    TINY,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        not model.has_final_relu
        or model.margin != MARGIN
        or model.is_focus_attached
        or model.is_skip_residual
        or model.is_gate_first
        or model.are_uncertain_absent
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return RadiographLoss(model)


def build_kernel(weight: np.ndarray, stride: int = 1) -> nn.Conv2d:
    """Return a convolution with a kernel."""
    n_out, n_in, size, _ = weight.shape
    return nn.Conv2d(
        n_in, n_out, size, stride, pad_mode="pad", padding=size // 2, weight_init=Tensor(weight)
    )


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``."""
    return build_kernel(model.weights[f"{path}.weight"], stride)


def build_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm2d(
        len(weight), eps=EPS, momentum=1 - MOMENTUM, gamma_init=weight, beta_init=bias
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``; a convolution of one row is one."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    n_out, n_in = weight.shape[:2]
    weight = Tensor(np.ascontiguousarray(weight.reshape(n_out, n_in)))
    if bias is None:
        return nn.Dense(n_in, n_out, weight_init=weight, has_bias=False)
    return nn.Dense(n_in, n_out, weight_init=weight, bias_init=Tensor(bias))


def build_row_conv(model: Model, path: str) -> nn.Cell:
    """Return the convolution of one row at ``path``."""
    if model.variant == "linear":
        return build_dense(model, path)
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    n_out, n_in, _ = weight.shape
    return nn.Conv1d(
        n_in,
        n_out,
        1,
        has_bias=bias is not None,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
    )


class SplitConv(nn.Cell):
    """A 1x1 convolution as the sum of those of a dense block's features."""

    def __init__(self, weight: np.ndarray, n_first: int) -> None:
        super().__init__()
        bounds = [0, *range(n_first, weight.shape[1] + 1, GROWTH)]
        self.bounds = tuple(pairwise(bounds))
        parts = (np.ascontiguousarray(weight[:, begin:end]) for begin, end in self.bounds)
        self.convs = nn.CellList([build_kernel(part) for part in parts])

    def construct(self, x):
        total = 0
        for n, conv in enumerate(self.convs):
            begin, end = self.bounds[n]
            part = conv(x[:, begin:end])
            total = part if n == 0 else total + part
        return total


class DenseLayer(nn.Cell):
    """What a layer adds to its input."""

    def __init__(self, model: Model, block: int, n: int) -> None:
        super().__init__()
        path = f"blocks.{block}.{n}"
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.relu1 = nn.ReLU()
        if model.variant == "split":
            weight = model.weights[f"{path}.reduce.weight"]
            self.conv1 = SplitConv(weight, (STEM, COMPRESSED)[block])
        else:
            self.conv1 = build_conv(model, f"{path}.reduce")
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.relu2 = nn.ReLU()
        self.conv2 = build_conv(model, f"{path}.grow")
        self.is_new_first = model.is_new_first and block == len(DEPTHS) - 1
        self.is_carried_stopped = model.is_carried_stopped and block == len(DEPTHS) - 1
        self.scaled_gradient = None
        if model.layer_gradient != 1 and (block, n) == (0, DEPTHS[0] - 1):
            self.scaled_gradient = ScaledGradient(model.layer_gradient)

    def construct(self, features):
        x = features if self.scaled_gradient is None else self.scaled_gradient(features)
        x = self.conv1(self.relu1(self.norm1(x)))
        x = self.conv2(self.relu2(self.norm2(x)))
        if self.is_carried_stopped:
            features = ops.stop_gradient(features)
        return ops.concat((x, features) if self.is_new_first else (features, x), axis=1)


class Transition(nn.Cell):
    """Half of the channels, a quarter of the pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = build_norm(model, "transition.norm")
        self.conv = build_conv(model, "transition.reduce")
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2)
        self.is_pooled_early = model.is_pooled_early
        self.is_pooled_between = model.variant == "pooled"

    def construct(self, x):
        if self.is_pooled_early:
            return self.conv(ops.relu(self.norm(self.pool(x))))
        x = ops.relu(self.norm(x))
        return self.conv(self.pool(x)) if self.is_pooled_between else self.pool(self.conv(x))


class DenseNet(nn.Cell):
    """Features of images, (batch, FEATURES, ROWS, columns)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv0, self.norm0 = build_conv(model, "stem", 2), build_norm(model, "stem.norm")
        self.denseblock1, self.denseblock2 = (
            nn.SequentialCell([DenseLayer(model, block, n) for n in range(depth)])
            for block, depth in enumerate(DEPTHS)
        )
        self.transition = Transition(model)
        self.norm_final = build_norm(model, "final")

    def construct(self, images):
        x = ops.relu(self.norm0(self.conv0(images)))
        x = self.denseblock2(self.transition(self.denseblock1(x)))
        return ops.relu(self.norm_final(x))


class WeightNormConv1d(nn.Cell):
    """A dilated, causal convolution whose weight has a direction and a magnitude."""

    def __init__(self, model: Model, path: str, dilation: int, *, is_centered: bool) -> None:
        super().__init__()
        self.weight_v = Parameter(Tensor(model.weights[f"{path}.direction"]))
        self.weight_g = Parameter(Tensor(model.weights[f"{path}.magnitude"]))
        self.bias = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.dilation, self.is_linear = dilation, model.variant == "linear"
        border = dilation * (KERNEL - 1)
        self.padding = (border // 2, border - border // 2) if is_centered else (border, 0)
        self.axes = (1,) if model.are_taps_normed else (1, 2)

    def get_weight(self):
        """Return the weight (outputs, inputs, kernel)."""
        norm = ops.sqrt(ops.square(self.weight_v).sum(self.axes, keepdims=True))
        return self.weight_v * (self.weight_g / norm)

    def construct(self, x):
        weight = self.get_weight()
        if self.is_linear:
            n_rows = x.shape[1]
            x = ops.pad(x, (0, 0, *self.padding))
            y = self.bias
            for tap in range(KERNEL):
                begin = tap * self.dilation
                y = y + ops.matmul(x[:, begin : begin + n_rows], weight[:, :, tap].T)
            return y
        x = ops.pad(x, self.padding)
        return ops.conv1d(x, weight, self.bias, 1, "valid", 0, self.dilation)


class TemporalBlock(nn.Cell):
    """Gates; a residual sum, and what is skipped to the end."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, is_last = f"temporal.{n}", n == len(DILATIONS) - 1
        is_centered = is_last and model.is_last_centered
        self.dilated_conv = WeightNormConv1d(
            model, f"{path}.dilated", DILATIONS[n], is_centered=is_centered
        )
        self.skip_conv = build_row_conv(model, f"{path}.skip")
        self.res_conv = None if is_last else build_row_conv(model, f"{path}.residual")
        self.axis = -1 if model.variant == "linear" else 1

    def construct(self, x):
        signal, gate = ops.split(self.dilated_conv(x), ROW_CHANNELS, axis=self.axis)
        z = ops.tanh(signal) * ops.sigmoid(gate)
        skip = self.skip_conv(z)
        if self.res_conv is not None:
            x = (x + self.res_conv(z)) * 0.5**0.5
        return x, skip


class TemporalHead(nn.Cell):
    """Logits of landmarks, (batch, LANDMARKS, ROWS), from features of rows."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.start_conv = build_row_conv(model, "entry")
        self.blocks = nn.CellList([TemporalBlock(model, n) for n in range(len(DILATIONS))])
        self.end_conv1 = build_row_conv(model, "output.0")
        self.end_conv2 = build_row_conv(model, "output.1")
        self.is_linear = model.variant == "linear"

    def construct(self, rows):
        x = self.start_conv(rows.swapaxes(1, 2) if self.is_linear else rows)
        skips = 0
        for n, block in enumerate(self.blocks):
            x, skip = block(x)
            skips = skip if n == 0 else skips + skip
        logits = self.end_conv2(ops.relu(self.end_conv1(ops.relu(skips))))
        return logits.swapaxes(1, 2) if self.is_linear else logits


class AsymmetricLoss(nn.Cell):
    """Asymmetric loss of findings, summed over them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weights = Tensor(np.array(FINDING_WEIGHTS, dtype=np.float32))
        self.are_absent_weighted = model.are_absent_weighted
        self.variant = model.variant

    def construct(self, logits, labels):
        present = (labels == 1).astype(ms.float32)
        absent = (labels == 0).astype(ms.float32)
        p = ops.sigmoid(logits)
        q = ops.clamp(1 - p + MARGIN, max=1.0)
        if self.variant == "split":
            log_p = -ops.softplus(-logits)
        else:
            log_p = ops.log(ops.clamp(p, min=TINY))
        log_q = ops.log(ops.clamp(q, min=TINY))
        focus_p = ops.stop_gradient(ops.pow(1 - p, GAMMA_PRESENT))
        focus_q = ops.stop_gradient(ops.pow(1 - q, GAMMA_ABSENT))
        if self.variant == "pooled":
            losses = ops.where(labels == 1, self.weights * focus_p * log_p, focus_q * log_q)
            losses = ops.masked_fill(losses, labels < 0, 0.0)
            return -losses.sum(-1).mean()
        losses_present = present * focus_p * log_p * self.weights
        losses_absent = absent * focus_q * log_q
        if self.are_absent_weighted:
            losses_absent = losses_absent * self.weights
        return -(losses_present + losses_absent).sum() / BATCH


class RadiographLoss(nn.Cell):
    """Losses of findings and of landmarks."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.backbone = DenseNet(model)
        self.classifier = build_dense(model, "findings")
        self.temporal = TemporalHead(model)
        self.criterion = AsymmetricLoss(model)
        self.places = Tensor(model.get_places())

    def compute_landmark_loss(self, logits, places):
        """Return the cross entropy of heatmaps and smooth L1 of expected places."""
        distances = self.places - places.expand_dims(-1)
        heat = ops.exp(-ops.square(distances) / (2 * DEVIATION**2))
        heat = heat / heat.sum(-1, keepdims=True)
        heatmap_loss = -(heat * ops.log_softmax(logits, -1)).sum(-1).mean()
        expected = (ops.softmax(logits, -1) * self.places).sum(-1)
        place_loss = ops.smooth_l1_loss(expected, places, beta=BETA, reduction="mean")
        return HEATMAP_WEIGHT * heatmap_loss + PLACE_WEIGHT * place_loss

    def construct(self, images, labels, places):
        features = self.backbone(images)
        logits = self.classifier(features.mean((2, 3)))
        row_logits = self.temporal(features.mean(3))
        return self.criterion(logits, labels) + self.compute_landmark_loss(row_logits, places)
