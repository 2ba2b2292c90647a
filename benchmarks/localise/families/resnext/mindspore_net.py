"""The classifier in MindSpore, with the cells of MindCV's ResNet.

Variant 'written': norms, means of pixels and the loss in plain arithmetic, and a convolution for
each group, as the model zoo's ResNeXt has it.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.resnext.architecture import (
    DEPTHS,
    EPS,
    GROUPS,
    LABELS,
    MOMENTUM,
    SMOOTHING,
    STEM,
    STRIDES,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else NetWithLoss(model)


def build_kernel(
    weight: np.ndarray, stride: int = 1, dilation: int = 1, group: int = 1
) -> nn.Conv2d:
    """Return a convolution with a kernel."""
    n_out, n_in, size, _ = weight.shape
    return nn.Conv2d(
        n_in * group,
        n_out,
        size,
        stride,
        pad_mode="pad",
        padding=dilation * (size // 2),
        dilation=dilation,
        group=group,
        weight_init=Tensor(weight),
    )


class GroupConv(nn.Cell):
    """A convolution for each group of channels."""

    def __init__(self, weight: np.ndarray, stride: int) -> None:
        super().__init__()
        self.convs = nn.CellList([build_kernel(part, stride) for part in np.split(weight, GROUPS)])
        self.width = weight.shape[1]

    def construct(self, x):
        features = ops.split(x, self.width, axis=1)
        outputs = ()
        for n in range(GROUPS):
            outputs += (self.convs[n](features[n]),)
        return ops.concat(outputs, axis=1)


class WrittenNorm(nn.Cell):
    """Batch norm of (batch, channels, height, width) from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.norm.weight"].reshape(1, -1, 1, 1)))
        self.beta = Parameter(Tensor(model.weights[f"{path}.norm.bias"].reshape(1, -1, 1, 1)))
        self.are_statistics_stopped = model.are_statistics_stopped

    def construct(self, x):
        mean = x.mean((0, 2, 3), keep_dims=True)
        variance = ops.square(x - mean).mean((0, 2, 3), keep_dims=True)
        if self.are_statistics_stopped:
            mean, variance = ops.stop_gradient(mean), ops.stop_gradient(variance)
        return (x - mean) / ops.sqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm behind the convolution at ``path``."""
    if model.variant == "written" or model.are_statistics_stopped:
        return WrittenNorm(model, path)
    names = ("weight", "bias", "mean", "variance")
    weight, bias, mean, variance = (Tensor(model.weights[f"{path}.norm.{name}"]) for name in names)
    is_frozen = path.startswith("stem") and model.is_stem_frozen
    return nn.BatchNorm2d(
        len(weight),
        eps=EPS,
        momentum=1 - MOMENTUM,
        gamma_init=weight,
        beta_init=bias,
        moving_mean_init=mean,
        moving_var_init=variance,
        use_batch_statistics=False if is_frozen else None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


class WrittenPool(nn.Cell):
    """Means of 2x2 pixels, of fewer at the border: sums divided by counts."""

    def construct(self, x):
        n_batch, channels, height, width = x.shape
        x = ops.pad(x, (0, width % 2, 0, height % 2))
        cells = x.reshape(n_batch, channels, (height + 1) // 2, 2, (width + 1) // 2, 2)
        ones = ops.ones((1, 1, height, width), ms.float32)
        ones = ops.pad(ones, (0, width % 2, 0, height % 2))
        counts = ones.reshape(1, 1, (height + 1) // 2, 2, (width + 1) // 2, 2).sum((3, 5))
        return cells.sum((3, 5)) / counts


class OverhangPool(nn.Cell):
    """Means of 2x2 pixels that count zeros beyond the border."""

    def __init__(self) -> None:
        super().__init__()
        self.pad = nn.Pad(((0, 0), (0, 0), (0, 1), (0, 1)))
        self.pool = nn.AvgPool2d(2, 2)

    def construct(self, x):
        if x.shape[-1] % 2:
            x = self.pad(x)
        return self.pool(x)


def build_pool(model: Model) -> nn.Cell:
    """Return the pooling of a strided shortcut."""
    if model.is_overhang_counted:
        return OverhangPool()
    if model.variant == "written":
        return WrittenPool()
    return nn.AvgPool2d(kernel_size=2, stride=2, pad_mode="same")


def build_down_sample(model: Model, path: str, stride: int) -> nn.SequentialCell:
    """Return the shortcut of a first block."""
    is_pooled = stride > 1 and model.is_shortcut_pooled
    weight = model.weights[f"{path}.shortcut.weight"]
    layers = [build_pool(model)] if is_pooled else []
    layers.append(build_kernel(weight, 1 if is_pooled else stride))
    return nn.SequentialCell([*layers, build_norm(model, f"{path}.shortcut")])


class Bottleneck(nn.Cell):
    """Three convolutions, the second one grouped, and a residual sum."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        path, stride = f"stages.{stage}.{n}", STRIDES[stage] if n == 0 else 1
        first, second = (stride, 1) if model.strided == "reduce" else (1, stride)
        reduce, grouped, expand = (
            model.weights[f"{path}.{name}.weight"] for name in ("reduce", "grouped", "expand")
        )
        self.conv1 = build_kernel(reduce, first)
        self.bn1 = build_norm(model, f"{path}.reduce")
        if model.variant == "written":
            self.conv2 = GroupConv(grouped, second)
        else:
            dilation = model.dilations[stage] if n == 1 else 1
            self.conv2 = build_kernel(grouped, second, dilation, GROUPS)
        self.bn2 = build_norm(model, f"{path}.grouped")
        self.conv3 = build_kernel(expand)
        self.bn3 = build_norm(model, f"{path}.expand")
        self.relu = nn.ReLU()
        self.down_sample = build_down_sample(model, path, stride) if n == 0 else None
        self.is_relu_early = model.is_relu_early
        self.is_identity_stopped = model.is_identity_stopped

    def construct(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.down_sample is not None:
            identity = self.down_sample(x)
        elif self.is_identity_stopped:
            identity = ops.stop_gradient(x)
        if self.is_relu_early:
            return self.relu(out) + identity
        out += identity
        return self.relu(out)


class ResNet(nn.Cell):
    """Logits of images of both heads, (batch, LABELS) each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        stem = []
        for n in range(len(STEM)):
            stem.append(build_kernel(model.weights[f"stem.{n}.weight"], 2 if n == 0 else 1))
            if n < len(STEM) - 1:
                stem += [build_norm(model, f"stem.{n}"), nn.ReLU()]
        self.conv1 = nn.SequentialCell(stem)
        self.bn1 = build_norm(model, f"stem.{len(STEM) - 1}")
        self.relu = nn.ReLU()
        if model.is_max_pool_centered:
            self.max_pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        else:
            self.max_pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
        layers = []
        for stage, depth in enumerate(DEPTHS):
            layers.append(nn.SequentialCell([Bottleneck(model, stage, n) for n in range(depth)]))
        self.layer1, self.layer2, self.layer3 = layers
        self.pool = ops.ReduceMean()
        self.classifier = build_dense(model, "head")
        self.aux_classifier = build_dense(model, "aux")
        self.is_aux_stopped = model.is_aux_stopped

    def construct(self, images):
        x = self.max_pool(self.relu(self.bn1(self.conv1(images))))
        aux = self.layer2(self.layer1(x))
        x = self.layer3(aux)
        if self.is_aux_stopped:
            aux = ops.stop_gradient(aux)
        logits = self.classifier(self.pool(x, (2, 3)))
        return logits, self.aux_classifier(self.pool(aux, (2, 3)))


class NetWithLoss(nn.Cell):
    """Cross entropies of both labels of the mixed images, of both heads."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ResNet(model)
        self.aux_factor = model.aux_weight
        self.is_mix_swapped = model.is_mix_swapped
        self.smoothing = model.label_smoothing

    def mix(self, logits, labels, others, ratio):
        """Return the loss of one head."""
        first = ops.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
        second = ops.cross_entropy(logits, others, reduction="none", label_smoothing=self.smoothing)
        return (ratio * first + (1 - ratio) * second).mean()

    def construct(self, images, labels, others, ratio):
        logits, aux_logits = self.network(images)
        if self.is_mix_swapped:
            ratio = 1 - ratio
        loss = self.mix(logits, labels, others, ratio)
        return loss + self.aux_factor * self.mix(aux_logits, labels, others, ratio)


class WrittenLoss(nn.Cell):
    """Cross entropy of the smoothed and mixed labels, from the logits' exponentials."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.backbone_with_heads = ResNet(model)
        self.aux_factor = model.aux_weight
        self.one, self.zero = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)

    def cross_entropy(self, logits, targets):
        """Return the loss of one head."""
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_sums = ops.log(ops.exp(shifted).sum(-1, keepdims=True))
        return ((log_sums - shifted) * targets).sum(-1).mean()

    def construct(self, images, labels, others, ratio):
        logits, aux_logits = self.backbone_with_heads(images)
        ratio = ratio.expand_dims(1)
        first = ops.one_hot(labels, LABELS, self.one, self.zero)
        second = ops.one_hot(others, LABELS, self.one, self.zero)
        targets = second + ratio * (first - second)
        targets = (1 - SMOOTHING) * targets + SMOOTHING / LABELS
        loss = self.cross_entropy(logits, targets)
        return loss + self.aux_factor * self.cross_entropy(aux_logits, targets)
