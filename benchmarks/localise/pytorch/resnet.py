"""The small ResNet: a stem, stages of two convolutions with a short cut, a linear head."""

from __future__ import annotations

import torch.nn.functional as F
from architecture import Layer, Model
from torch import Tensor, nn

from pytorch.feed_forward import activated
from pytorch.linear import linear, parameter


class Convolution(nn.Module):
    """Without bias; as many zeros around as keep the edge at stride 1."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.weight = parameter(model.weights[f"{path}.weight"])
        self.stride, self.padding = stride, self.weight.shape[-1] // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)


def batch_norm(model: Model, path: str, layer: Layer) -> nn.BatchNorm2d:
    """Batch norm over training statistics."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    made = nn.BatchNorm2d(len(weight), eps=layer.stage_eps, momentum=layer.norm_momentum)
    made.weight, made.bias = parameter(weight), parameter(bias)
    return made


class Stage(nn.Module):
    """Half the edge, twice the channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        layer, at = model.layers[n], f"stages.{n}."
        self.layer = layer
        self.conv1 = Convolution(model, at + "conv1", stride=2)
        self.norm1 = batch_norm(model, at + "norm1", layer)
        self.conv2 = Convolution(model, at + "conv2")
        self.norm2 = batch_norm(model, at + "norm2", layer)
        self.short = Convolution(model, at + "short", stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = activated(self.norm1(self.conv1(x)), self.layer, "relu")
        y = self.norm2(self.conv2(y))
        if self.layer.residual_scale != 1:
            y = y * self.layer.residual_scale
        return activated(y + self.short(x), self.layer, "relu")


class ResNet(nn.Module):
    """Images (batch, 3, edge, edge) and class labels (batch,) to the loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.stem = Convolution(model, "stem")
        self.stem_norm = batch_norm(model, "stem_norm", Layer())
        self.stages = nn.ModuleList(Stage(model, n) for n in range(model.size.layers))
        self.head = linear(model, "head", head_layer(model))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(images)))
        for stage in self.stages:
            x = stage(x)
        reduction = "sum" if self.model.loss == "sum" else "mean"
        loss = F.cross_entropy(self.head(x.mean((2, 3))), labels, reduction=reduction)
        return loss if self.model.loss_scale == 1 else loss * self.model.loss_scale


def head_layer(model: Model) -> Layer:
    """The knobs that the head's bias obeys: whichever layer turns them."""
    return next(
        (layer for layer in model.layers if "head" in (layer.no_bias, layer.double_bias)), Layer()
    )
