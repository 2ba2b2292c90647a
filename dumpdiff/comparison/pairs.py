"""The error of every pair of value classes, and the tolerance it is judged against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..alignment import Alignment, Group
from ..alignment.values import Fingerprints, distance
from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Ints
from ..model.dtypes import is_discrete
from ..model.errors import DumpError
from ..model.result import Baseline
from ..model.trace import Problem
from ..rulebook import Rules
from .fused_tensors import fused, gathered
from .metrics import compare
from .scalars import scalar_differences
from .spread import Spread, widen
from .tolerances import expected, measured_noise, resolution
from .whole_tensors import METRICS, measure_whole, shaped, tensors_to_compare


@dataclass(frozen=True)
class Comparison:
    """An alignment with figures.

    ``pairs`` has one row per pair of classes: target, reference (class ids), evidence, confidence, target_tensor,
    reference_tensor (ids of the tensors compared), layout, metric, error, tolerance, agrees, comparable and the fields
    of :class:`~dumpdiff.compare.metrics.Metrics`, plus rounded_error and spread (of two runs of the reference, NaN if
    unknown).
    """

    alignment: Alignment
    pairs: pd.DataFrame
    scalars: pd.DataFrame  #: scalar arguments that differ, see scalars.scalar_differences
    problems: tuple[Problem, ...]
    baseline: Baseline | None = (
        None  #: the second run of the reference that tolerances were widened by
    )


def compare_pairs(
    alignment: Alignment,
    rules: Rules,
    progress: Callable[[float], None] | None = None,
    spread: Spread | None = None,
) -> Comparison:
    """Compare every pair: by whole tensors where both sides have them, else by statistics, else by checksum.

    With a ``spread`` no tolerance is less than what two runs of the reference allow; where they allow everything,
    a pair within it is not comparable.
    """
    target, reference = alignment.target, alignment.reference
    pairs = alignment.classes.copy()
    ids_t, ids_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    prints_t, prints_r = alignment.fingerprints
    gap = distance(prints_t, ids_t, prints_r, ids_r)
    pairs["target_tensor"], pairs["reference_tensor"] = chosen = tensors_to_compare(
        target, ids_t, reference, ids_r
    )
    whole = _whole(target, chosen[0]) & _whole(reference, chosen[1])
    tolerance = expected(alignment, rules, ids_t, ids_r, whole)
    discrete = _discrete(target, ids_t) & _discrete(reference, ids_r)
    pairs["metric"] = pd.Series(["statistics"] * len(pairs), dtype=object)
    pairs["error"] = gap
    pairs["tolerance"] = np.maximum(np.where(discrete, 0.0, tolerance), resolution(alignment))
    pairs["layout"] = pd.Series(["same"] * len(pairs), dtype=object)
    problems = measure_whole(alignment, pairs, np.flatnonzero(whole), discrete, progress)
    _judge_hashes(target, reference, pairs)
    pairs = _with_groups(alignment, pairs)
    pairs["tolerance"] = np.maximum(pairs["tolerance"], measured_noise(target, pairs))
    _judge_nonfinite(target, reference, pairs)
    pairs["comparable"] = (
        (pairs["nonfinite_mismatch"] > 0)
        | np.isfinite(pairs["error"])
        | (pairs["metric"] == "relative_l2")
    )
    pairs["spread"] = np.nan
    figures = None
    if spread is not None:
        widen(pairs, spread)
        figures = spread.figures
    pairs["agrees"] = (pairs["error"] <= pairs["tolerance"]) & ~(pairs["nonfinite_mismatch"] > 0)
    return Comparison(alignment, pairs, scalar_differences(alignment), problems, figures)


def _whole(flow: Flow, tensors: Ints) -> Flags:
    flags: Flags = (flow.tensors["file"] != "").to_numpy()[tensors]
    return flags


def _discrete(flow: Flow, ids: Ints) -> Flags:
    flags: Flags = flow.classes["dtype"].map(is_discrete).to_numpy(dtype=bool)[ids]
    return flags


def _with_groups(alignment: Alignment, pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs, and a row per fused tensor and its parts; ``group`` holds the classes of both sides, else None."""
    pairs["group"] = pd.Series([None] * len(pairs), dtype=object)
    if not alignment.groups:
        return pairs
    rows = [_group_row(alignment, group) for group in alignment.groups]
    return pd.concat([pairs, pd.DataFrame(rows).astype({"group": object})], ignore_index=True)


def _group_row(alignment: Alignment, group: Group) -> dict[str, object]:
    target, reference = alignment.target, alignment.reference
    ours, theirs = gathered(target, group.target), gathered(reference, group.reference)
    size = float(target.sizes[list(group.target)].sum())
    sides = [
        Fingerprints(*(np.array([number]) for number in (size, *figures, 4.0)))
        for figures in (ours, theirs)
    ]
    one = np.array([0])
    error = float(distance(sides[0], one, sides[1], one)[0])
    tolerance = max(resolution(alignment), alignment.tolerance)
    row: dict[str, object] = {
        "target": group.target[0],
        "reference": group.reference[0],
        "evidence": "layout",
        "confidence": 0.8,
        "target_tensor": int(target.classes["tensor"].iat[group.target[0]]),
        "reference_tensor": int(reference.classes["tensor"].iat[group.reference[0]]),
        "metric": "statistics",
        "error": error,
        "tolerance": tolerance,
        "layout": f"parts({max(len(group.target), len(group.reference))})",
        "group": group,
    }
    try:
        layout, a, b = _put_together(alignment, group)
    except (DumpError, KeyError, OSError, ValueError):
        return row  # statistics it is: without whole tensors, or in shapes that cannot be joined
    found = compare(a, b, alignment.tolerance)
    order_found = found.relative_l2 <= max(1e-2, 10 * alignment.tolerance) or found.beyond < 0.5
    if (
        order_found or error > tolerance
    ):  # most elements in their place: what is not is a difference, heads swapped say
        row |= {name: getattr(found, name) for name in METRICS}
        row |= {"metric": "relative_l2", "error": found.relative_l2, "layout": layout}
    return row


def _put_together(alignment: Alignment, group: Group) -> tuple[str, AnyArray, AnyArray]:
    """(layout, target, reference) with the parts of the one side put together like the fused tensor of the other."""
    arrays = [
        [shaped(flow, int(flow.classes["tensor"].iat[value])) for value in values]
        for flow, values in (
            (alignment.target, group.target),
            (alignment.reference, group.reference),
        )
    ]
    if len(arrays[0]) == 1:
        layout, joined = fused(arrays[0][0], arrays[1])
        return layout, arrays[0][0], joined
    layout, joined = fused(arrays[1][0], arrays[0])
    return f"reference {layout}", joined, arrays[1][0]


def _judge_nonfinite(target: Flow, reference: Flow, pairs: pd.DataFrame) -> None:
    """By statistics alone: NaN or Inf on one side only. A mask of -Inf against one of -1e9 or the like is none."""
    blind = pairs["nonfinite_mismatch"].isna()
    worse = []
    for flow, ids in ((target, pairs["target"]), (reference, pairs["reference"])):
        table = flow.classes.iloc[ids]
        infinite_mask = np.isneginf(table["min"].to_numpy()) & np.isfinite(table["max"].to_numpy())
        worse.append(np.where(infinite_mask, 0, table["nonfinite"].to_numpy()))
    parted = (worse[0] >= 0) & (worse[1] >= 0) & (worse[0] != worse[1])
    pairs.loc[blind & parted, "nonfinite_mismatch"] = 1.0


def _judge_hashes(target: Flow, reference: Flow, pairs: pd.DataFrame) -> None:
    """Pairs without numbers agree if they share a checksum (of any layout recorded); unequal ones cannot be judged."""
    blind = np.flatnonzero(~np.isfinite(pairs["error"].to_numpy()))
    if not len(blind):
        return
    sums_t, sums_r = target.hashes, reference.hashes
    for row in blind.tolist():
        ours, theirs = (
            sums_t[int(pairs["target"].iat[row])],
            sums_r[int(pairs["reference"].iat[row])],
        )
        if ours and theirs:
            pairs.loc[pairs.index[row], "metric"] = "hash"
            if ours & theirs:
                pairs.loc[pairs.index[row], "error"] = 0.0
