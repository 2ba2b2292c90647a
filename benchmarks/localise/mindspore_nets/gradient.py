"""Wrong gradients behind right values."""

from __future__ import annotations

from mindspore import nn, ops


class ScaledGradient(nn.Cell):
    """What comes in goes out; the gradient is multiplied on its way back."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def construct(self, x):
        return ops.identity(x)

    def bprop(self, x, out, gradient):
        return (gradient * self.factor,)
