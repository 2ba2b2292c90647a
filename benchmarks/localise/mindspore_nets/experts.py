"""A mixture of experts, dense: every expert sees every token, and its weight is 0 where it was not
chosen.
"""

from __future__ import annotations

import mindspore as ms
from architecture import Model
from mindspore import nn, ops

from mindspore_nets.feed_forward import SwiGLU, in_precision
from mindspore_nets.linear import Linear
from mindspore_nets.style import Named, Style


class Experts(Named):
    def __init__(self, model: Model, n: int, style: Style) -> None:
        size, layer, at = model.size, model.layers[n], f"layers.{n}.mlp"
        stand_ins = layer.expert_order or range(size.experts)
        experts = [
            in_precision(SwiGLU(model, f"{at}.experts.{e}", layer, style), layer) for e in stand_ins
        ]
        super().__init__(
            style.names,
            router=in_precision(Linear(model, f"{at}.router"), layer),
            experts=nn.CellList(experts),
        )
        self.count, self.top_k = size.experts, size.top_k
        self.sigmoid, self.normalised = layer.router_sigmoid, layer.normalise_router
        self.detached = layer.detached == "router"
        self.capacity, self.missing = layer.capacity, layer.missing_expert

    def weights(self, tokens):
        """Of each expert for each token: (tokens, experts)."""
        logits = self.router(tokens).astype(ms.float32)
        if self.detached:
            logits = ops.stop_gradient(logits)
        probs = ops.sigmoid(logits) if self.sigmoid else ops.softmax(logits, -1)
        values, indices = ops.topk(probs, self.top_k)
        if self.normalised:
            values = values / values.sum(-1, keepdims=True)
        chosen = ops.one_hot(indices, self.count, 1.0, 0.0)
        weights = (chosen * values.expand_dims(-1)).sum(1)
        if self.capacity:
            rank = ops.cumsum(chosen.sum(1), 0)
            weights = weights * (rank <= self.capacity).astype(weights.dtype)
        return weights

    def construct(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights = self.weights(tokens)
        out = None
        for e, expert in enumerate(self.experts):
            if e != self.missing:
                part = expert(tokens) * weights[:, e : e + 1]
                out = part if out is None else out + part
        return out.reshape(x.shape)
