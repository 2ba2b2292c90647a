"""A small residual network of images, with batch norm in training."""

from __future__ import annotations

from architecture import Layer, Model
from mindspore import Tensor, nn, ops

from mindspore_nets.feed_forward import activated
from mindspore_nets.linear import Linear


def convolution(model: Model, name: str, stride: int = 1) -> nn.Conv2d:
    """Of odd kernel, padded to keep the size."""
    weight = model.weights[f"{name}.weight"]
    rows, columns, kernel, _ = weight.shape
    return nn.Conv2d(
        columns,
        rows,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        weight_init=Tensor(weight),
        has_bias=False,
    )


def batch_norm(model: Model, name: str, layer: Layer) -> nn.BatchNorm2d:
    weight, bias = (Tensor(model.weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    momentum = 1 - layer.norm_momentum  # MindSpore's is the share of the old value
    return nn.BatchNorm2d(
        weight.shape[0], eps=layer.stage_eps, momentum=momentum, gamma_init=weight, beta_init=bias
    )


class Stage(nn.Cell):
    """Two convolutions and a short cut; half the pixels, twice the channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        layer, at = model.layers[n], f"stages.{n}"
        self.conv1 = convolution(model, f"{at}.conv1", 2)
        self.norm1 = batch_norm(model, f"{at}.norm1", layer)
        self.conv2 = convolution(model, f"{at}.conv2")
        self.norm2 = batch_norm(model, f"{at}.norm2", layer)
        self.short = convolution(model, f"{at}.short", 2)
        self.kind, self.residual_scale = layer.activation or "relu", layer.residual_scale

    def construct(self, x):
        y = self.norm2(self.conv2(activated(self.norm1(self.conv1(x)), self.kind)))
        if self.residual_scale != 1:
            y = y * self.residual_scale
        return activated(y + self.short(x), self.kind)


class ResNet(nn.Cell):
    """Logits, (batch, classes), of images (batch, 3, height, width)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = convolution(model, "stem")
        self.stem_norm = batch_norm(model, "stem_norm", Layer())
        self.stages = nn.CellList([Stage(model, n) for n in range(model.size.layers)])
        self.head = Linear(model, "head", head_layer(model))

    def construct(self, x):
        x = ops.relu(self.stem_norm(self.stem(x)))
        for stage in self.stages:
            x = stage(x)
        return self.head(ops.mean(x, (2, 3)))


def head_layer(model: Model) -> Layer:
    """The stage whose knobs speak of the head, which belongs to none."""
    return next(
        (layer for layer in model.layers if "head" in (layer.no_bias, layer.double_bias)), Layer()
    )


class ClassLoss(nn.Cell):
    """The loss of one batch: cross entropy over the classes, the mean of all images."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ResNet(model)
        self.summed, self.scale = model.loss == "sum", model.loss_scale

    def construct(self, images, labels):
        loss = ops.cross_entropy(
            self.network(images), labels, reduction="sum" if self.summed else "mean"
        )
        return loss * self.scale if self.scale != 1 else loss
