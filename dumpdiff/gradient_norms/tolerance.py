"""How much two norms may differ: printed digits, rounding of the dtype, and the noise of this pair.

A fault changes some norms, or all of them by a lot; rounding changes all norms by a little. So the
noise of a pair of runs is estimated from the median of its relative differences, and limited to
what rounding can cause in the dtype of the models. If the dtype is unknown, differences between
the limits of float32 and bfloat16 are inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Flags, Floats
from ..model.dtypes import HALF_PRECISIONS, get_unit_roundoff
from .norms import Norms
from .row import Row, State

#: Noise in multiples of the median difference. The median of normal noise is 0.67 standard
#: deviations, so this is 5.4 standard deviations.
_MEDIAN_FACTOR = 8.0
#: (least, most) relative noise of a norm. float32: on CPU it is 1e-7 to 1e-6 for a few layers; the
#: upper limit leaves room for a hundred layers and other orders of summation. Half precision: half
#: a unit roundoff, and a dozen units for what adds up over layers. These are judgements, checked on
#: recorded pairs.
_NOISE_LIMITS = {
    "float32": (1e-5, 1e-3),
    "float16": (2.0**-12, 2.0**-7),
    "bfloat16": (2.0**-9, 5e-2),
    "": (1e-5, 5e-2),
}
#: A norm cannot be compared if its printed digits leave a larger relative error than this.
_COARSE = 0.1
#: A factor between the sides is accepted if this share of the norms has it and is not 1 by itself.
_FACTOR_SHARE = 0.8
#: Fewer norms than this show no factor.
_MIN_FACTOR_NORMS = 4
#: Spread of a factor: the most that float32 rounds, beyond the printed digits.
_FACTOR_SPREAD = 1e-3
#: A difference below this share of the global norm is rounding only: some unit roundoffs of
#: float32, for sums over thousands of tokens.
_ROUNDING_SHARE = 8 * get_unit_roundoff("float32")
#: The gradient of a key's bias is zero except for rounding, since softmax does not change if all
#: scores of a query are shifted. This is not true if positions rotate keys. So it counts as zero
#: only if it is less than this share of the query's bias on both sides.
_KEY_BIAS, _VANISHING_SHARE = "attention.k.bias", 1e-2


@dataclass(frozen=True)
class Judgement:
    """The judgement of all pairs of norms. Arrays have one entry per pair."""

    target: Floats  #: norms
    reference: Floats  #: norms
    relative: Floats  #: relative differences after division by ``factor``
    tolerance: Floats  #: up to this relative difference a pair agrees
    states: tuple[State, ...]
    agree_limit: float  #: relative noise up to which norms agree
    differ_limit: float  #: noise in the least exact possible precision; beyond it norms differ
    factor: float
    precision: str


def get_noise_limits(precision: str) -> tuple[float, float]:
    """Return the least and the most relative noise of a norm in a dtype; '' is unknown."""
    return _NOISE_LIMITS.get(precision, _NOISE_LIMITS[""])


def choose_precision(target: Norms, reference: Norms, requested_precision: str) -> str:
    """Return the dtype that sets the noise limits, '' if it is unknown.

    This is the requested one, else the less exact one of both sides.
    """
    if requested_precision:
        return requested_precision
    precisions = (target.precision, reference.precision)
    half_precisions = [name for name in precisions if name in HALF_PRECISIONS]
    if half_precisions:
        return max(half_precisions, key=get_unit_roundoff)
    if precisions == ("float32", "float32"):
        return "float32"
    return ""


def judge_norms(pair_norms: tuple[Floats, Floats, Floats], precision: str) -> Judgement:
    """Judge pairs of norms: arrays of the target, of the reference, and of rounding errors."""
    target, reference, rounding = pair_norms
    with np.errstate(all="ignore"):
        zero_rounding = np.where(rounding > 0, np.inf, 0.0)
        relative_rounding = np.where(reference > 0, rounding / reference, zero_rounding)
        factor = _find_factor(target, reference, relative_rounding)
        difference = np.abs(target / factor - reference)
        relative = np.where(difference == 0, 0.0, difference / reference)
    # hypot does not overflow where squares would.
    global_norm = math.hypot(*reference[np.isfinite(reference)])
    is_negligible = difference <= _ROUNDING_SHARE * global_norm
    min_noise, max_noise = get_noise_limits(precision)
    is_fine = np.isfinite(relative) & (relative_rounding <= _COARSE)
    excess = np.maximum(relative[is_fine] - relative_rounding[is_fine], 0)
    measured_noise = _MEDIAN_FACTOR * float(np.median(excess)) if len(excess) else 0.0
    differ_limit = max(min_noise, min(measured_noise, max_noise))
    agree_limit = differ_limit
    if not precision:
        agree_limit = max(min_noise, min(measured_noise, _NOISE_LIMITS["float32"][1]))
    tolerance = relative_rounding + agree_limit
    n_finite = np.isfinite(target).astype(int) + np.isfinite(reference)
    states = np.select(
        [
            n_finite == 0,
            n_finite == 1,
            (relative > relative_rounding + differ_limit) & ~is_negligible,
            relative_rounding > _COARSE,
            (relative <= tolerance) | is_negligible,
        ],
        ["inconclusive", "differ", "differ", "coarse", "agree"],
        "inconclusive",
    )
    return Judgement(
        target=target,
        reference=reference,
        relative=relative,
        tolerance=tolerance,
        states=tuple(states.tolist()),
        agree_limit=agree_limit,
        differ_limit=differ_limit,
        factor=factor,
        precision=precision,
    )


def _find_factor(target: Floats, reference: Floats, relative_rounding: Floats) -> float:
    """Return the factor target / reference that nearly all pairs have in common, 1 if none."""
    is_finite: Flags = np.isfinite(target) & np.isfinite(reference)
    is_positive = (target > 0) & (reference > 0)
    usable = is_finite & is_positive & (relative_rounding <= _COARSE)
    if np.count_nonzero(usable) < _MIN_FACTOR_NORMS:
        return 1.0
    ratios = np.log(target[usable] / reference[usable])
    room = relative_rounding[usable] + _FACTOR_SPREAD
    most_exact = np.argsort(room, kind="stable")[: max(1, len(room) // 4)]
    for scale in (float(ratios[most_exact].mean()), float(np.median(ratios))):
        share_with_factor = np.mean(np.abs(ratios - scale) <= room)
        share_without_one = np.mean(np.abs(ratios) > 2 * room)
        if share_with_factor >= _FACTOR_SHARE and share_without_one >= _FACTOR_SHARE:
            return float(np.exp(scale))
    return 1.0


def accept_vanishing_norms(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with biases of keys as 'agree' if they are zero except for rounding."""
    rows_by_path = {row.path: row for row in rows}
    accepted_rows = list(rows)
    for index, row in enumerate(rows):
        if _is_vanishing(row, rows_by_path):
            accepted_rows[index] = replace(row, state="agree")
    return accepted_rows


def _is_vanishing(row: Row, rows_by_path: dict[str, Row]) -> bool:
    """Whether a row is a key's bias that is far smaller than the query's bias on both sides."""
    if not row.path.endswith(_KEY_BIAS):
        return False
    query_row = rows_by_path.get(row.path.replace(".k.", ".q."))
    if query_row is None:
        return False
    return (
        row.target_norm < _VANISHING_SHARE * query_row.target_norm
        and row.reference_norm < _VANISHING_SHARE * query_row.reference_norm
    )
