"""Measure the spread of the reference from a second run of it: the error of each value."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.arrays import Flags, Floats, Ints
from ..model.result import Baseline
from .pairs import Comparison
from .tolerances import NO_INFORMATION, Spread

#: Allowed distance between target and reference, in units of the spread. Two correct runs differ by
#: sqrt(2) standard deviations of one run's noise, and so do target and reference: their difference
#: has the size of the spread itself. Three times the spread is the coverage factor k = 3, exceeded
#: by 0.27 % of normally distributed differences if the spread is known exactly (JCGM 100:2008,
#: Guide to the Expression of Uncertainty in Measurement, 6.3.3 and table G.1; compare the
#: repeatability limit of 1.96 sqrt(2) standard deviations, 95 %, in ISO 5725-6:1994, 4.1.4). The
#: spread is known from two runs only, and two single numbers may by chance nearly coincide
#: (|x1 - x2| < s / 10 in 8 % of cases): hence no value's spread counts as less than the typical
#: spread of its neighbors.
COVERAGE_FACTOR = 3.0
#: Median of |x| of a normal distribution, in standard deviations. The difference of one statistic
#: is one number, so half of the differences are smaller than this.
_MEDIAN_DEVIATION = 0.6745
#: Values of one phase, in order of execution, that count as neighbors of a value (itself and seven
#: on either side): a few operators.
_WINDOW = 15
#: Share of the reference's values that a baseline must have; below, it is hardly a run of the same
#: model.
_MIN_SHARE = 0.25


def measure_spread(repeated: Comparison) -> Spread:
    """Read the spread from the comparison of the baseline (as target) with the reference.

    The errors are those that pairs are judged by: relative L2 of whole tensors, else the largest
    difference of statistics. No value's spread counts as less than the typical spread, from the
    median of its fifteen nearest neighbors of the same phase, in order of execution; a value
    without a measured spread gets that. ``baseline.unusable`` tells why a baseline cannot be used.
    """
    reference = repeated.alignment.reference
    measured = _read_errors(repeated)
    is_computed = np.array(
        [not is_graph_input(reference, value) for value in range(len(measured))], dtype=bool
    )
    deviations = np.where(is_computed, measured / _read_shares(repeated), np.nan)
    typical = _compute_typical_spread(reference, deviations)
    spread = np.fmax(np.nan_to_num(measured), np.nan_to_num(typical))
    allowed = np.where(is_computed, COVERAGE_FACTOR * spread, 0.0)
    baseline = _summarize_baseline(repeated, measured, typical, is_computed)
    return Spread(baseline, measured, allowed)


def _read_errors(repeated: Comparison) -> Floats:
    """Return the error per class of the reference, NaN where none was measured."""
    errors = np.full(len(repeated.alignment.reference.classes), np.nan)
    pairs = repeated.pairs
    is_single = pairs["comparable"] & pairs["group"].isna() & pairs["slot_pair"].isna()
    single_pairs = pairs[is_single.to_numpy(dtype=bool)]
    errors[single_pairs["reference"].to_numpy()] = np.where(
        single_pairs["nonfinite_mismatch"] > 0, np.inf, single_pairs["error"]
    )
    return errors


def _read_shares(repeated: Comparison) -> Floats:
    """Return the median of each class's error, in units of the standard deviation of one run.

    The error of a whole tensor, a sum over many elements, is that deviation itself.
    """
    shares = np.ones(len(repeated.alignment.reference.classes))
    is_statistic = (repeated.pairs["statistic"] != "").to_numpy()
    shares[repeated.pairs["reference"].to_numpy()[is_statistic]] = _MEDIAN_DEVIATION
    return shares


def _compute_typical_spread(reference: Flow, measured: Floats) -> Floats:
    """Return, per class, the median spread of its neighbors, NaN where none was measured."""
    positions = _find_positions(reference)
    typical = np.full(len(measured), np.nan)
    phases = reference.classes["phase"]
    for phase in phases.unique():
        rows = np.flatnonzero((phases == phase).to_numpy())
        rows = rows[np.argsort(positions[rows], kind="stable")]
        windows = pd.Series(measured[rows]).rolling(_WINDOW, center=True, min_periods=1)
        typical[rows] = windows.median().to_numpy()
    return typical


def _find_positions(flow: Flow) -> Ints:
    """Return, per class, the op that produced it, else its first consumer, else 0."""
    first_consumers = np.array(
        [consumers[0] if consumers else 0 for consumers in flow.consumers], dtype=int
    )
    positions: Ints = np.where(flow.producers >= 0, flow.producers, first_consumers)
    return positions


def _summarize_baseline(
    repeated: Comparison, measured: Floats, typical: Floats, is_computed: Flags
) -> Baseline:
    reference = repeated.alignment.reference
    is_measured = is_computed & ~np.isnan(measured)
    is_estimated = is_computed & ~is_measured & ~np.isnan(typical)
    n_measured = int(is_measured.sum())
    median, largest, largest_op = float("nan"), float("nan"), ""
    if n_measured:
        median = float(np.median(measured[is_measured]))
        largest_value = int(np.argmax(np.where(is_measured, measured, -1.0)))
        largest = float(measured[largest_value])
        largest_op = _name_producer(reference, largest_value)
    return Baseline(
        source=repeated.alignment.target.trace.source,
        values=n_measured,
        estimated=int(is_estimated.sum()),
        median=median,
        largest=largest,
        largest_op=largest_op,
        unusable=_explain_unusable(repeated, median, n_measured / max(1, is_computed.sum())),
    )


def _explain_unusable(repeated: Comparison, median: float, share: float) -> str:
    """Return why nothing can be judged against this baseline, '' if it can be used."""
    if share < _MIN_SHARE:
        return (
            f"the baseline has only {share:.0%} of the reference's values: "
            "is it a second run of the reference?"
        )
    different_inputs = _find_different_inputs(repeated)
    if different_inputs:
        reference = repeated.alignment.reference
        first_input = different_inputs[0]
        parameter = reference.list_column("parameter")[first_input]
        name = parameter or _name_consumer(reference, first_input)
        return (
            "the baseline has other weights or inputs than the reference "
            f"({len(different_inputs)} of them, first: {name}): it must repeat the reference's run"
        )
    if median * COVERAGE_FACTOR >= NO_INFORMATION:
        return (
            f"baseline and reference differ by {median:.2g} (median); {COVERAGE_FACTOR:g} times "
            "that hides any fault: make the two runs of the reference more similar "
            "(same seed, no dropout)"
        )
    return ""


def _find_different_inputs(repeated: Comparison) -> list[int]:
    """Return the parameters and batch tensors of the reference that differ in the baseline."""
    target, reference = repeated.alignment.target, repeated.alignment.reference
    is_different = ~repeated.pairs["agrees"] & repeated.pairs["comparable"]
    different_pairs = repeated.pairs[is_different]
    different_inputs = []
    for t, r in zip(different_pairs["target"], different_pairs["reference"], strict=True):
        if is_graph_input(target, int(t)) and is_graph_input(reference, int(r)):
            different_inputs.append(int(r))
    return different_inputs


def _name_producer(flow: Flow, value: int) -> str:
    producer = int(flow.producers[value])
    if producer < 0:
        return _name_consumer(flow, value)
    return str(flow.trace.ops["name"].iat[producer])


def _name_consumer(flow: Flow, value: int) -> str:
    consumers = flow.consumers[value]
    if not consumers:
        return "a value without consumers"
    return str(flow.trace.ops["name"].iat[consumers[0]])
