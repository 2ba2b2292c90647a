"""The error of every pair of value classes, and the tolerance it is judged against."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..alignment import Alignment, Group
from ..alignment.values import Fingerprints, distance
from ..arrays import AnyArray, Flags, Floats, Ints
from ..dtypes import UNIT_ROUNDOFF, unit_roundoff
from ..errors import DumpError
from ..graph import Flow
from ..rules import Rules
from ..trace import Problem
from .fused import fused, gathered
from .layouts import laid_out
from .metrics import Metrics, compare
from .rounding import round_to
from .scalars import scalar_differences

_ENOUGH = 8  # pairs that it takes to measure noise
_NOISE_MARGIN = 16  # of the lower quartile: in clean float32 pairs the largest error of a phase is 3 to 6 times it


@dataclass(frozen=True)
class Comparison:
    """An alignment with figures.

    ``pairs`` has one row per pair of classes: target, reference (class ids), evidence, confidence, target_tensor,
    reference_tensor (ids of the tensors compared), layout, metric, error, tolerance, agrees, comparable and the fields
    of :class:`~dumpdiff.compare.metrics.Metrics`, plus rounded_error.
    """

    alignment: Alignment
    pairs: pd.DataFrame
    scalars: pd.DataFrame  #: scalar arguments that differ, see scalars.scalar_differences
    problems: tuple[Problem, ...]


def compare_pairs(alignment: Alignment, rules: Rules, progress: Callable[[float], None] | None = None) -> Comparison:
    """Compare every pair: by whole tensors where both sides have them, else by statistics, else by checksum."""
    target, reference = alignment.target, alignment.reference
    pairs = alignment.classes.copy()
    ids_t, ids_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    prints_t, prints_r = alignment.fingerprints
    gap = distance(prints_t, ids_t, prints_r, ids_r)
    tolerance = _tolerances(alignment, rules, ids_t, ids_r)
    chosen = _tensors_to_compare(target, ids_t, reference, ids_r)
    pairs["target_tensor"], pairs["reference_tensor"] = chosen
    discrete = _discrete(target, ids_t) & _discrete(reference, ids_r)
    pairs["metric"] = pd.Series(["statistics"] * len(pairs), dtype=object)
    pairs["error"] = gap
    pairs["tolerance"] = np.maximum(np.where(discrete, 0.0, tolerance), _resolution(alignment))
    pairs["layout"] = pd.Series(["same"] * len(pairs), dtype=object)
    problems = _measure_whole(alignment, pairs, discrete, progress)
    _judge_hashes(target, reference, pairs)
    pairs = _with_groups(alignment, pairs)
    pairs["tolerance"] = np.maximum(pairs["tolerance"], _measured_noise(target, pairs))
    _judge_nonfinite(target, reference, pairs)
    pairs["comparable"] = (
        (pairs["nonfinite_mismatch"] > 0) | np.isfinite(pairs["error"]) | (pairs["metric"] == "relative_l2")
    )
    pairs["agrees"] = (pairs["error"] <= pairs["tolerance"]) & ~(pairs["nonfinite_mismatch"] > 0)
    return Comparison(alignment, pairs, scalar_differences(alignment), problems)


def _tolerances(alignment: Alignment, rules: Rules, ids_t: Ints, ids_r: Ints) -> Floats:
    """Per pair, from both dtypes, the maker's kind and the length of its sums."""
    target, reference = alignment.target, alignment.reference
    coarse = _coarsest(target, reference)
    dtypes_t = target.classes["dtype"].to_numpy()[ids_t]
    dtypes_r = reference.classes["dtype"].to_numpy()[ids_r]
    makers = target.classes["producer"].to_numpy()[ids_t]
    sizes = target.classes["size"].to_numpy()
    tolerances = np.empty(len(ids_t))
    known: dict[tuple[str, str, str, int], float] = {}
    for row, (t, a, b, maker) in enumerate(zip(ids_t.tolist(), dtypes_t, dtypes_r, makers.tolist(), strict=True)):
        kind = alignment.kinds_t[maker] if maker >= 0 else "identity"
        length = _reduction_length([int(sizes[v]) for v in target.reads[maker]], int(sizes[t])) if maker >= 0 else 1
        dtype = _no_finer(_finer(a, b), coarse)
        key = (dtype, dtype, kind, length)
        if key not in known:
            known[key] = rules.tolerance(*key)
        tolerances[row] = known[key]
    return tolerances


def _measured_noise(target: Flow, pairs: pd.DataFrame) -> Floats:
    """Per pair, 16 times the lower quartile of its phase's errors where values alone made the pair; 0 if discrete.

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
            noise[phase == name] = _NOISE_MARGIN * float(np.quantile(errors, 0.25))
    measured: Floats = np.minimum(noise, 64 * tolerance)
    return measured


def _coarsest(target: Flow, reference: Flow) -> str:
    """The least exact dtype of at least 5 % of either side's values: float32 ones downstream carry its errors."""
    coarsest = "float32"
    for flow in (target, reference):
        made = flow.classes.loc[(flow.classes["producer"] >= 0) & (flow.classes["size"] > 1), "dtype"]
        for dtype, share in made.value_counts(normalize=True).items():
            if share >= 0.05 and unit_roundoff(str(dtype)) > unit_roundoff(coarsest):
                coarsest = str(dtype)
    return coarsest


def _finer(a: str, b: str) -> str:
    """The finer of two floating dtypes: where one side alone rounds coarsely, that is a difference, not noise."""
    floating = [dtype for dtype in (a, b) if dtype in UNIT_ROUNDOFF]
    return min(floating, key=unit_roundoff) if floating else a


def _no_finer(dtype: str, coarse: str) -> str:
    return coarse if dtype in UNIT_ROUNDOFF and unit_roundoff(dtype) < unit_roundoff(coarse) else dtype


def _reduction_length(inputs: list[int], output: int) -> int:
    """Terms of an op's sums: K of (M,K) x (K,N) = sqrt(MK KN / MN); input over output elements of a reduction."""
    if output <= 0 or not inputs:
        return 1
    if len(inputs) >= 2:
        return max(1, round(math.sqrt(inputs[0] * inputs[1] / output)))
    return max(1, inputs[0] // output)


def _resolution(alignment: Alignment) -> float:
    """Four units of the printed numbers: two rounded numbers of either side."""
    return 4 * max(alignment.target.trace.source.resolution, alignment.reference.trace.source.resolution)


def _discrete(flow: Flow, ids: Ints) -> Flags:
    dtypes = flow.classes["dtype"]
    flags: Flags = dtypes.str.startswith(("int", "uint", "bool")).to_numpy(dtype=bool)[ids]
    return flags


def _tensors_to_compare(target: Flow, ids_t: Ints, reference: Flow, ids_r: Ints) -> tuple[Ints, Ints]:
    """Per pair one tensor of either class: whole ones of one shape if there are any, else those that stand for it."""
    members_t, members_r = _members(target), _members(reference)
    chosen_t = target.classes["tensor"].to_numpy()[ids_t].copy()
    chosen_r = reference.classes["tensor"].to_numpy()[ids_r].copy()
    for row, (t, r) in enumerate(zip(ids_t.tolist(), ids_r.tolist(), strict=True)):
        shapes_r = members_r.get(r)
        shapes_t = members_t.get(t)
        if not shapes_t or not shapes_r:
            continue
        common = next((shape for shape in shapes_t if shape in shapes_r), None)
        chosen_t[row] = shapes_t[common] if common is not None else next(iter(shapes_t.values()))
        chosen_r[row] = shapes_r[common] if common is not None else next(iter(shapes_r.values()))
    return chosen_t, chosen_r


def _members(flow: Flow) -> dict[int, dict[tuple[int, ...], int]]:
    """Per class the whole tensors it has, one per shape (without axes of length 1), outputs first."""
    tensors = flow.tensors
    rows = np.flatnonzero((tensors["file"] != "").to_numpy() & (flow.tensor_class >= 0))
    rows = rows[np.argsort((tensors["role"].to_numpy()[rows] != "output"), kind="stable")]
    table: dict[int, dict[tuple[int, ...], int]] = {}
    shapes = tensors["shape"].to_numpy()
    for row, value in zip(rows.tolist(), flow.tensor_class[rows].tolist(), strict=True):
        shape = tuple(length for length in (shapes[row] or ()) if length != 1)
        table.setdefault(value, {}).setdefault(shape, row)
    return table


_METRICS = tuple(Metrics.__dataclass_fields__)


def _measure_whole(
    alignment: Alignment, pairs: pd.DataFrame, discrete: Flags, progress: Callable[[float], None] | None
) -> tuple[Problem, ...]:
    """Fill in the metrics of pairs of whole tensors; what cannot be read keeps its statistics and becomes a problem."""
    target, reference = alignment.target, alignment.reference
    whole_t = (target.tensors["file"] != "").to_numpy()[pairs["target_tensor"]]
    whole_r = (reference.tensors["file"] != "").to_numpy()[pairs["reference_tensor"]]
    todo = np.flatnonzero(whole_t & whole_r)
    columns: dict[str, Floats] = {name: np.full(len(pairs), np.nan) for name in (*_METRICS, "rounded_error")}
    error, metric, layout = (pairs[name].to_numpy(copy=True) for name in ("error", "metric", "layout"))
    tolerance = pairs["tolerance"].to_numpy(copy=True)
    tensors_t, tensors_r = pairs["target_tensor"].to_numpy(), pairs["reference_tensor"].to_numpy()
    problems: list[Problem] = []

    def measure(row: int) -> tuple[int, str, Metrics | None, float]:
        try:
            a, b = _shaped(target, int(tensors_t[row])), _shaped(reference, int(tensors_r[row]))
            found = compare(a, b, float(tolerance[row]))
            name = "same" if a.shape == b.shape else "reshape"
            if found.relative_l2 > tolerance[row] and a.size > 1:
                name, a, b = laid_out(a, b)
                if "transpose" in name:
                    found = compare(a, b, float(tolerance[row]))
            narrow = _narrower(target, int(tensors_t[row]), reference, int(tensors_r[row]))
            rounded = compare(round_to(a, narrow), round_to(b, narrow), 0.0).relative_l2 if narrow else np.nan
        except (DumpError, OSError, ValueError) as reason:
            return row, str(reason), None, np.nan
        return row, name, found, rounded

    with ThreadPoolExecutor(2) as pool:
        for done, (row, name, found, rounded) in enumerate(pool.map(measure, todo.tolist())):
            if found is None:
                problems.append(Problem(str(target.tensors["file"].iat[int(tensors_t[row])]), name))
                continue
            for field in _METRICS:
                columns[field][row] = getattr(found, field)
            columns["rounded_error"][row] = rounded
            layout[row] = name
            if discrete[row]:  # indices and masks are equal or not
                size = int(target.tensors["size"].iat[int(tensors_t[row])])
                metric[row], error[row], tolerance[row] = "mismatches", found.mismatches / max(1, size), 0.0
            else:
                metric[row], error[row] = "relative_l2", found.relative_l2
            if progress and done % 64 == 0:
                progress(done / len(todo))
    for column, values in columns.items():
        pairs[column] = values
    pairs["error"], pairs["metric"], pairs["layout"], pairs["tolerance"] = error, metric, layout, tolerance
    return tuple(problems)


def _shaped(flow: Flow, tensor: int) -> AnyArray:
    """The whole tensor in its recorded shape (graph-mode files of reshaped outputs carry the input's)."""
    array = flow.trace.array(tensor)
    shape = flow.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape, dtype=np.int64):
        return array.reshape(shape)
    return array


def _narrower(target: Flow, t: int, reference: Flow, r: int) -> str:
    """The narrower dtype of two floating ones that differ in precision, '' if they do not."""
    a, b = target.tensors["dtype"].iat[t], reference.tensors["dtype"].iat[r]
    units = unit_roundoff(a), unit_roundoff(b)
    return "" if units[0] == units[1] or 0.0 in units else (a if units[0] > units[1] else b)


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
    sides = [Fingerprints(*(np.array([number]) for number in (size, *figures, 4.0))) for figures in (ours, theirs)]
    one = np.array([0])
    error, tolerance = (
        float(distance(sides[0], one, sides[1], one)[0]),
        max(_resolution(alignment), alignment.tolerance),
    )
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
    if found.relative_l2 <= max(1e-2, 10 * alignment.tolerance) or error > tolerance:
        row |= {name: getattr(found, name) for name in _METRICS}
        row |= {"metric": "relative_l2", "error": found.relative_l2, "layout": layout}
    return row


def _put_together(alignment: Alignment, group: Group) -> tuple[str, AnyArray, AnyArray]:
    """(layout, target, reference) with the parts of the one side put together like the fused tensor of the other."""
    arrays = [
        [_shaped(flow, int(flow.classes["tensor"].iat[value])) for value in values]
        for flow, values in ((alignment.target, group.target), (alignment.reference, group.reference))
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
        ours, theirs = sums_t[int(pairs["target"].iat[row])], sums_r[int(pairs["reference"].iat[row])]
        if ours and theirs:
            pairs.loc[pairs.index[row], "metric"] = "hash"
            if ours & theirs:
                pairs.loc[pairs.index[row], "error"] = 0.0
