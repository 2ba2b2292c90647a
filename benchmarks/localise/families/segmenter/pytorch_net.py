"""The segmenter in PyTorch, with the modules of torchvision's DeepLab and SegFormer's own code.

Variant 'functional': fused attention, means in place of pooling modules, cross entropy from
gathered logarithms, Dice of flat pixels.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.segmenter.architecture import (
    BLOCKS,
    CLASS_WEIGHTS,
    CLASSES,
    DICE_SMOOTH,
    DICE_WEIGHT,
    HEAD_DIM,
    HEADS,
    IGNORED,
    IMAGE,
    LAYER_EPS,
    MOMENTUM,
    REDUCTION,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return SegmentationLoss(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


def load_conv(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Module:
    """Return the convolution at ``path``; odd kernels are padded, depthwise ones have groups."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    is_depthwise = path.endswith("depthwise")
    padding = dilation * (kernel // 2) if kernel % 2 else 0
    conv = nn.Conv2d(
        n_out if is_depthwise else n_in,
        n_out,
        kernel,
        stride,
        padding,
        dilation,
        groups=n_out if is_depthwise else 1,
        bias=f"{path}.bias" in model.weights,
    )
    return load(conv, model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the batch norm at ``path``."""
    channels = len(model.weights[f"{path}.weight"])
    return load(nn.BatchNorm2d(channels, eps=model.batch_eps, momentum=MOMENTUM), model, path)


def load_layer_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(WIDTH, eps=LAYER_EPS), model, path)


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


class ConvBNReLU(nn.Sequential):
    """Convolution, batch norm, relu."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        conv, norm = load_conv(model, path, stride), load_norm(model, f"{path}.norm")
        if path == "stem" and model.stem_padding == "end":
            conv.padding = (0, 0)
            conv = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), conv)
        super().__init__(conv, norm, nn.ReLU())


class SeparableConv2d(nn.Module):
    """Depthwise and pointwise convolution, a batch norm behind each, and relu between them."""

    def __init__(self, model: Model, path: str, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.depthwise = load_conv(model, f"{path}.depthwise", stride, dilation)
        self.bn_depth = load_norm(model, f"{path}.depthwise.norm")
        self.pointwise = load_conv(model, f"{path}.pointwise")
        self.bn_point = load_norm(model, f"{path}.pointwise.norm")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn_depth(self.depthwise(x)))
        return self.bn_point(self.pointwise(x))


def build_pool(model: Model) -> nn.Module:
    """Return the mean of each channel, (batch, channels, 1, 1)."""
    return ChannelMean() if model.variant == "functional" else nn.AdaptiveAvgPool2d(1)


class ChannelMean(nn.Module):
    """The mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True)


class SqueezeExcitation(nn.Module):
    """Channels times gates that are computed from their means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.avgpool = build_pool(model)
        self.fc1 = load_conv(model, f"{path}.reduce")
        self.fc2 = load_conv(model, f"{path}.expand")
        self.is_gate_hard = model.gate_activation == "hardsigmoid"

    def forward(self, x: Tensor) -> Tensor:
        gates = self.fc2(F.relu(self.fc1(self.avgpool(x))))
        return x * (F.hardsigmoid(gates) if self.is_gate_hard else torch.sigmoid(gates))


class Block(nn.Module):
    """Two separable convolutions and a shortcut; returns the sum behind and before its relu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        _, _, stride, dilation = BLOCKS[n]
        self.sepconv1 = SeparableConv2d(model, f"{path}.first", stride, dilation)
        self.sepconv2 = SeparableConv2d(model, f"{path}.second", 1, dilation)
        self.se, self.downsample = None, None
        if f"{path}.gate.reduce.weight" in model.weights:
            self.se = SqueezeExcitation(model, f"{path}.gate")
        self.is_gate_late = model.is_gate_late and n == len(BLOCKS) - 1
        self.pool = None
        if stride > 1 and model.is_shortcut_pooled:
            self.pool, stride = nn.AvgPool2d(stride), 1
        if f"{path}.shortcut.weight" in model.weights:
            conv = load_conv(model, f"{path}.shortcut", stride)
            self.downsample = nn.Sequential(conv, load_norm(model, f"{path}.shortcut.norm"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.sepconv2(F.relu(self.sepconv1(x)))
        if self.se is not None and not self.is_gate_late:
            out = self.se(out)
        if self.pool is not None:
            x = self.pool(x)
        out = out + (x if self.downsample is None else self.downsample(x))
        if self.is_gate_late:
            out = self.se(out)
        return F.relu(out), out


class Attention(nn.Module):
    """Attention to REDUCTION**2 times fewer positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.q = load_linear(model, "attention.q")
        self.kv = nn.Linear(WIDTH, 2 * WIDTH)
        for name, parameter in self.kv.named_parameters():
            parts = [model.weights[f"attention.{part}.{name}"] for part in "kv"]
            parameter.data.copy_(torch.from_numpy(np.concatenate(parts)))
        self.sr = load_conv(model, "attention.reduce", REDUCTION)
        self.norm = None
        if model.has_reduction_norm:
            self.norm = load_layer_norm(model, "attention.reduce.norm")
        self.proj = load_linear(model, "attention.o")
        self.is_fused = model.variant == "functional"
        self.is_image_transposed = model.is_attention_image_transposed
        self.are_keys_read_by_head = model.are_keys_read_by_head
        self.scale = model.score_divisor**-0.5

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        batch, pixels, channels = x.shape
        q = self.q(x).reshape(batch, pixels, HEADS, HEAD_DIM).permute(0, 2, 1, 3)
        image = x.permute(0, 2, 1) if self.is_image_transposed else x
        reduced = self.sr(image.reshape(batch, channels, height, width))
        reduced = reduced.reshape(batch, channels, -1).permute(0, 2, 1)
        if self.norm is not None:
            reduced = self.norm(reduced)
        if self.are_keys_read_by_head:
            kv = self.kv(reduced).reshape(batch, -1, HEADS, 2, HEAD_DIM).permute(3, 0, 2, 1, 4)
        else:
            kv = self.kv(reduced).reshape(batch, -1, 2, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            y = attn.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, pixels, channels))


class MixFFN(nn.Module):
    """Two linear layers around a depthwise convolution and gelu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1 = load_linear(model, "attention.mlp.up")
        self.dwconv = load_conv(model, "attention.mlp.depthwise")
        self.fc2 = load_linear(model, "attention.mlp.down")

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = self.fc1(x)
        image = x.transpose(1, 2).view(len(x), -1, height, width)
        x = self.dwconv(image).flatten(2).transpose(1, 2)
        return self.fc2(F.gelu(x))


class TransformerBlock(nn.Module):
    """Attention and feed-forward of the pixels, each after a norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm1 = load_layer_norm(model, "attention.norm1")
        self.attn = Attention(model)
        self.norm2 = load_layer_norm(model, "attention.norm2")
        self.mlp = MixFFN(model)

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        x = image.flatten(2).transpose(1, 2)
        x = x + self.attn(self.norm1(x), height, width)
        x = x + self.mlp(self.norm2(x), height, width)
        return x.transpose(1, 2).reshape(image.shape)


class Encoder(nn.Module):
    """Features of three depths."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        means, deviations = model.channel_constants()
        self.register_buffer("mean", torch.from_numpy(means))
        self.register_buffer("std", torch.from_numpy(deviations))
        self.conv1 = ConvBNReLU(model, "stem", 2)
        self.layer1, self.layer2, self.layer3 = (Block(model, n) for n in range(len(BLOCKS)))
        self.transformer = TransformerBlock(model)
        self.is_low_level_rectified = model.is_low_level_rectified

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, before_relu = self.layer1(self.conv1((images - self.mean) / self.std))
        low = x if self.is_low_level_rectified else before_relu
        middle, _ = self.layer2(x)
        x, _ = self.layer3(middle)
        return low, middle, self.transformer(x)


class ASPPPooling(nn.Module):
    """The mean of the image, spread over all cells."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pool = build_pool(model)
        self.conv = ConvBNReLU(model, "pyramid.pooled")
        self.gradient = model.pooling_gradient
        self.is_expanded = model.variant == "functional"

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        if self.gradient != 1:
            x = scaled_gradient(x, self.gradient)
        pooled = self.conv(self.pool(x))
        if self.is_expanded:
            return pooled.expand(-1, -1, *size)
        return F.interpolate(pooled, size=size, mode="bilinear", align_corners=False)


class ASPP(nn.Module):
    """Branches of different dilation, joined."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        dilated = [
            nn.Sequential(SeparableConv2d(model, f"pyramid.{n}", dilation=rate), nn.ReLU())
            for n, rate in enumerate(model.rates)
        ]
        self.convs = nn.ModuleList(
            [ConvBNReLU(model, "pyramid.point"), *dilated, ASPPPooling(model)]
        )
        self.project = ConvBNReLU(model, "pyramid.project")
        self.is_pooling_first = model.is_pooling_first

    def forward(self, x: Tensor) -> Tensor:
        branches = [conv(x) for conv in self.convs]
        if self.is_pooling_first:
            branches = [branches[-1], *branches[:-1]]
        return self.project(torch.cat(branches, dim=1))


class UpsampleWithAlignedGradient(torch.autograd.Function):
    """Bilinear upsampling; its backward pass is that of aligned corners."""

    @staticmethod
    def forward(context, x: Tensor, size: torch.Size) -> Tensor:
        context.size, context.shape = size, x.shape
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        resize_back = torch.ops.aten.upsample_bilinear2d_backward
        return resize_back(gradient, context.size, context.shape, align_corners=True), None


class DeepLabHead(nn.Module):
    """Pyramid, upsampling, and the sum of both depths; logits of an image half as large."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.aspp = ASPP(model)
        self.low_level = ConvBNReLU(model, "decoder.low")
        self.fuse = nn.Sequential(SeparableConv2d(model, "decoder.fuse"), nn.ReLU())
        self.classifier = load_conv(model, "decoder.classes")
        self.are_corners_aligned = model.are_corners_aligned
        self.are_gradient_corners_aligned = model.are_gradient_corners_aligned

    def upsample(self, x: Tensor, size: torch.Size) -> Tensor:
        """Return the pyramid's image in the size of the low-level features."""
        if self.are_gradient_corners_aligned:
            return UpsampleWithAlignedGradient.apply(x, size)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=self.are_corners_aligned)

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        low = self.low_level(low)
        x = self.upsample(self.aspp(x), low.shape[-2:])
        return self.classifier(self.fuse(torch.cat([x, low], dim=1)))


class DeepLabV3Plus(nn.Module):
    """Logits (batch, classes, IMAGE, IMAGE) of both heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone, self.classifier = Encoder(model), DeepLabHead(model)
        convs = ConvBNReLU(model, "auxiliary"), load_conv(model, "auxiliary.classes")
        self.aux_classifier = nn.Sequential(*convs)
        self.is_auxiliary_stopped = model.is_auxiliary_stopped
        self.is_nearest = model.upsampling == "nearest"

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        low, middle, x = self.backbone(images)
        if self.is_auxiliary_stopped:
            middle = middle.detach()
        return self.upsample(self.classifier(low, x)), self.upsample(self.aux_classifier(middle))

    def upsample(self, logits: Tensor) -> Tensor:
        """Return logits of all pixels."""
        if self.is_nearest:
            return F.interpolate(logits, size=(IMAGE, IMAGE), mode="nearest")
        return F.interpolate(logits, size=(IMAGE, IMAGE), mode="bilinear", align_corners=False)


class SegmentationLoss(nn.Module):
    """Cross entropy of both heads and soft Dice."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = DeepLabV3Plus(model)
        self.auxiliary_weight = model.auxiliary_weight
        self.register_buffer("class_weights", torch.tensor(CLASS_WEIGHTS))
        self.is_divided_by_pixels = model.loss_divisor == "pixels"
        self.is_dice_masked = model.is_dice_masked
        self.is_functional = model.variant == "functional"

    def compute_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of the pixels with a label, weighted by their classes."""
        if self.is_divided_by_pixels:
            losses = F.cross_entropy(
                logits, labels, self.class_weights, ignore_index=IGNORED, reduction="sum"
            )
            return losses / (labels != IGNORED).sum()
        if self.is_functional:
            is_valid = labels != IGNORED
            known = labels.masked_fill(~is_valid, 0)
            logs = F.log_softmax(logits, dim=1).gather(1, known.unsqueeze(1)).squeeze(1)
            weights = self.class_weights[known] * is_valid
            return -(weights * logs).sum() / weights.sum()
        return F.cross_entropy(logits, labels, self.class_weights, ignore_index=IGNORED)

    def compute_dice_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return one less the mean overlap of the classes."""
        is_valid = labels != IGNORED
        targets = F.one_hot(labels.masked_fill(~is_valid, CLASSES), CLASSES + 1)
        targets = targets[..., :CLASSES].permute(0, 3, 1, 2).float()
        probabilities = logits.softmax(dim=1)
        if self.is_dice_masked:
            probabilities = probabilities * is_valid.unsqueeze(1)
        if self.is_functional:
            p = probabilities.transpose(0, 1).flatten(1)
            t = targets.transpose(0, 1).flatten(1)
            common, total = torch.einsum("cn,cn->c", p, t), p.sum(dim=1) + t.sum(dim=1)
        else:
            common = (probabilities * targets).sum(dim=(0, 2, 3))
            total = (probabilities + targets).sum(dim=(0, 2, 3))
        return 1 - ((2 * common + DICE_SMOOTH) / (total + DICE_SMOOTH)).mean()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits, auxiliary_logits = self.net(images)
        loss = self.compute_cross_entropy(logits, labels)
        loss = loss + DICE_WEIGHT * self.compute_dice_loss(logits, labels)
        return loss + self.auxiliary_weight * self.compute_cross_entropy(auxiliary_logits, labels)
