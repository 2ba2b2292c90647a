"""How far apart two norms may be: printed digits, rounding of the dtype, and what this very pair shows of noise.

A fault moves some norms, or all by much; rounding moves all by little. So the noise of a pair is taken from the median
of its relative differences, but never believed beyond what rounding can do in the dtype that the models use. Where that
is not known, what lies between float32's limit and bfloat16's cannot be told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Flags, Floats
from ..model.dtypes import unit_roundoff
from .row import Row, State
from .side import Norms

#: Times the median difference: of normal noise the median is 0.67 standard deviations, so this is 5.4 of them.
_MEDIANS = 8.0
#: (least, most) that rounding is taken to move a norm by, relatively. float32: on CPU 1e-7 to 1e-6 for a few layers;
#: the limit leaves room for a hundred layers and other orders of summation. Half precision: half a unit roundoff, and a
#: dozen units for what adds up over layers. Judgement, held against recorded pairs.
_LIMITS = {
    "float32": (1e-5, 1e-3),
    "float16": (2.0**-12, 2.0**-7),
    "bfloat16": (2.0**-9, 5e-2),
    "": (1e-5, 5e-2),
}
#: A norm of which digits leave more open than this share cannot be compared.
_COARSE = 0.1
#: All norms off by one factor: so many are, as near to it as float32 rounds at most or the digits say.
_ALL, _LEAST, _SPREAD = 0.8, 4, 1e-3
#: Units roundoff of float32 of the global norm below which a norm is rounding alone: sums over thousands of tokens.
_DUST = 8 * unit_roundoff("float32")
#: The gradient of a key's bias is zero but for rounding, since softmax does not change if all scores of a query move;
#: not so where positions rotate keys. So it counts as zero if it is this share of the query's bias on both sides.
_VANISHES, _LEFT = "attention.k.bias", 1e-2


@dataclass(frozen=True)
class Judged:
    """Arrays have one entry per pair; ``target`` and ``reference`` are the norms."""

    target: Floats
    reference: Floats
    relative: Floats
    tolerance: Floats
    states: tuple[State, ...]
    allowed: float  #: what rounding surely does, relative: up to it norms agree
    noise: float  #: what it may do in the least exact precision that they may have: beyond it norms differ
    factor: float
    precision: str


def precision_of(target: Norms, reference: Norms, said: str) -> str:
    """The dtype by which to judge: what was said, else the less exact of both sides', '' if one is not known."""
    known = [side.precision for side in (target, reference) if side.precision in _LIMITS]
    low = [name for name in known if name in ("bfloat16", "float16")]
    if said or low:
        return said or max(low, key=unit_roundoff)
    return "float32" if known == ["float32", "float32"] else ""


def judge(values: tuple[Floats, Floats, Floats], precision: str) -> Judged:
    """Judge pairs of norms of which digits leave the third array open."""
    target, reference, slack = values
    with np.errstate(all="ignore"):
        open_ = np.where(reference > 0, slack / reference, np.where(slack > 0, np.inf, 0.0))
        factor = _factor(target, reference, open_)
        gap = np.abs(target / factor - reference)
        relative = np.where(gap == 0, 0.0, gap / reference)  # infinite where the reference is zero
    dust = gap <= _DUST * math.hypot(*reference[np.isfinite(reference)])  # which does not overflow
    least, most = _LIMITS.get(precision, _LIMITS[""])
    fine = np.isfinite(relative) & (open_ <= _COARSE)
    excess = np.maximum(relative[fine] - open_[fine], 0)
    own = _MEDIANS * float(np.median(excess)) if len(excess) else 0.0
    noise = max(least, min(own, most))
    allowed = noise if precision else max(least, min(own, _LIMITS["float32"][1]))
    tolerance = open_ + allowed
    finite = np.isfinite(target).astype(int) + np.isfinite(reference)
    states = np.select(
        [
            finite == 0,
            finite == 1,
            (relative > open_ + noise) & ~dust,
            open_ > _COARSE,
            (relative <= tolerance) | dust,
        ],
        ["unclear", "differ", "differ", "coarse", "agree"],
        "unclear",
    )
    return Judged(
        target,
        reference,
        relative,
        tolerance,
        tuple(states.tolist()),
        allowed,
        noise,
        factor,
        precision,
    )


def _factor(target: Floats, reference: Floats, open_: Floats) -> float:
    """The factor that nearly all pairs have in common, 1 if there is none."""
    fine: Flags = (
        np.isfinite(target)
        & np.isfinite(reference)
        & (target > 0)
        & (reference > 0)
        & (open_ <= _COARSE)
    )
    if np.count_nonzero(fine) < _LEAST:
        return 1.0
    ratios, room = np.log(target[fine] / reference[fine]), open_[fine] + _SPREAD
    best = float(ratios[np.argsort(room, kind="stable")[: max(1, len(room) // 4)]].mean())
    middle = float(np.median(ratios))
    for scale in (best, middle):
        if (
            np.mean(np.abs(ratios - scale) <= room) >= _ALL
            and np.mean(np.abs(ratios) > 2 * room) >= _ALL
        ):
            return float(np.exp(scale))
    return 1.0


def without_vanishing(rows: Sequence[Row]) -> list[Row]:
    """Rows, where norms that are zero but for rounding agree however far apart they are."""
    by_path = {row.path: row for row in rows}
    found = []
    for row in rows:
        beside = (
            by_path.get(row.path.replace(".k.", ".q.")) if row.path.endswith(_VANISHES) else None
        )
        vanishes = (
            beside is not None
            and row.target_norm < _LEFT * beside.target_norm
            and row.reference_norm < _LEFT * beside.reference_norm
        )
        found.append(replace(row, state="agree") if vanishes else row)
    return found
