"""Attention proper: scores, mask, softmax, values."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from architecture import Layer, Model
from mindspore import Tensor, nn, ops

from mindspore_nets.style import Style

MASKED = -1e9


class CoreAttention(nn.Cell):
    """From q, k (batch, heads, seq, dim) and v (batch, heads, seq, head_dim) to (batch, seq, heads
    * head_dim).
    """

    def __init__(self, model: Model, layer: Layer, style: Style) -> None:
        super().__init__()
        size = model.size
        self.scale = (size.head_dim + size.rope_dim) ** -0.5 * layer.score_scale
        self.merged, self.half, self.axis = (
            style.attention == "bmm",
            layer.softmax_half,
            layer.softmax_axis,
        )
        masked = model.mask(layer)
        self.masked = Tensor(masked)
        self.mask = Tensor(np.where(masked, MASKED, 0).astype(np.float32))

    def plain(self, q, k, v):
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * self.scale + self.mask
        if self.half:
            return ops.matmul(
                ops.softmax(scores.astype(ms.float16), self.axis).astype(scores.dtype), v
            )
        return ops.matmul(ops.softmax(scores, self.axis), v)

    def bmm(self, q, k, v):
        """Batch and heads merged, the query scaled first, softmax spelled out."""
        batch, heads, seq, dim = q.shape
        q, k = ((x.reshape(batch * heads, seq, dim)) for x in (q * self.scale, k))
        scores = ops.bmm(q, k.transpose(0, 2, 1)).masked_fill(self.masked, MASKED)
        if self.half:
            scores = scores.astype(ms.float16)
        raised = ops.exp(scores - ops.amax(scores, self.axis, True))
        probs = (raised / raised.sum(self.axis, keepdims=True)).astype(v.dtype)
        return ops.bmm(probs, v.reshape(batch * heads, seq, -1)).reshape(batch, heads, seq, -1)

    def construct(self, q, k, v):
        out = self.bmm(q, k, v) if self.merged else self.plain(q, k, v)
        return out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)
