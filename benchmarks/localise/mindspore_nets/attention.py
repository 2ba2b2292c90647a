"""Self-attention with one q, k, v projection each, plain or with grouped queries."""

from __future__ import annotations

from architecture import Model
from mindspore import Tensor, ops

from mindspore_nets.core import CoreAttention
from mindspore_nets.linear import Linear
from mindspore_nets.rotary import Rotary
from mindspore_nets.style import Named, Style


class Attention(Named):
    def __init__(self, model: Model, n: int, style: Style) -> None:
        size, layer = model.size, model.layers[n]
        super().__init__(
            style.names,
            **{part: Linear(model, f"layers.{n}.attention.{part}", layer) for part in "qkvo"},
            core=CoreAttention(model, layer, style),
            **({"rotary_emb": Rotary(model, layer)} if size.positions == "rope" else {}),
        )
        self.head_dim, self.repeats = size.head_dim, size.heads // size.kv_heads
        self.rotated, self.values_first = size.positions == "rope", style.order == "vkq"
        self.keys_detached, self.dropped = layer.detached == "k", layer.dropout > 0
        if self.dropped:
            self.dropout_mask = Tensor(model.dropout_mask(layer))

    def heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], -1, self.head_dim).transpose(0, 2, 1, 3)

    def repeated(self, x):
        """Each head of keys or values for all queries of its group."""
        if self.repeats == 1:
            return x
        batch, heads, seq, dim = x.shape
        tiled = ops.tile(x.reshape(batch, heads, 1, seq, dim), (1, 1, self.repeats, 1, 1))
        return tiled.reshape(batch, heads * self.repeats, seq, dim)

    def construct(self, x):
        if self.values_first:
            v, k, q = self.heads(self.v(x)), self.heads(self.k(x)), self.heads(self.q(x))
        else:
            q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        if self.keys_detached:
            k = ops.stop_gradient(k)
        if self.rotated:
            q, k = self.rotary_emb(q), self.rotary_emb(k)
        out = self.core(q, self.repeated(k), self.repeated(v))
        if self.dropped:
            out = out * self.dropout_mask
        return self.o(out)
