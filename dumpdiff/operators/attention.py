"""Attention composed of products and a softmax; Vaswani et al., arXiv:1706.03762."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats
from .call import Call, Readings
from .softmax import softmax


def causal(queries: int, keys: int, first_hidden: int = 1) -> Flags:
    """(queries, keys) true where hidden; query i sees keys up to i + ``first_hidden`` - 1 (aligned at the top left)."""
    hidden: Flags = np.triu(np.ones((queries, keys), dtype=bool), first_hidden)
    return hidden


def grouped(x: AnyArray, heads: int) -> AnyArray:
    """Keys or values (..., groups, length, size) repeated for ``heads`` query heads; arXiv:2305.13245."""
    return x if x.shape[-3] == heads else np.repeat(x, heads // x.shape[-3], axis=-3)


def attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    scale: float,
    hidden: AnyArray | None = None,
    axis: int = -1,
) -> Floats:
    """softmax(q k^T scale) v; ``hidden`` is a mask (true: not seen) or numbers added to the scores."""
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores) if hidden.dtype == bool else scores + hidden
    result: Floats = np.matmul(softmax(scores, axis), v)
    return result


def recorded(call: Call) -> Readings:
    """A fused call on (batch, heads, length, size): with the recorded mask (either sense), else causal, else none."""
    if len(call.tensors) < 3:
        return
    q, k, v, *more = call.tensors
    if (
        q.ndim < 3
        or q.shape[-1] != k.shape[-1]
        or k.shape[:-1] != v.shape[:-1]
        or q.shape[-3] % k.shape[-3]
    ):
        return
    k, v = grouped(k, q.shape[-3]), grouped(v, q.shape[-3])
    scale = call.number("scale", "scale_value", "scaling", default=q.shape[-1] ** -0.5)
    length = q.shape[-2], k.shape[-2]
    masks = [array for array in (*more, *call.named.values()) if array.shape[-2:] == length]
    if masks:
        mask = masks[0]
        if mask.dtype.kind == "f":
            yield "mask added", attention(q, k, v, scale, mask)
        else:
            yield "mask keeps", attention(q, k, v, scale, ~mask.astype(bool))
            yield "mask hides", attention(q, k, v, scale, mask.astype(bool))
        return
    if call.number("is_causal", default=0.0):
        yield "causal", attention(q, k, v, scale, causal(*length))
    yield "no mask", attention(q, k, v, scale)
    if not call.number("is_causal", default=0.0):
        yield "causal", attention(q, k, v, scale, causal(*length))


TABLE: Mapping[str, Callable[[Call], Readings]] = {"attention": recorded}
