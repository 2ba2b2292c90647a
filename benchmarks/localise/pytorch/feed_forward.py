"""Feed-forward layers: gated (swiglu) and plain (gelu)."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from architecture import Layer, Model
from torch import Tensor, nn

from pytorch.linear import Linear, linear
from pytorch.style import Style

#: The spec's names of the forms of gelu, and PyTorch's.
GELU: Mapping[str, str] = {"gelu_tanh": "tanh", "gelu_erf": "none"}


def activated(x: Tensor, layer: Layer, kind: str) -> Tensor:
    """The layer's activation, of ``kind`` unless it has another.

    Each function is looked up as it is called: a recorder may have replaced it since.
    """
    kind = layer.activation or kind
    y = F.gelu(x, approximate=GELU[kind]) if kind in GELU else getattr(F, kind)(x)
    return y.detach() if layer.detached == "gate" else y


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)); ``path`` is that of the layer's mlp or of one expert."""

    def __init__(self, model: Model, n: int, path: str, style: Style) -> None:
        super().__init__()
        self.layer = model.layers[n]
        self.fused = style.fused == "blocks"
        if self.fused:
            self.gate_up = Linear(
                model.fused(n, "gate_up", within=path.removeprefix(f"layers.{n}."))
            )
        else:
            self.gate, self.up = (
                linear(model, f"{path}.{name}", self.layer) for name in ("gate", "up")
            )
        self.down = linear(model, f"{path}.down", self.layer)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        return self.down(activated(gate, self.layer, "silu") * up)


class FeedForward(nn.Module):
    """down(gelu(up(x))), the tanh form."""

    def __init__(self, model: Model, n: int, path: str) -> None:
        super().__init__()
        self.layer = model.layers[n]
        self.up, self.down = (
            linear(model, f"{path}.{name}", self.layer) for name in ("up", "down")
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(activated(self.up(x), self.layer, "gelu_tanh"))
