"""The error of every pair of value classes, and the tolerance it is judged against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..alignment import Alignment, FusedGroup, SlotPair
from ..alignment.confidence import SAME_SLOT
from ..alignment.joint_dataflow import JointDataflow
from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.arrays import AnyArray, Flags, Ints
from ..model.dtypes import is_discrete
from ..model.errors import DumpError
from ..model.inheritance import Inheritance
from ..model.recorded_shapes import load_shaped_tensor
from ..model.result import Baseline
from ..model.trace import Problem, flag_words
from ..rulebook import Rules
from ..sharding import Merged
from ..verification import JoinedChecks, TraceChecks
from .free_orders import accept_free_orders
from .fused_tensors import join_parts
from .inherited_errors import allow_inherited_errors
from .mask_fill import STATISTICS_SET_ASIDE, flag_mask_fill, set_aside_fill
from .metrics import Metrics, compute_metrics
from .new_weights import judge_new_weights
from .noise import measure_noise, measure_statistic_noise
from .permuted_rows import accept_permuted_rows
from .scalars import collect_scalars, find_scalar_differences
from .sketched_tensors import add_estimates
from .statistics import (
    StatisticErrors,
    judge_statistics,
    measure_joint_statistics,
    measure_statistics,
)
from .tolerances import (
    Spread,
    compute_print_resolution,
    compute_tolerances,
    widen_tolerances,
)
from .unrecorded_signs import accept_unrecorded_signs
from .whole_tensors import (
    METRIC_NAMES,
    measure_whole_tensors,
    select_tensors,
)

#: Confidence of a pair of a fused tensor and its parts, which is made by layout.
_GROUP_CONFIDENCE = 0.8
#: Why a pair of masks is not comparable.
_BARE_MASK = "only the extremes of a mask were recorded"
#: The order of the rows of a fused tensor counts as found if the relative L2 is at most 1 % (or ten
#: tolerances) ...
_MAX_ORDER_ERROR, _MAX_ORDER_TOLERANCES = 1e-2, 10
#: ... or if less than half of the elements differ: elements that still differ are then a real
#: difference, for example swapped heads.
_MAX_ORDER_SHARE = 0.5


@dataclass(frozen=True)
class Comparison:
    """An alignment with the errors of its pairs.

    ``pairs`` has one row per pair of classes. Its columns are target, reference (class ids),
    evidence, confidence, target_tensor, reference_tensor (ids of the tensors compared), layout,
    metric, error, tolerance, agrees, comparable and the fields of
    :class:`~dumpdiff.comparison.metrics.Metrics`, plus rounded_error, group (a fused tensor and its
    parts, else None), slot_pair (a :class:`~dumpdiff.alignment.SlotPair`, else None), has_mask_fill
    (see :func:`.mask_fill.flag_mask_fill`), spread (of two runs of the reference, NaN if unknown)
    and reason (why a pair is not comparable although both sides have numbers, else ''). Every class
    is in one pair at most that is no slot pair. ``masked`` is the number of elements that were set
    aside as mask fill, or -1 if only statistics were compared and all but the maximum were set
    aside. Where statistics are compared, ``statistic`` is the one that decides and
    ``statistic_error`` its difference (else '' and NaN); 'sketch' is an estimated relative L2.
    """

    alignment: Alignment
    pairs: pd.DataFrame
    scalars: pd.DataFrame  #: scalar arguments that differ, see scalars.find_scalar_differences
    problems: tuple[Problem, ...]
    baseline: Baseline | None = None  #: second run of the reference that widened the tolerances
    #: of the target's and the reference's own records, and of their files that were read
    checks: tuple[TraceChecks | JoinedChecks, TraceChecks | JoinedChecks] | None = None
    merged: tuple[Merged, Merged] | None = None  #: runs that were merged from their ranks
    remarks: tuple[str, ...] = ()  #: what the two dumps are, in sentences for a person

    def join_dataflow(self) -> JointDataflow:
        """Return the joint dataflow with edges between pairs that differ.

        It is made again only if other pairs agree: a drawing asks for it after the verdict.
        """
        agrees = self.pairs["agrees"].to_numpy(dtype=bool)
        key = agrees.tobytes()
        if key not in self._dataflows:
            self._dataflows[key] = self.alignment.joint_dataflow.add_differences(agrees)
        return self._dataflows[key]

    @cached_property
    def _dataflows(self) -> dict[bytes, JointDataflow]:
        return {}

    @property
    def slot_pairs(self) -> list[tuple[int, SlotPair]]:
        """The rows of ``pairs`` that are slot pairs."""
        rows = np.flatnonzero(self.pairs["slot_pair"].notna().to_numpy()).tolist()
        return [(row, self.pairs["slot_pair"].iat[row]) for row in rows]


def compare_pairs(
    alignment: Alignment,
    rules: Rules,
    progress: Callable[[float], None] | None = None,
    spread: Spread | None = None,
    inheritance: Inheritance | None = None,
) -> Comparison:
    """Compare every pair: by whole tensors if both sides have them, else statistics, else checksum.

    With a ``spread`` no tolerance is less than the error that two runs of the reference allow. If
    they allow any error, a pair within it is not comparable. Weights may differ by what they
    inherited from the step before, see :func:`.inherited_errors.allow_inherited_errors`.
    """
    target, reference = alignment.target, alignment.reference
    pairs = _list_pairs(alignment)
    ids_t, ids_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    fingerprints_t, fingerprints_r = alignment.fingerprints
    tensors_t, tensors_r = select_tensors(target, ids_t, reference, ids_r)
    tensors_t[len(alignment.classes) :] = [pair.target_tensor for pair in alignment.slot_pairs]
    tensors_r[len(alignment.classes) :] = [pair.reference_tensor for pair in alignment.slot_pairs]
    has_files = _has_file(target, tensors_t) & _has_file(reference, tensors_r)
    is_exact = _is_discrete(target, ids_t) & _is_discrete(reference, ids_r)
    is_given = _flag_given_values(target, ids_t) & _flag_given_values(reference, ids_r)
    tolerance = compute_tolerances(alignment, rules, ids_t, ids_r, has_files, is_given)
    tolerance = np.where(is_exact, 0.0, tolerance)
    resolution = compute_print_resolution(alignment)
    pairs["target_tensor"], pairs["reference_tensor"] = tensors_t, tensors_r
    pairs["metric"] = pd.Series(["statistics"] * len(pairs), dtype=object)
    pairs["has_mask_fill"] = _flag_mask_fill(alignment, rules, ids_t, ids_r)
    prints_t, prints_r, is_set_aside = set_aside_fill(
        fingerprints_t, ids_t, fingerprints_r, ids_r, pairs["has_mask_fill"].to_numpy()
    )
    statistics = measure_statistics(prints_t, prints_r, is_exact | is_given)
    pairs["tolerance"] = np.maximum(tolerance, resolution)
    statistics = add_estimates(alignment, pairs, statistics)
    pairs["error"] = statistics.get_largest()
    pairs["layout"] = pd.Series(["same"] * len(pairs), dtype=object)
    allowed_errors = np.maximum(tolerance, resolution / statistics.factors)
    noise = measure_statistic_noise(alignment, pairs, statistics.errors, allowed_errors)
    allowed_errors = np.maximum(allowed_errors, noise)
    if spread is not None:
        allowed_errors = np.maximum(allowed_errors, spread.get_allowed(ids_r))
    problems = measure_whole_tensors(
        alignment, pairs, np.flatnonzero(has_files), is_exact, progress
    )
    masked = pd.Series(np.where(is_set_aside, STATISTICS_SET_ASIDE, 0), index=pairs.index)
    pairs["masked"] = pairs["masked"].fillna(masked)
    _compare_checksums(target, reference, pairs)
    judge_statistics(pairs, statistics, allowed_errors)
    pairs = _add_groups(alignment, pairs).astype({"masked": "int64", "has_mask_fill": bool})
    pairs["tolerance"] = np.maximum(pairs["tolerance"], measure_noise(alignment, pairs))
    accept_free_orders(alignment, pairs)
    accept_permuted_rows(alignment, pairs)
    accept_unrecorded_signs(alignment, pairs)
    _compare_nonfinite(target, reference, pairs)
    has_mismatch = pairs["nonfinite_mismatch"] > 0
    _mark_comparable(alignment, pairs, has_mismatch)
    scalars = [collect_scalars(flow, rules) for flow in (target, reference)]
    judge_new_weights(alignment, scalars, pairs)
    allow_inherited_errors(alignment, pairs, inheritance)
    pairs["spread"] = np.nan
    if spread is not None:
        widen_tolerances(pairs, spread)
    pairs["agrees"] = (pairs["error"] <= pairs["tolerance"]) & ~has_mismatch
    return Comparison(
        alignment,
        pairs,
        find_scalar_differences(alignment, scalars),
        problems,
        None if spread is None else spread.baseline,
    )


def _mark_comparable(
    alignment: Alignment, pairs: pd.DataFrame, has_mismatch: pd.Series[bool]
) -> None:
    """Set which pairs are comparable, and why one with numbers on both sides is not.

    Of a mask, the extremes alone show nothing: every mask has 0 and 1.
    """
    ids = (pairs["target"].to_numpy(), pairs["reference"].to_numpy())
    are_masks, lacks_numbers = np.ones(len(pairs), dtype=bool), np.zeros(len(pairs), dtype=bool)
    for prints, values in zip(alignment.fingerprints, ids, strict=True):
        are_masks &= (prints.low[values] == 0) & (prints.high[values] == 1)
        lacks_numbers |= np.isnan(prints.norm[values]) & np.isnan(prints.mean[values])
    is_statistical = (pairs["metric"] == "statistics") & (pairs["error"] == 0)
    is_bare_mask = is_statistical & are_masks & lacks_numbers
    is_measured = (pairs["metric"] == "relative_l2") & pairs["error"].notna()
    is_known = has_mismatch | np.isfinite(pairs["error"]) | is_measured
    pairs["comparable"] = is_known & ~is_bare_mask
    pairs["reason"] = np.where(is_bare_mask, _BARE_MASK, "").astype(object)


def _list_pairs(alignment: Alignment) -> pd.DataFrame:
    """Return the pairs of classes, then the slot pairs."""
    pairs = alignment.classes.copy()
    pairs["slot_pair"] = pd.Series([None] * len(pairs), dtype=object)
    if not alignment.slot_pairs:
        return pairs
    slot_columns: dict[str, Sequence[object]] = {
        "target": [pair.target for pair in alignment.slot_pairs],
        "reference": [pair.reference for pair in alignment.slot_pairs],
        "evidence": ["slot"] * len(alignment.slot_pairs),
        "confidence": [SAME_SLOT] * len(alignment.slot_pairs),
        "slot_pair": alignment.slot_pairs,
    }
    return _append_rows(pairs, slot_columns)


def _append_rows(table: pd.DataFrame, columns: Mapping[str, Sequence[object]]) -> pd.DataFrame:
    """Return a table with further rows; joining tables looks at every object for missing values."""
    joined_columns = {}
    for name in table.columns:
        column = table[name].to_numpy()
        rows = np.fromiter(columns[name], dtype=column.dtype, count=len(columns[name]))
        joined_columns[name] = pd.Series(np.concatenate([column, rows]), dtype=column.dtype)
    return pd.DataFrame(joined_columns)


def _flag_mask_fill(alignment: Alignment, rules: Rules, ids_t: Ints, ids_r: Ints) -> Flags:
    """Return (pairs,) true where the value of either side may hold mask fill."""
    flags_t = flag_mask_fill(alignment.target, alignment.target_kinds, rules)
    flags_r = flag_mask_fill(alignment.reference, alignment.reference_kinds, rules)
    flags: Flags = flags_t[ids_t] | flags_r[ids_r]
    return flags


def _flag_given_values(flow: Flow, values: Ints) -> Flags:
    """Return whether each value was given to the run: a parameter, or part of the batch."""
    flags = np.zeros(len(values), dtype=bool)
    for row in np.flatnonzero(flow.producers[values] < 0).tolist():
        flags[row] = is_graph_input(flow, int(values[row]))
    return flags


def _has_file(flow: Flow, tensors: Ints) -> Flags:
    flags: Flags = (flow.tensors["file"].to_numpy() != "")[tensors]
    return flags


def _is_discrete(flow: Flow, ids: Ints) -> Flags:
    flags: Flags = flag_words(flow.classes["dtype"], is_discrete)[ids]
    return flags


def _add_groups(alignment: Alignment, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs, with one more row per fused tensor and its parts.

    The column ``group`` holds the classes of both sides of such a row, else None.
    """
    pairs["group"] = pd.Series([None] * len(pairs), dtype=object)
    if not alignment.groups:
        return pairs
    rows = [_make_group_row(alignment, group) for group in alignment.groups]
    types = {"group": object, "slot_pair": object}
    return pd.concat([pairs, pd.DataFrame(rows).astype(types)], ignore_index=True)


def _make_group_row(alignment: Alignment, group: FusedGroup) -> dict[str, object]:
    target, reference = alignment.target, alignment.reference
    statistics = _measure_group_statistics(alignment, group)
    error = float(statistics.get_largest()[0])
    tolerance = max(compute_print_resolution(alignment), alignment.tolerance)
    n_parts = max(len(group.target), len(group.reference))
    row: dict[str, object] = {
        "target": group.target[0],
        "reference": group.reference[0],
        "evidence": "layout",
        "confidence": _GROUP_CONFIDENCE,
        "target_tensor": int(target.classes["tensor"].iat[group.target[0]]),
        "reference_tensor": int(reference.classes["tensor"].iat[group.reference[0]]),
        "metric": "statistics",
        "error": error,
        "tolerance": tolerance,
        "statistic": "",
        "statistic_error": np.nan,
        "layout": f"parts({n_parts})",
        "group": group,
        "slot_pair": None,
        "has_mask_fill": False,  # parameters and projections are fused, not scores
        "masked": 0,
    }
    try:
        layout, a, b = _join_group(alignment, group)
    except (DumpError, KeyError, OSError, ValueError):
        return row  # there are no whole tensors, or their shapes cannot be joined
    metrics = compute_metrics(a, b, alignment.tolerance)
    is_ordered = group.is_numbered or _has_found_order(metrics, alignment.tolerance)
    if error > tolerance or is_ordered:
        row |= {name: getattr(metrics, name) for name in METRIC_NAMES}
        row |= {"metric": "relative_l2", "error": metrics.relative_l2, "layout": layout}
    return row


def _measure_group_statistics(alignment: Alignment, group: FusedGroup) -> StatisticErrors:
    """Return what the statistics of both sides show, each taken as one tensor."""
    target, reference = alignment.target, alignment.reference
    fingerprint_t = alignment.fingerprints[0].join(group.target)
    fingerprint_r = alignment.fingerprints[1].join(group.reference)
    is_given = is_graph_input(target, group.target[0])
    is_given &= is_graph_input(reference, group.reference[0])
    return measure_joint_statistics(fingerprint_t, fingerprint_r, is_given)


def _has_found_order(metrics: Metrics, tolerance: float) -> bool:
    """Return whether most elements are in their place, so that the others really differ."""
    max_error = max(_MAX_ORDER_ERROR, _MAX_ORDER_TOLERANCES * tolerance)
    return metrics.relative_l2 <= max_error or metrics.beyond < _MAX_ORDER_SHARE


def _join_group(alignment: Alignment, group: FusedGroup) -> tuple[str, AnyArray, AnyArray]:
    """Return (layout, target, reference), the parts of one side joined as the other's tensor."""
    target_arrays = _load_tensors(alignment.target, group.target)
    reference_arrays = _load_tensors(alignment.reference, group.reference)
    if len(target_arrays) == 1:
        layout, joined = join_parts(
            target_arrays[0], reference_arrays, is_numbered=group.is_numbered
        )
        return layout, target_arrays[0], joined
    layout, joined = join_parts(reference_arrays[0], target_arrays, is_numbered=group.is_numbered)
    return f"reference {layout}", joined, reference_arrays[0]


def _load_tensors(flow: Flow, values: tuple[int, ...]) -> list[AnyArray]:
    tensors = flow.classes["tensor"]
    return [load_shaped_tensor(flow.trace, int(tensors.iat[value])) for value in values]


def _compare_nonfinite(target: Flow, reference: Flow, pairs: pd.DataFrame) -> None:
    """Mark pairs with NaN or Inf on one side only, as their statistics show.

    Mask fill of -Inf on one side and of -1e9 or similar on the other is not a mismatch.
    """
    has_no_metrics = pairs["nonfinite_mismatch"].isna()
    counts_t = target.classes["nonfinite"].to_numpy()[pairs["target"].to_numpy()]
    counts_r = reference.classes["nonfinite"].to_numpy()[pairs["reference"].to_numpy()]
    is_different = (counts_t >= 0) & (counts_r >= 0) & (counts_t != counts_r)
    is_different &= pairs["masked"].to_numpy() != STATISTICS_SET_ASIDE
    pairs.loc[has_no_metrics & is_different, "nonfinite_mismatch"] = 1.0


def _compare_checksums(target: Flow, reference: Flow, pairs: pd.DataFrame) -> None:
    """Judge pairs without numbers by checksum.

    They agree if they share a checksum of any recorded layout. Pairs with different checksums
    cannot be judged.
    """
    rows = np.flatnonzero(~np.isfinite(pairs["error"].to_numpy()))
    if not len(rows):
        return
    checksums_t, checksums_r = target.checksums, reference.checksums
    for row in rows.tolist():
        sums_t = checksums_t[int(pairs["target"].iat[row])]
        sums_r = checksums_r[int(pairs["reference"].iat[row])]
        if not sums_t or not sums_r:
            continue
        pairs.loc[pairs.index[row], "metric"] = "hash"
        if sums_t & sums_r:
            pairs.loc[pairs.index[row], "error"] = 0.0
