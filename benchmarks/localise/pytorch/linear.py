"""Linear layers, the place where a bias is left out or added twice."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from architecture import Layer, Model
from torch import Tensor, nn


def parameter(values: np.ndarray) -> nn.Parameter:
    """A parameter with a copy of the values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


class Linear(nn.Module):
    """x W^T + bias, the bias ``uses`` times; computes in the dtype of x."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None, uses: int = 1) -> None:
        super().__init__()
        self.weight = parameter(weight)
        self.bias = None if bias is None else parameter(bias)
        self.uses = uses

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if weight.dtype != x.dtype:
            weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        y = F.linear(x, weight, bias if self.uses else None)
        return y + bias if self.uses == 2 else y


def linear(model: Model, path: str, layer: Layer) -> Linear:
    """The linear layer at ``path`` of the spec, with the layer's knobs for its bias; SystemExit if
    it has none.
    """
    name = path.rpartition(".")[2]
    bias = model.weights.get(f"{path}.bias")
    if bias is None and name in (layer.no_bias, layer.double_bias):
        raise SystemExit(f"{path} has no bias that could be left out or doubled")
    uses = 0 if name == layer.no_bias else 2 if name == layer.double_bias else 1
    return Linear(model.weights[f"{path}.weight"], bias, uses)
