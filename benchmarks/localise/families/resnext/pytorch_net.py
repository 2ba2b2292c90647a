"""The classifier in PyTorch, with the modules of timm's ResNet and its loss for mixed labels.

Variant 'functional': the names of torchvision, norms from means and variances, a convolution for
each group, pooling by functions, the loss from the cross entropies of both labels.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.resnext.architecture import (
    AUX_STAGE,
    AUX_WEIGHT,
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


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return CriterionOfFunctions(model) if model.variant == "functional" else MixedLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a copy of a weight."""
    return torch.from_numpy(np.array(model.weights[name]))


def load_conv(
    model: Model, path: str, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Conv2d:
    """Return the convolution at ``path``."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    conv = nn.Conv2d(
        n_in * groups,
        n_out,
        kernel,
        stride,
        padding=dilation * (kernel // 2),
        dilation=dilation,
        groups=groups,
        bias=False,
    )
    conv.weight.data.copy_(weight)
    return conv


def load_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the batch norm behind the convolution at ``path``."""
    names = ("weight", "bias", "mean", "variance")
    weight, bias, mean, variance = (read(model, f"{path}.norm.{name}") for name in names)
    norm = nn.BatchNorm2d(len(weight), eps=EPS, momentum=MOMENTUM)
    state = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": variance}
    norm.load_state_dict(state, strict=False)
    return norm.eval() if path.startswith("stem") and model.is_stem_frozen else norm


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    weight = read(model, f"{path}.weight")
    linear = nn.Linear(weight.shape[1], len(weight))
    linear.load_state_dict({"weight": weight, "bias": read(model, f"{path}.bias")})
    return linear


class LowerRightMaxPool2d(nn.MaxPool2d):
    """Max pooling of an even image with a border below and on the right."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1), value=float("-inf")))


class OverhangAvgPool2d(nn.AvgPool2d):
    """Means that count zeros beyond the border."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            x = F.pad(x, (0, 1, 0, 1))
        return super().forward(x)


def build_downsample(model: Model, path: str, stride: int) -> nn.Sequential:
    """Return the shortcut of a first block."""
    pool: nn.Module = nn.Identity()
    if stride > 1 and model.is_shortcut_pooled:
        if model.is_overhang_counted:
            pool = OverhangAvgPool2d(2, stride)
        else:
            pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False)
    conv_stride = 1 if model.is_shortcut_pooled else stride
    conv = load_conv(model, f"{path}.shortcut", conv_stride)
    return nn.Sequential(pool, conv, load_norm(model, f"{path}.shortcut"))


class Bottleneck(nn.Module):
    """Three convolutions, the second one grouped, and a residual sum."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        path, stride = f"stages.{stage}.{n}", STRIDES[stage] if n == 0 else 1
        is_first = model.strided == "reduce"
        dilation = model.dilations[stage] if n == 1 else 1
        self.conv1 = load_conv(model, f"{path}.reduce", stride if is_first else 1)
        self.bn1 = load_norm(model, f"{path}.reduce")
        self.act1 = nn.ReLU(inplace=False)
        self.conv2 = load_conv(
            model, f"{path}.grouped", 1 if is_first else stride, dilation, GROUPS
        )
        self.bn2 = load_norm(model, f"{path}.grouped")
        self.act2 = nn.ReLU(inplace=False)
        self.conv3 = load_conv(model, f"{path}.expand")
        self.bn3 = load_norm(model, f"{path}.expand")
        self.act3 = nn.ReLU(inplace=False)
        self.downsample = build_downsample(model, path, stride) if n == 0 else None
        self.is_relu_early = model.is_relu_early
        self.is_identity_stopped = model.is_identity_stopped

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.act2(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        elif self.is_identity_stopped:
            shortcut = shortcut.detach()
        if self.is_relu_early:
            return self.act3(x) + shortcut
        return self.act3(x + shortcut)


class ResNet(nn.Module):
    """Logits of images of both heads, (batch, LABELS) each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n in range(len(STEM) - 1):
            conv = load_conv(model, f"stem.{n}", 2 if n == 0 else 1)
            layers += [conv, load_norm(model, f"stem.{n}"), nn.ReLU(inplace=False)]
        last = f"stem.{len(STEM) - 1}"
        self.conv1 = nn.Sequential(*layers, load_conv(model, last))
        self.bn1, self.act1 = load_norm(model, last), nn.ReLU(inplace=False)
        if model.is_max_pool_centered:
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        else:
            self.maxpool = LowerRightMaxPool2d(kernel_size=3, stride=2)
        for stage, depth in enumerate(DEPTHS):
            blocks = (Bottleneck(model, stage, n) for n in range(depth))
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.fc = load_linear(model, "head")
        self.aux_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.aux_fc = load_linear(model, "aux")
        self.is_aux_stopped = model.is_aux_stopped

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.maxpool(self.act1(self.bn1(self.conv1(images))))
        middle = self.layer2(self.layer1(x))
        x = self.layer3(middle)
        if self.is_aux_stopped:
            middle = middle.detach()
        return self.fc(self.global_pool(x)), self.aux_fc(self.aux_pool(middle))


class SoftTargetCrossEntropy(nn.Module):
    """Cross entropy of probabilities of the classes."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return torch.sum(-targets * F.log_softmax(logits, dim=-1), dim=-1).mean()


class MixedLoss(nn.Module):
    """Loss of both heads for the labels of mixed images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = ResNet(model)
        self.criterion = SoftTargetCrossEntropy()
        self.aux_weight = model.aux_weight
        self.is_mix_swapped = model.is_mix_swapped
        self.smoothing = model.label_smoothing

    def smooth(self, labels: Tensor) -> Tensor:
        """Return smoothed one-hot labels."""
        off_value = self.smoothing / LABELS
        targets = torch.full((len(labels), LABELS), off_value)
        return targets.scatter(1, labels[:, None], 1 - self.smoothing + off_value)

    def forward(self, images: Tensor, labels: Tensor, others: Tensor, lam: Tensor) -> Tensor:
        logits, aux_logits = self.model(images)
        lam = lam[:, None]
        if self.is_mix_swapped:
            lam = 1 - lam
        targets = self.smooth(labels) * lam + self.smooth(others) * (1 - lam)
        aux_loss = self.criterion(aux_logits, targets)
        return self.criterion(logits, targets) + self.aux_weight * aux_loss


class Norm2d(nn.Module):
    """Batch norm from the mean and the variance of each channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.norm.weight"))
        self.bias = nn.Parameter(read(model, f"{path}.norm.bias"))
        self.register_buffer("running_mean", read(model, f"{path}.norm.mean"))
        self.register_buffer("running_var", read(model, f"{path}.norm.variance"))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), unbiased=False)
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            self.running_mean.lerp_(mean, MOMENTUM)
            self.running_var.lerp_(variance * (count / (count - 1)), MOMENTUM)
        scale = self.weight * torch.rsqrt(variance + EPS)
        shift = self.bias - mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class ConvNormActivation(nn.Module):
    """A convolution, one for each group of channels, its norm and relu."""

    def __init__(
        self, model: Model, path: str, stride: int = 1, groups: int = 1, *, has_relu: bool = True
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.weight"))
        self.norm = Norm2d(model, path)
        self.stride, self.groups, self.has_relu = stride, groups, has_relu

    def filter(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution of one group."""
        return F.conv2d(x, weight, None, self.stride, weight.shape[-1] // 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.groups > 1:
            parts = zip(x.chunk(self.groups, 1), self.weight.chunk(self.groups), strict=True)
            x = torch.cat([self.filter(*part) for part in parts], dim=1)
        else:
            x = self.filter(x, self.weight)
        x = self.norm(x)
        return F.relu(x) if self.has_relu else x


class ResidualBlock(nn.Module):
    """A bottleneck; an odd image's border is repeated in front of the shortcut's pooling."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        path, self.stride = f"stages.{stage}.{n}", STRIDES[stage] if n == 0 else 1
        self.a = ConvNormActivation(model, f"{path}.reduce")
        self.b = ConvNormActivation(model, f"{path}.grouped", self.stride, GROUPS)
        self.c = ConvNormActivation(model, f"{path}.expand", has_relu=False)
        self.proj = None
        if n == 0:
            self.proj = ConvNormActivation(model, f"{path}.shortcut", has_relu=False)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.c(self.b(self.a(x)))
        if self.stride > 1:
            odd = x.shape[-1] % 2
            x = F.avg_pool2d(F.pad(x, (0, odd, 0, odd), mode="replicate"), 2)
        if self.proj is not None:
            x = self.proj(x)
        return F.relu(x + branch)


class RegNet(nn.Module):
    """Logits of both heads, with the names of torchvision."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        convs = (ConvNormActivation(model, f"stem.{n}", 1 + (n == 0)) for n in range(len(STEM)))
        self.stem = nn.Sequential(*convs)
        stages = []
        for stage, depth in enumerate(DEPTHS):
            blocks = (ResidualBlock(model, stage, n) for n in range(depth))
            stages.append(nn.Sequential(*blocks))
        self.trunk_output = nn.ModuleList(stages)
        self.classifier, self.aux_classifier = load_linear(model, "head"), load_linear(model, "aux")

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        x = F.max_pool2d(self.stem(images), 3, 2, 1)
        outputs = {}
        for stage, blocks in enumerate(self.trunk_output):
            x = blocks(x)
            if stage == AUX_STAGE:
                outputs["aux"] = self.aux_classifier(x.mean((2, 3)))
        outputs["out"] = self.classifier(x.mean((2, 3)))
        return outputs


class CriterionOfFunctions(nn.Module):
    """The share of the first labels' cross entropy and the rest of the second ones'."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = RegNet(model)

    def forward(self, images: Tensor, labels: Tensor, others: Tensor, lam: Tensor) -> Tensor:
        losses = {}
        for name, logits in self.net(images).items():
            options = {"reduction": "none", "label_smoothing": SMOOTHING}
            first = F.cross_entropy(logits, labels, **options)
            second = F.cross_entropy(logits, others, **options)
            losses[name] = torch.lerp(second, first, lam).mean()
        return losses["out"] + AUX_WEIGHT * losses["aux"]
