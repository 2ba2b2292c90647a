"""What error each pair may have: by its dtypes and operator, and by the noise of this very pair of dumps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..graph.missing_edges import is_given
from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import UNIT_ROUNDOFF, unit_roundoff
from ..rulebook import Rules

#: A relative error that is allowed to be this large cannot tell right from wrong. A judgement call.
NO_INFORMATION = 0.3
_ENOUGH = 8  # pairs that it takes to measure noise
_NOISE_MARGIN = 8  # of the lower quartile: in clean float32 pairs the largest error of a phase is 3 to 6 times it


def expected(alignment: Alignment, rules: Rules, ids_t: Ints, ids_r: Ints, whole: Flags) -> Floats:
    """Per pair, from both dtypes, the maker's kind and the length of its sums; ``whole``: whole tensors are compared.

    What nobody made (a parameter, the batch) may only be off by its own rounding, whatever the network's noise: its
    elements by u (x rounded to nearest is within u of both x and the rounded: Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., theorems 2.2 and 2.3), a norm that was itself recorded in the narrow type by one u
    more.
    """
    target, reference = alignment.target, alignment.reference
    coarse = max(target.coarsest, reference.coarsest, key=unit_roundoff)
    dtypes_t = target.classes["dtype"].to_numpy()[ids_t]
    dtypes_r = reference.classes["dtype"].to_numpy()[ids_r]
    makers = target.classes["producer"].to_numpy()[ids_t]
    sizes = target.classes["size"].to_numpy()
    tolerances = np.empty(len(ids_t))
    known: dict[tuple[str, str, str, int], float] = {}
    exact = rules.tolerance("float32", "float32", "identity", 1)
    recorded_narrow = any(
        flow.trace.source.low_precision_statistics for flow in (target, reference)
    )
    for row, (t, a, b, maker) in enumerate(
        zip(ids_t.tolist(), dtypes_t, dtypes_r, makers.tolist(), strict=True)
    ):
        kind = alignment.kinds_t[maker] if maker >= 0 else "identity"
        length = (
            _reduction_length([int(sizes[v]) for v in target.reads[maker]], int(sizes[t]))
            if maker >= 0
            else 1
        )
        dtype = _no_finer(_finer(a, b), coarse)
        key = (dtype, dtype, kind, length)
        if key not in known:
            known[key] = rules.tolerance(*key)
        tolerances[row] = known[key]
        given = maker < 0 and is_given(target, t) and is_given(reference, int(ids_r[row]))
        if given and (units := max(unit_roundoff(a), unit_roundoff(b))) > 0:
            tolerances[row] = max(2 * units if recorded_narrow and not whole[row] else units, exact)
    return tolerances


def measured_noise(target: Flow, pairs: pd.DataFrame) -> Floats:
    """Per pair, eight times the lower quartile of its phase's errors where values alone made the pair; 0 if discrete.

    Rounding errors grow along a network and more so in its backward pass; what this very pair of dumps shows where it
    agrees bounds what to expect. The lower quartile, since after a divergence most are apart; at most 64 tolerances.
    """
    phase = target.classes["phase"].to_numpy()[pairs["target"]]
    error, tolerance = pairs["error"].to_numpy(), pairs["tolerance"].to_numpy()
    computed = target.classes["producer"].to_numpy()[pairs["target"]] >= 0
    sure = computed & (pairs["evidence"] == "value").to_numpy() & (error > 0) & (tolerance > 0)
    noise = np.zeros(len(pairs))
    for name in np.unique(phase[sure]):
        errors = error[sure & (phase == name)]
        if len(errors) >= _ENOUGH:
            noise[computed & (phase == name)] = _NOISE_MARGIN * float(np.quantile(errors, 0.25))
    measured: Floats = np.minimum(noise, 64 * tolerance)
    return measured


def _finer(a: str, b: str) -> str:
    """The finer of two floating dtypes: where one side alone rounds coarsely, that is a difference, not noise."""
    floating = [dtype for dtype in (a, b) if dtype in UNIT_ROUNDOFF]
    return min(floating, key=unit_roundoff) if floating else a


def _no_finer(dtype: str, coarse: str) -> str:
    return (
        coarse if dtype in UNIT_ROUNDOFF and unit_roundoff(dtype) < unit_roundoff(coarse) else dtype
    )


def _reduction_length(inputs: list[int], output: int) -> int:
    """Terms of an op's sums: K of (M,K) x (K,N) = sqrt(MK KN / MN); input over output elements of a reduction."""
    if output <= 0 or not inputs:
        return 1
    if len(inputs) >= 2:
        return max(1, round(math.sqrt(inputs[0] * inputs[1] / output)))
    return max(1, inputs[0] // output)


def resolution(alignment: Alignment) -> float:
    """What printing alone may make of equal numbers: rounding to d digits moves 1.000 by up to 5 units of 10**-d."""
    return 5 * (
        alignment.target.trace.source.resolution + alignment.reference.trace.source.resolution
    )
