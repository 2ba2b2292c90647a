"""A later dump against its golden reference, value by value, by the names of ops and slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..graph.statistics import STATISTICS
from ..model.arrays import Floats
from ..model.formatting import format_number
from ..model.trace import Problem
from ..model.verdict import Verdict
from .reference import KEY, GoldenReference

#: What a value can be. All but the first two say that something changed or is not known.
STATES: Mapping[str, str] = {
    "identical": "the checksum, or without one every statistic, is the same",
    "within tolerance": "statistics differ by no more than the tolerance",
    "changed": "dtype, shape, elements or statistics are others",
    "missing": "the reference has it, the dump does not",
    "new": "the dump has it, the reference does not",
    "unknown": "nothing was recorded to compare it by",
}
_DIFFERENCES = ("changed", "missing", "new")


@dataclass(frozen=True)
class ValueCheck:
    """A value that is not as the reference has it."""

    state: str  #: of :data:`STATES`
    op: str
    slot: str
    phase: str
    message: str  #: what is different
    source: str  #: file and line of the op, '' if unknown


@dataclass(frozen=True)
class GoldenCheck:
    """A dump held against a golden reference."""

    tolerance: float
    counts: Mapping[str, int]  #: state -> number of values
    by_statistics: int  #: values that agree by statistics alone
    differences: tuple[ValueCheck, ...]  #: in the order of execution; also what is unknown
    problems: tuple[Problem, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``agree`` only if every value was compared and none is different."""
        if any(self.counts.get(state) for state in _DIFFERENCES):
            return "differ"
        n_compared = self.counts.get("identical", 0) + self.counts.get("within tolerance", 0)
        if self.counts.get("unknown") or not n_compared:
            return "inconclusive"
        return "agree"

    @property
    def headline(self) -> str:
        """The answer in one line, without the verdict."""
        words = [f"{count} {state}" for state, count in self.counts.items() if count]
        if self.by_statistics:
            words.append(f"{self.by_statistics} compared by statistics only")
        changed = [item for item in self.differences if item.state in _DIFFERENCES]
        first = changed[0] if changed else None
        where = f"; first: {first.op} {first.slot}: {first.message}" if first else ""
        return f"{', '.join(words) or 'nothing to compare'}{where}"


def check_trace(
    dump: GoldenReference, reference: GoldenReference, tolerance: float = 0.0
) -> GoldenCheck:
    """Hold the results of a dump against a reference.

    ``tolerance`` is the largest allowed difference of a statistic, relative to the norm of the
    value (for max, min: of its largest element). With 0, checksums must be equal.
    """
    pairs = reference.values.merge(
        dump.values, on=list(KEY), how="outer", suffixes=("_reference", "_dump"), indicator=True
    )
    pairs = _sort_by_execution(pairs, dump.values, reference.values)
    errors = _measure_errors(pairs)
    is_numeric = np.isfinite(errors)
    has_digests = (pairs["digest_dump"].fillna("") != "") & (
        pairs["digest_reference"].fillna("") != ""
    )
    has_same_digest = has_digests & (pairs["digest_dump"] == pairs["digest_reference"])
    has_same_form = (pairs["dtype_dump"] == pairs["dtype_reference"]) & (
        pairs["shape_dump"] == pairs["shape_reference"]
    )
    is_equal = has_same_digest | (~has_digests & is_numeric & (errors == 0))
    is_near = is_numeric & (errors <= tolerance) & (tolerance > 0)
    states = np.select(
        [
            pairs["_merge"] == "left_only",
            pairs["_merge"] == "right_only",
            ~has_same_form,
            is_equal,
            is_near,
            ~has_digests & ~is_numeric,
        ],
        ["missing", "new", "changed", "identical", "within tolerance", "unknown"],
        default="changed",
    )
    counts = Counter(states.tolist())
    agrees = np.isin(states, ("identical", "within tolerance"))
    return GoldenCheck(
        tolerance=tolerance,
        counts={state: counts[state] for state in STATES},
        by_statistics=int((agrees & ~has_same_digest.to_numpy()).sum()),
        differences=tuple(_describe_differences(pairs, states.tolist(), errors)),
        problems=dump.problems,
    )


def _sort_by_execution(
    pairs: pd.DataFrame, dump: pd.DataFrame, reference: pd.DataFrame
) -> pd.DataFrame:
    """Return pairs in the order of the dump; what it lacks is where the reference has it."""
    positions = []
    for values in (dump, reference):
        keys = zip(values["op"], values["slot"], strict=True)
        positions.append({key: number for number, key in enumerate(keys)})
    in_dump, in_reference = positions
    keys = zip(pairs["op"], pairs["slot"], strict=True)
    order = [in_dump.get(key, in_reference.get(key, 0)) for key in keys]
    return pairs.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def _measure_errors(pairs: pd.DataFrame) -> Floats:
    """Return the largest relative difference of the statistics, NaN if there is none to compare."""
    norms = np.abs(pairs["norm_reference"].to_numpy(dtype=float))
    largest = np.maximum(
        np.abs(pairs["max_reference"].to_numpy(dtype=float)),
        np.abs(pairs["min_reference"].to_numpy(dtype=float)),
    )
    errors = np.full(len(pairs), np.nan)
    for name in STATISTICS:
        dump = pairs[f"{name}_dump"].to_numpy(dtype=float)
        reference = pairs[f"{name}_reference"].to_numpy(dtype=float)
        scale = norms if name == "norm" else largest
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(dump == reference, 0.0, np.abs(dump - reference) / scale)
        # one side is not finite, or a zero became something else: no tolerance allows that
        is_lost = np.isnan(ratios) & (np.isnan(dump) != np.isnan(reference))
        errors = np.fmax(errors, np.where(is_lost, np.finfo(float).max, ratios))
    return np.where(np.isinf(errors), np.finfo(float).max, errors)


def _describe_differences(
    pairs: pd.DataFrame, states: Sequence[str], errors: Floats
) -> list[ValueCheck]:
    differences = []
    for number, state in enumerate(states):
        if state in ("identical", "within tolerance"):
            continue
        row = pairs.iloc[number]
        side = "reference" if state == "missing" else "dump"
        message = STATES[state]
        if state == "changed":
            message = _describe_change(row, float(errors[number]))
        source, phase = str(row[f"source_{side}"]), str(row[f"phase_{side}"])
        differences.append(ValueCheck(state, row["op"], row["slot"], phase, message, source))
    return differences


def _describe_change(row: pd.Series[Any], error: float) -> str:
    for name in ("dtype", "shape"):
        if row[f"{name}_dump"] != row[f"{name}_reference"]:
            return f"{name} {row[f'{name}_dump']}, was {row[f'{name}_reference']}"
    if error == np.finfo(float).max:
        return "a statistic was finite and is not, or was 0"
    if not error > 0:  # also NaN: there are only checksums
        return "other elements; the recorded statistics do not show it"
    return f"statistics differ by {format_number(error)}"
