"""Rotary position embedding; Su et al., arXiv:2104.09864."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations


def make_rotary_tables(
    positions: AnyArray, size: int, theta: float, interleaved: bool = False
) -> tuple[Floats, Floats]:
    """Return the cosine and sine tables, each (positions, size).

    The angle of pair i at position p is p theta**(-2 i / size). Angles are repeated in the two
    halves, or next to each other if ``interleaved``.
    """
    frequencies = theta ** (-2.0 * np.arange(size // 2) / size)
    angles = make_rotary_angles(positions, frequencies, interleaved)
    return np.cos(angles), np.sin(angles)


def make_rotary_angles(positions: AnyArray, frequencies: AnyArray, interleaved: bool) -> Floats:
    """Return the angles (positions, 2 * frequencies), each angle twice."""
    half: Floats = np.multiply.outer(positions.astype(np.float64), frequencies)
    if interleaved:
        return np.repeat(half, 2, axis=-1)
    return np.concatenate([half, half], axis=-1)


def rotate_halves(x: AnyArray) -> AnyArray:
    """Return (-second half, first half) of the last axis: pairs (i, i + size / 2)."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def rotate_pairs(x: AnyArray) -> AnyArray:
    """Return (-x1, x0, -x3, x2, ...): pairs (2 i, 2 i + 1)."""
    pairs: AnyArray = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1)
    return pairs.reshape(x.shape)


#: Order of the pairs in the last axis, by the name that reports use.
PAIR_LAYOUTS: Mapping[str, Callable[[AnyArray], AnyArray]] = {
    "halves": rotate_halves,
    "interleaved": rotate_pairs,
}


def apply_rotary(x: AnyArray, cos: AnyArray, sin: AnyArray, layout: str = "halves") -> Floats:
    """Return x cos + rotated(x) sin; the tables broadcast against x."""
    return np.asarray(x * cos + PAIR_LAYOUTS[layout](x) * sin, dtype=np.float64)


def compute_rope(call: Call) -> Interpretations:
    """Compute rope(x, cos, sin), in either layout."""
    if len(call.tensors) < 3:
        return
    x, cos, sin = call.tensors[:3]
    if x.shape[-1] % 2:
        return
    for layout in PAIR_LAYOUTS:
        yield layout, apply_rotary(x, cos, sin, layout)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"rope": compute_rope}
