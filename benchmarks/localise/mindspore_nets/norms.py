"""RMS norm and layer norm over the last axis."""

from __future__ import annotations

from architecture import Model
from mindspore import Parameter, Tensor, nn, ops

from mindspore_nets.gradient import ScaledGradient


class RMSNorm(nn.Cell):
    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(weight)
        self.bias = Parameter(bias) if bias is not None else None
        self.eps = eps

    def construct(self, x):
        y = x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps) * self.weight
        return y if self.bias is None else y + self.bias


class ScaledWeightGradient(RMSNorm):
    """The gradient of the weight multiplied on its way back."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float, factor: float) -> None:
        super().__init__(weight, bias, eps)
        self.scaled_gradient = ScaledGradient(factor)

    def construct(self, x):
        weight = self.scaled_gradient(self.weight)
        y = x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps) * weight
        return y if self.bias is None else y + self.bias


class UnbiasedLayerNorm(nn.Cell):
    """Layer norm where the model has no bias, which MindSpore's operator demands."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(weight)
        self.eps = eps

    def construct(self, x):
        centred = x - ops.mean(x, -1, True)
        return centred * ops.rsqrt(ops.mean(ops.square(centred), -1, True) + self.eps) * self.weight


def norm(
    model: Model, name: str, eps: float, kind: str = "", weight_gradient: float = 1.0
) -> nn.Cell:
    """The norm with weights ``name``, of the model's kind or of another; ``weight_gradient``: RMS
    norm alone.
    """
    weight = Tensor(model.weights[f"{name}.weight"])
    bias = Tensor(model.weights[f"{name}.bias"]) if f"{name}.bias" in model.weights else None
    if (kind or model.size.norm) == "rms":
        if weight_gradient != 1:
            return ScaledWeightGradient(weight, bias, eps, weight_gradient)
        return RMSNorm(weight, bias, eps)
    if weight_gradient != 1:
        raise SystemExit(
            "norm_gradient: the gradient of a layer norm's weight comes out of one operator with "
            "two more"
        )
    if bias is None:
        return UnbiasedLayerNorm(weight, eps)
    return nn.LayerNorm(weight.shape, gamma_init=weight, beta_init=bias, epsilon=eps)
