"""A wrong gradient behind a right value."""

from __future__ import annotations

import torch
from torch import Tensor


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.factor, None


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """x; the gradient that comes back is multiplied by the factor."""
    return _ScaledGradient.apply(x, factor)
