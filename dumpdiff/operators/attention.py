"""Attention composed of products and a softmax; Vaswani et al., arXiv:1706.03762."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats
from .call import Call, Interpretations
from .softmax import softmax


def make_causal_mask(n_queries: int, n_keys: int, first_hidden: int = 1) -> Flags:
    """Return a (queries, keys) mask, true where a key is hidden from a query.

    Query i sees the keys up to i + ``first_hidden`` - 1 (aligned at the top left).
    """
    hidden: Flags = np.triu(np.ones((n_queries, n_keys), dtype=bool), first_hidden)
    return hidden


def repeat_groups(x: AnyArray, n_heads: int) -> AnyArray:
    """Repeat keys or values (..., groups, length, size) for ``n_heads`` heads; arXiv:2305.13245."""
    n_groups = x.shape[-3]
    if n_groups == n_heads:
        return x
    return np.repeat(x, n_heads // n_groups, axis=-3)


def attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    scale: float,
    hidden: AnyArray | None = None,
    axis: int = -1,
) -> Floats:
    """Return softmax(q k^T scale) v.

    ``hidden`` is a mask (true: not seen), or numbers that are added to the scores.
    """
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    if hidden is not None and hidden.dtype == bool:
        scores = np.where(hidden, -np.inf, scores)
    elif hidden is not None:
        scores = scores + hidden
    result: Floats = np.matmul(softmax(scores, axis), v)
    return result


def compute_attention(call: Call) -> Interpretations:
    """Compute a fused attention call on (batch, heads, length, size).

    A recorded mask is used in either sense; without one, a causal mask and no mask are tried.
    """
    if len(call.tensors) < 3:
        return
    q, k, v, *extra_tensors = call.tensors
    if not _has_attention_shapes(q, k, v):
        return
    n_heads = q.shape[-3]
    k, v = repeat_groups(k, n_heads), repeat_groups(v, n_heads)
    scale = call.get_number("scale", "scale_value", "scaling", default=q.shape[-1] ** -0.5)
    score_shape = q.shape[-2], k.shape[-2]
    mask_candidates = (*extra_tensors, *call.keywords.values())
    masks = [
        array for array in mask_candidates if _fits_scores(array, (*q.shape[:-2], *score_shape))
    ]
    if masks:
        yield from _apply_recorded_mask(q, k, v, scale, masks[0])
        return
    is_causal = bool(call.get_number("is_causal", default=0.0))
    if is_causal:
        yield "causal", attention(q, k, v, scale, make_causal_mask(*score_shape))
    yield "no mask", attention(q, k, v, scale)
    if not is_causal:
        yield "causal", attention(q, k, v, scale, make_causal_mask(*score_shape))


def _fits_scores(array: AnyArray, shape: tuple[int, ...]) -> bool:
    """Return whether a mask is of scores: of all of them, or of the keys for all queries."""
    if not 2 <= array.ndim <= len(shape) or array.shape[-1] != shape[-1]:
        return False
    lengths = zip(array.shape[::-1], shape[::-1], strict=False)
    return all(length in (1, other) for length, other in lengths)


def _has_attention_shapes(q: AnyArray, k: AnyArray, v: AnyArray) -> bool:
    if q.ndim < 3:
        return False
    has_one_head_size = q.shape[-1] == k.shape[-1]
    has_a_value_per_key = k.shape[:-1] == v.shape[:-1]
    return has_one_head_size and has_a_value_per_key and q.shape[-3] % k.shape[-3] == 0


def _apply_recorded_mask(
    q: AnyArray, k: AnyArray, v: AnyArray, scale: float, mask: AnyArray
) -> Interpretations:
    if mask.dtype.kind == "f":
        yield "mask added", attention(q, k, v, scale, mask)
        return
    yield "mask keeps", attention(q, k, v, scale, ~mask.astype(bool))
    yield "mask hides", attention(q, k, v, scale, mask.astype(bool))


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"attention": compute_attention}
