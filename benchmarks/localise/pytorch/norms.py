"""RMS norm and layer norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from architecture import Model
from torch import Tensor, nn

from pytorch.linear import parameter


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, plus bias where there is one."""

    def __init__(self, model: Model, path: str, eps: float) -> None:
        super().__init__()
        bias = model.weights.get(f"{path}.bias")
        self.weight = parameter(model.weights[f"{path}.weight"])
        self.bias = None if bias is None else parameter(bias)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return y if self.bias is None else y + self.bias


class LayerNorm(RMSNorm):
    """The same with the mean taken away first, the biased variance, in one call."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def norm(model: Model, path: str, eps: float, kind: str = "") -> RMSNorm:
    """The norm at ``path`` of the spec, of the model's kind unless told."""
    return (LayerNorm if (kind or model.size.norm) == "layer" else RMSNorm)(model, path, eps)
