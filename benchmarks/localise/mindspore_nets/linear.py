"""Linear layers, with the knobs of their bias."""

from __future__ import annotations

from architecture import Layer, Model
from mindspore import Tensor, nn


class Linear(nn.Dense):
    """``x @ weight.T``, plus the bias if the model has one."""

    def __init__(self, model: Model, name: str, layer: Layer | None = None) -> None:
        weight, bias = model.weights[f"{name}.weight"], model.weights.get(f"{name}.bias")
        last = name.rpartition(".")[2]
        has_bias = bias is not None and (layer is None or layer.no_bias != last)
        super().__init__(
            weight.shape[1],
            weight.shape[0],
            weight_init=Tensor(weight),
            bias_init=Tensor(bias) if has_bias else None,
            has_bias=has_bias,
        )
        self.twice = has_bias and layer is not None and layer.double_bias == last

    def construct(self, x):
        y = super().construct(x)
        return y + self.bias if self.twice else y
