"""From a canonical kind to its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..model.arrays import AnyArray, Floats
from . import (
    activations,
    attention,
    elementwise,
    linear,
    losses,
    norms,
    reductions,
    rotary,
    selection,
    softmax,
)
from .call import Call, Readings, call_of

#: Canonical kind -> its readings of a call.
KINDS: Mapping[str, Callable[[Call], Readings]] = {
    **elementwise.TABLE, **activations.TABLE, **norms.TABLE, **reductions.TABLE, **softmax.TABLE, **linear.TABLE,
    **rotary.TABLE, **attention.TABLE, **losses.TABLE, **selection.TABLE,
}  # fmt: skip


def recompute(
    kind: str,
    inputs: Sequence[AnyArray | float],
    named: Mapping[str, AnyArray | float] | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    like: AnyArray | None = None,
) -> Floats | None:
    """What an operator of canonical ``kind`` makes of ``inputs`` (arrays, and immediate numbers as floats), in float64.

    ``named`` are keyword arguments (dim, eps, scale); ``shape`` is the output's, where it was recorded: it says which
    axes a reduction ran over. Where the record leaves several readings (a transposed operand, either form of gelu)
    ``like``, the recorded output, chooses the nearest; without it the likeliest is taken. None if the kind is not known
    here or the inputs do not fit it.
    """
    if like is not None:
        shape = like.shape
    choices = list(readings(kind, inputs, named, shape=shape))
    if not choices:
        return None
    if like is None or len(choices) == 1:
        return choices[0][1]
    return min((made for _, made in choices), key=lambda made: gap(made, like))


def readings(
    kind: str,
    inputs: Sequence[AnyArray | float],
    named: Mapping[str, AnyArray | float] | None = None,
    *,
    shape: tuple[int, ...] | None = None,
) -> Readings:
    """Every reading of a call, the likeliest first; those whose result has another number of elements are left out."""
    if kind not in KINDS:
        return
    call = call_of(kind, inputs, named, shape)
    with np.errstate(all="ignore"):
        try:
            for name, made in KINDS[kind](call):
                if shape is None or made.size == int(np.prod(shape, dtype=np.int64)):
                    yield name, made if shape is None else made.reshape(shape)
        except (ValueError, IndexError, TypeError, FloatingPointError):
            return  # shapes that do not go together: the record is not the call as it ran


def gap(made: AnyArray, like: AnyArray) -> float:
    """||made - like|| / ||like|| over what is finite in both; infinite if the sizes differ."""
    if made.size != like.size:
        return float("inf")
    a, b = made.reshape(-1).astype(np.float64), like.reshape(-1).astype(np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    if not known.all():
        a, b = a[known], b[known]
    difference, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    return difference / size if size else (0.0 if difference == 0 else float("inf"))
