"""The feed-forward part of a block: swiglu, or two linear layers around a gelu."""

from __future__ import annotations

import mindspore as ms
from architecture import Layer, Model
from mindspore import nn, ops

from mindspore_nets.linear import Linear
from mindspore_nets.style import Named, Style


def activated(x, kind):
    """One of the activations, by the name that ``Layer.activation`` has for it."""
    if kind == "silu":
        return ops.silu(x)
    if kind == "relu":
        return ops.relu(x)
    return ops.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


class SwiGLU(Named):
    def __init__(self, model: Model, at: str, layer: Layer, style: Style) -> None:
        super().__init__(
            style.names,
            **{part: Linear(model, f"{at}.{part}", layer) for part in ("gate", "up", "down")},
        )
        self.kind, self.detached = layer.activation or "silu", layer.detached == "gate"

    def construct(self, x):
        gate = activated(self.gate(x), self.kind)
        if self.detached:
            gate = ops.stop_gradient(gate)
        return self.down(gate * self.up(x))


class Gelu(Named):
    def __init__(self, model: Model, at: str, layer: Layer, style: Style) -> None:
        super().__init__(
            style.names,
            widen=Linear(model, f"{at}.up", layer),
            narrow=Linear(model, f"{at}.down", layer),
        )
        self.kind, self.detached = layer.activation or "gelu_tanh", layer.detached == "gate"

    def construct(self, x):
        inner = activated(self.widen(x), self.kind)
        if self.detached:
            inner = ops.stop_gradient(inner)
        return self.narrow(inner)


def in_precision(mlp: nn.Cell, layer: Layer) -> nn.Cell:
    """The same cell, told to cast its inputs and weights; exits if the CPU cannot."""
    if layer.compute == "bfloat16":
        raise SystemExit(
            "MindSpore has no bfloat16 kernels on CPU: --fault with compute bfloat16 cannot be "
            "recorded"
        )
    return mlp.to_float(ms.float16) if layer.compute == "float16" else mlp
