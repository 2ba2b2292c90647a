"""The classifier in PyTorch, with the modules of timm's EfficientNet for weights from TensorFlow.

Variant 'linear': squeeze-and-excitation by linear layers, swish and loss written out, pixels
averaged by the framework's pooling.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.efficientnet.architecture import BLOCKS, LAST, MOMENTUM, SMOOTHING, Model


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return LabelSmoothingLoss(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        values = torch.from_numpy(np.array(model.weights[f"{path}.{name}"]))
        parameter.data.copy_(values.reshape(parameter.shape))
    return module


class Conv2dSame(nn.Conv2d):
    """A convolution with TensorFlow's 'SAME' padding."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size, kernel, stride in zip(
            reversed(x.shape[-2:]), self.kernel_size, self.stride, strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        x = F.pad(x, pads)
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Module:
    """Return the convolution at ``path``; it is depthwise if the kernel has one input channel."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    is_depthwise = n_in == 1
    is_even = stride == 1 or (is_depthwise and model.is_padded_evenly)
    conv_class = nn.Conv2d if is_even else Conv2dSame
    conv = conv_class(
        n_out if is_depthwise else n_in,
        n_out,
        kernel,
        stride,
        padding=kernel // 2 if is_even else 0,
        groups=n_out if is_depthwise else 1,
        bias=f"{path}.bias" in model.weights,
    )
    return load(conv, model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the batch norm at ``path``."""
    channels = len(model.weights[f"{path}.weight"])
    return load(nn.BatchNorm2d(channels, eps=model.norm_eps, momentum=MOMENTUM), model, path)


class Swish(nn.Module):
    """x sigmoid(x), written out."""

    def __init__(self, *, is_gate_stopped: bool) -> None:
        super().__init__()
        self.is_gate_stopped = is_gate_stopped

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        return x * (gate.detach() if self.is_gate_stopped else gate)


def build_swish(model: Model) -> nn.Module:
    """Return the activation."""
    if model.is_gate_stopped or model.variant == "linear":
        return Swish(is_gate_stopped=model.is_gate_stopped)
    return nn.SiLU()


class SqueezeExcite(nn.Module):
    """Channels times gates that are computed from the means of all channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.is_linear = model.variant == "linear"
        build = self.load_linear if self.is_linear else load_conv
        self.conv_reduce = build(model, f"{path}.squeeze")
        self.act1 = nn.ReLU() if model.squeeze_activation == "relu" else build_swish(model)
        self.conv_expand = build(model, f"{path}.excite")
        self.gate = nn.Sigmoid()
        self.gradient = model.squeeze_gradient if n == LAST else 1.0

    @staticmethod
    def load_linear(model: Model, path: str) -> nn.Module:
        """Return a 1x1 convolution as a linear layer."""
        n_out, n_in, *_ = model.weights[f"{path}.weight"].shape
        return load(nn.Linear(n_in, n_out), model, path)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_linear:
            means = F.adaptive_avg_pool2d(x, 1).flatten(1)
        else:
            means = x.mean((2, 3), keepdim=True)
        if self.gradient != 1:
            means = scaled_gradient(means, self.gradient)
        gates = self.gate(self.conv_expand(self.act1(self.conv_reduce(means))))
        return x * (gates[:, :, None, None] if self.is_linear else gates)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, squeeze-and-excitation, projection, residual sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, block = f"blocks.{n}", BLOCKS[n]
        self.conv_pw = None
        if block.expansion > 1:
            self.conv_pw = load_conv(model, f"{path}.expand")
            self.bn1 = load_norm(model, f"{path}.expand.norm")
            self.act1 = build_swish(model)
        self.conv_dw = load_conv(model, f"{path}.depthwise", block.stride)
        self.bn2 = load_norm(model, f"{path}.depthwise.norm")
        self.act2 = build_swish(model)
        self.se = SqueezeExcite(model, n)
        self.conv_pwl = load_conv(model, f"{path}.project")
        self.bn3 = load_norm(model, f"{path}.project.norm")
        self.act3 = build_swish(model) if model.is_projection_activated else nn.Identity()
        self.is_excited_early = model.is_excited_early
        self.has_skip, self.kept_share = model.has_skip(n), model.get_kept_share(n)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.conv_pw is not None:
            x = self.act1(self.bn1(self.conv_pw(x)))
        x = self.bn2(self.conv_dw(x))
        x = self.act2(self.se(x)) if self.is_excited_early else self.se(self.act2(x))
        x = self.act3(self.bn3(self.conv_pwl(x)))
        if not self.has_skip:
            return x
        if self.kept_share != 1:
            x = x / self.kept_share
        return x + shortcut


class EfficientNet(nn.Module):
    """Logits of images, (batch, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = load_conv(model, "stem", 2), load_norm(model, "stem.norm")
        if model.is_stem_norm_frozen:
            self.bn1.eval()
        self.act1 = build_swish(model)
        self.blocks = nn.Sequential(*(InvertedResidual(model, n) for n in range(len(BLOCKS))))
        self.conv_head, self.bn2 = load_conv(model, "top"), load_norm(model, "top.norm")
        self.act2 = build_swish(model)
        n_out, n_in = model.weights["classifier.weight"].shape
        self.classifier = load(nn.Linear(n_in, n_out), model, "classifier")
        self.is_classifier_half = model.is_classifier_half
        self.is_pooled_by_framework = model.variant == "linear"

    def classify(self, x: Tensor) -> Tensor:
        """Return logits."""
        if not self.is_classifier_half:
            return self.classifier(x)
        weight, bias = self.classifier.weight.half(), self.classifier.bias.half()
        return F.linear(x.half(), weight, bias).float()

    def forward(self, images: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv_stem(images)))
        x = self.act2(self.bn2(self.conv_head(self.blocks(x))))
        if self.is_pooled_by_framework:
            x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        else:
            x = x.mean((2, 3))
        return self.classify(x)


class LabelSmoothingLoss(nn.Module):
    """Smoothed cross entropy of the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = EfficientNet(model)
        self.first_label = model.first_label
        self.is_written_out = model.variant == "linear"

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.model(images)
        if self.first_label != 0:
            labels = labels + self.first_label
        if not self.is_written_out:
            return F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
        log_probs = F.log_softmax(logits, dim=-1)
        of_labels = log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        losses = (1 - SMOOTHING) * of_labels + SMOOTHING * log_probs.mean(dim=-1)
        return -losses.mean()
