"""Rotary positions."""

from __future__ import annotations

import numpy as np
from architecture import Layer, Model
from mindspore import Tensor, nn, ops


class Rotary(nn.Cell):
    """Turns the last axis of (batch, heads, seq, dim) by each token's position."""

    def __init__(self, model: Model, layer: Layer) -> None:
        super().__init__()
        tables = model.rope(layer)
        self.half = tables[0].shape[1] // 2
        self.interleaved = layer.rope_interleaved
        if self.interleaved:
            tables = tuple(np.repeat(table[:, : self.half], 2, axis=1) for table in tables)
        self.cos, self.sin = (Tensor(table) for table in tables)

    def construct(self, x):
        if self.interleaved:
            turned = ops.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
        else:
            turned = ops.concat((-x[..., self.half :], x[..., : self.half]), -1)
        return x * self.cos + turned * self.sin
