"""A second run of the reference: how far two correct runs part, value by value, and what that allows the target."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..graph import Flow
from ..graph.missing_edges import is_given
from ..model.arrays import Flags, Floats
from ..model.result import Baseline
from .pairs import Comparison
from .spread import Spread
from .tolerances import NO_INFORMATION

#: How many spreads the target may lie from the reference. Two correct runs differ by sqrt(2) standard deviations of one
#: run's noise, and so do target and reference: their difference has the spread's own size. Three times the spread is
#: the coverage factor k = 3, exceeded by 0.27 % of normally distributed differences if the spread is known exactly
#: (JCGM 100:2008, Guide to the Expression of Uncertainty in Measurement, 6.3.3 and table G.1; compare the
#: repeatability limit of 1.96 sqrt(2) standard deviations, 95 %, in ISO 5725-6:1994, 4.1.4). It is known from two
#: runs only, which for a single number may by luck nearly coincide (|x1 - x2| < s / 10 in 8 % of cases): hence
#: no value's spread counts as less than the typical one around it.
SPREADS = 3.0
_NEIGHBOURS = 15  # values of one phase in order of execution, seven on either side: a few operators
_ONE_MODEL = 0.25  # share of the reference's values with a partner, below which it is hardly a run of one model


def spread_of(repeated: Comparison) -> Spread:
    """Read the spread from the comparison of the baseline (as target) with the reference.

    Errors are what pairs are judged by anywhere: relative L2 of whole tensors, else the largest difference of
    statistics. A value without a spread of its own gets the typical one around it: the median of those measured among
    the fifteen nearest of its phase in order of execution. A baseline that cannot serve says why:
    ``figures.unusable``.
    """
    reference = repeated.alignment.reference
    own = np.full(len(reference.classes), np.nan)
    pairs = repeated.pairs
    single = pairs[(pairs["comparable"] & pairs["group"].isna()).to_numpy(dtype=bool)]
    own[single["reference"].to_numpy()] = np.where(
        single["nonfinite_mismatch"] > 0, np.inf, single["error"]
    )
    computed = np.array([not is_given(reference, value) for value in range(len(own))], dtype=bool)
    around = _around(reference, np.where(computed, own, np.nan))
    allowed = np.where(computed, SPREADS * np.fmax(np.nan_to_num(own), np.nan_to_num(around)), 0.0)
    return Spread(_figures(repeated, own, around, computed), own, allowed)


def _around(reference: Flow, own: Floats) -> Floats:
    """(classes,) the median spread of the nearest values of the same phase, NaN where none was measured."""
    readers = np.array([readers[0] if readers else 0 for readers in reference.readers], dtype=int)
    place = np.where(reference.producers >= 0, reference.producers, readers)
    around = np.full(len(own), np.nan)
    for phase in reference.classes["phase"].unique():
        rows = np.flatnonzero((reference.classes["phase"] == phase).to_numpy())
        rows = rows[np.argsort(place[rows], kind="stable")]
        around[rows] = (
            pd.Series(own[rows])
            .rolling(_NEIGHBOURS, center=True, min_periods=1)
            .median()
            .to_numpy()
        )
    return around


def _figures(repeated: Comparison, own: Floats, around: Floats, computed: Flags) -> Baseline:
    reference = repeated.alignment.reference
    measured = computed & ~np.isnan(own)
    known = own[measured]
    worst = int(np.argmax(np.where(measured, own, -1.0))) if measured.any() else -1
    median = float(np.median(known)) if len(known) else float("nan")
    return Baseline(
        source=repeated.alignment.target.trace.source,
        values=int(measured.sum()),
        estimated=int((computed & ~measured & ~np.isnan(around)).sum()),
        median=median,
        largest=float(own[worst]) if worst >= 0 else float("nan"),
        largest_op=_maker(reference, worst) if worst >= 0 else "",
        unusable=_unusable(repeated, median, measured.sum() / max(1, computed.sum())),
    )


def _unusable(repeated: Comparison, median: float, share: float) -> str:
    """Why nothing can be judged against this baseline, '' if it can serve."""
    if share < _ONE_MODEL:
        return f"the baseline has only {share:.0%} of the reference's values: is it a second run of the reference?"
    target, reference = repeated.alignment.target, repeated.alignment.reference
    parted = repeated.pairs[~repeated.pairs["agrees"] & repeated.pairs["comparable"]]
    other = [
        int(r) for t, r in zip(parted["target"], parted["reference"], strict=True)
        if is_given(target, int(t)) and is_given(reference, int(r))
    ]  # fmt: skip
    if other:
        name = reference.column("parameter")[other[0]] or _reader(reference, other[0])
        return (
            f"the baseline was given other weights or inputs than the reference ({len(other)} of them, first: {name}): "
            "it must repeat the reference's run"
        )
    if median * SPREADS >= NO_INFORMATION:
        return (
            f"baseline and reference part by {median:.2g} (median), and {SPREADS:g} times that hides any fault: "
            "make the reference's runs more alike (same seed, no dropout)"
        )
    return ""


def _maker(flow: Flow, value: int) -> str:
    producer = int(flow.producers[value])
    return str(flow.trace.ops["name"].iat[producer]) if producer >= 0 else _reader(flow, value)


def _reader(flow: Flow, value: int) -> str:
    return (
        str(flow.trace.ops["name"].iat[flow.readers[value][0]])
        if flow.readers[value]
        else "a value nobody reads"
    )
