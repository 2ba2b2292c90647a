"""RMS norm and layer norm over the last axis."""

from __future__ import annotations

from architecture import Model
from mindspore import Parameter, Tensor, nn, ops


class RMSNorm(nn.Cell):
    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(weight)
        self.has_bias, self.eps = bias is not None, eps
        if self.has_bias:
            self.bias = Parameter(bias)

    def construct(self, x):
        y = x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps) * self.weight
        return y + self.bias if self.has_bias else y


class UnbiasedLayerNorm(nn.Cell):
    """Layer norm where the model has no bias, which MindSpore's operator demands."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(weight)
        self.eps = eps

    def construct(self, x):
        centred = x - ops.mean(x, -1, True)
        return centred * ops.rsqrt(ops.mean(ops.square(centred), -1, True) + self.eps) * self.weight


def norm(model: Model, name: str, eps: float, kind: str = "") -> nn.Cell:
    """The norm with weights ``name``, of the model's kind or of another."""
    weight = Tensor(model.weights[f"{name}.weight"])
    bias = Tensor(model.weights[f"{name}.bias"]) if f"{name}.bias" in model.weights else None
    if (kind or model.size.norm) == "rms":
        return RMSNorm(weight, bias, eps)
    if bias is None:
        return UnbiasedLayerNorm(weight, eps)
    return nn.LayerNorm(weight.shape, gamma_init=weight, beta_init=bias, epsilon=eps)
