"""Rotary position embedding; Su et al., arXiv:2104.09864."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings


def tables(
    positions: AnyArray, size: int, theta: float, interleaved: bool = False
) -> tuple[Floats, Floats]:
    """Cosine and sine, (positions, size): angle of pair i at position p is p theta**(-2 i / size).

    Angles are repeated in the two halves, or next to each other if ``interleaved``.
    """
    half: Floats = np.multiply.outer(
        positions.astype(np.float64), theta ** (-2.0 * np.arange(size // 2) / size)
    )
    angles = np.repeat(half, 2, axis=-1) if interleaved else np.concatenate([half, half], axis=-1)
    return np.cos(angles), np.sin(angles)


def turned_halves(x: AnyArray) -> AnyArray:
    """(-second half, first half) of the last axis: pairs (i, i + size / 2)."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def turned_pairs(x: AnyArray) -> AnyArray:
    """(-x1, x0, -x3, x2, ...): pairs (2 i, 2 i + 1)."""
    pairs: AnyArray = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1)
    return pairs.reshape(x.shape)


#: How the pairs lie in the last axis, under the names that a report uses.
LAYOUTS: Mapping[str, Callable[[AnyArray], AnyArray]] = {
    "halves": turned_halves,
    "interleaved": turned_pairs,
}


def rotate(x: AnyArray, cos: AnyArray, sin: AnyArray, layout: str = "halves") -> Floats:
    """x cos + turned(x) sin; the tables broadcast against x."""
    return np.asarray(x * cos + LAYOUTS[layout](x) * sin, dtype=np.float64)


def recorded(call: Call) -> Readings:
    """rope(x, cos, sin), in either layout."""
    if len(call.tensors) >= 3 and call.tensors[0].shape[-1] % 2 == 0:
        x, cos, sin = call.tensors[:3]
        for layout in LAYOUTS:
            yield layout, rotate(x, cos, sin, layout)


TABLE: Mapping[str, Callable[[Call], Readings]] = {"rope": recorded}
