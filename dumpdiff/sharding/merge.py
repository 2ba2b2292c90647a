"""One trace of the whole run from the traces of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph.statistics import compute_statistics
from ..model.arrays import AnyArray, Flags, Floats, Hashes, Ints, Objects
from ..model.trace import Problem, Trace
from ..rulebook import RelationRule
from .assemblies import find_assemblies
from .batch_slices import BatchSlices
from .combined_tensors import CombinedTensor, Shards, combine_tensor
from .layout_rows import LayoutRow, describe_layout
from .other_run import OtherRun
from .padding import find_padded_rows, format_paddings
from .partial_sums import is_reduced, list_reductions
from .relation import Relation, combine_statistics
from .relation_rules import apply_relation_rules
from .relations import find_relations
from .sibling_tensors import Siblings
from .slices import Assembly
from .taken_ranks import take_ranks
from .unproved_relations import complete_relations

_STATISTICS = ("max", "min", "mean", "norm")


@dataclass(frozen=True)
class MergedRun:
    """Ranks of one step merged to one trace."""

    trace: Trace
    ranks: tuple[str, ...]
    layout: tuple[LayoutRow, ...]
    notes: tuple[str, ...]
    #: merged tensor -> ranks whose copy of a replicated value differs
    deviations: dict[int, tuple[str, ...]]
    find_shards: Callable[[str], Shards | None]  #: of a file of the trace
    #: op of the trace -> the rank that holds what it writes, if others hold other numbers
    holders: Mapping[str, str]


@dataclass(frozen=True)
class _Columns:
    """Columns of the merged tensors, filled row by row; at first those of the base rank."""

    statistics: Floats  #: (rows, 4) max, min, mean and norm
    sizes: Ints
    shapes: Objects
    files: Objects  #: '' where a whole tensor cannot be combined
    hashes: Objects
    content: Hashes
    addends: Floats  #: what the root mean squares of summands add up to, NaN if it is no sum
    is_trusted: Flags
    nonfinite: Ints  #: 1 if an element is NaN or Inf, 0 if none, -1 if unknown


def merge_ranks(
    siblings: Siblings,
    other: OtherRun,
    slices: BatchSlices,
    rules: Mapping[str, RelationRule],
) -> MergedRun:
    """Return sibling ranks as one; ``other`` has the values of the other run.

    ``rules`` has the relations, by the name of the kind, that are not looked for.
    """
    found = find_relations(siblings, other, slices)
    complete = complete_relations(siblings, other, slices, found)
    all_relations, ruled_assemblies = apply_relation_rules(
        rules, siblings, found.kinds, complete.relations
    )
    relations, deviations = take_ranks(siblings, other.index, all_relations)
    assemblies = find_assemblies(siblings, other, found.kinds, found.matches, relations)
    padded_rows = find_padded_rows(siblings, other, relations, found.matches, assemblies)
    assemblies |= {**padded_rows.assemblies, **ruled_assemblies}
    whole_shapes = [
        None if match < 0 else other.get_shape(match) for match in found.matches.tolist()
    ]
    columns = _combine_statistics(siblings, relations)
    tensors = _combine_tensors(siblings, relations, assemblies, whole_shapes, columns)
    _use_reductions(siblings, relations, columns)
    _distrust_unknown_sums(relations, columns)

    def find_shards(file: str) -> Shards | None:
        return tensors[file].find_shards() if file in tensors else None

    return MergedRun(
        _build_trace(siblings, columns, tensors),
        siblings.names,
        describe_layout(siblings, found.kinds, relations, assemblies),
        (
            *_list_notes(siblings, relations, columns.is_trusted, complete.separate_modules),
            *format_paddings(padded_rows),
        ),
        deviations,
        find_shards,
        _find_holders(siblings, relations),
    )


def _find_holders(siblings: Siblings, relations: Sequence[Relation | None]) -> dict[str, str]:
    """Return op -> the rank whose values were taken for what it writes, where ranks differ."""
    flow = siblings.flows[siblings.base]
    names = flow.trace.ops["name"].to_numpy()[flow.tensors["op"].to_numpy()]
    is_output = (flow.tensors["slot_kind"] == "output").to_numpy()
    holders: dict[str, str] = {}
    for row in np.flatnonzero(is_output & ~siblings.is_constant).tolist():
        relation = relations[row]
        if relation is None or relation.is_sum or len(relation.parts) > 1:
            continue
        labels = siblings.labels[row]
        holder = relation.parts[0][0]
        if holder != siblings.base and labels[holder] != labels[siblings.base]:
            holders[names[row]] = siblings.names[holder]
    return holders


def _combine_statistics(siblings: Siblings, relations: Sequence[Relation | None]) -> _Columns:
    """Return the columns with the statistics and sizes of the combined values."""
    table = siblings.flows[siblings.base].tensors
    columns = _Columns(
        statistics=table[list(_STATISTICS)].to_numpy(copy=True),
        sizes=siblings.sizes.max(axis=1),
        shapes=table["shape"].to_numpy(copy=True),
        files=table["file"].to_numpy(copy=True),
        hashes=table["hash"].to_numpy(copy=True),
        content=table["content"].to_numpy(copy=True),
        addends=_measure_addends(siblings, relations),
        is_trusted=_collect_trust(siblings),
        nonfinite=siblings.collect("nonfinite", -1).max(axis=1).astype(np.int8),
    )
    rows_of: dict[Relation, list[int]] = {}
    for row, relation in enumerate(relations):
        if relation is not None:
            rows_of.setdefault(relation, []).append(row)
        elif not siblings.is_constant[row]:
            columns.is_trusted[row] = False
    for relation, rows in rows_of.items():
        columns.statistics[rows], columns.sizes[rows] = combine_statistics(
            siblings.statistics[rows], siblings.sizes[rows], relation
        )
    return columns


def _measure_addends(siblings: Siblings, relations: Sequence[Relation | None]) -> Floats:
    """Return (rows,) how large the summands of each sum over ranks are, also of what reduces them.

    Root mean squares; of a sum of several parts, those of the part with the largest.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        rms = siblings.statistics[:, :, 3] / np.sqrt(siblings.sizes)
    addends = np.full(len(relations), np.nan)
    for row, relation in enumerate(relations):
        if relation is not None and relation.is_sum:
            totals = [float(rms[row, list(part)].sum()) for part in relation.parts]
            addends[row] = abs(relation.factor) * max(totals)
    for row, output in list_reductions(siblings):
        relation, result_relation = relations[row], relations[output]
        if relation is not None and result_relation is not None:
            addends[output] = addends[row] * abs(result_relation.factor / relation.factor)
    return addends


def _collect_trust(siblings: Siblings) -> Flags:
    is_trusted = np.ones(len(siblings.rows), dtype=bool)
    for rank, flow in enumerate(siblings.flows):
        ids = siblings.rows[:, rank]
        is_trusted &= np.where(ids >= 0, flow.tensors["trusted"].to_numpy()[ids], True)
    return is_trusted


def _combine_tensors(
    siblings: Siblings,
    relations: Sequence[Relation | None],
    assemblies: Mapping[int, Assembly],
    whole_shapes: Sequence[tuple[int, ...] | None],
    columns: _Columns,
) -> dict[str, CombinedTensor]:
    """Return file -> combined tensor; fill in files, shapes and hashes.

    ``whole_shapes`` are those of equal values of the other run.
    """
    tensors: dict[str, CombinedTensor] = {}
    for row, relation in enumerate(relations):
        if relation is None:
            continue
        assembly = assemblies.get(row)
        is_permuted = assembly is not None and assembly.order is not None
        if relation.is_replicated and not is_permuted:
            rank = relation.parts[0][0]
            tensor = int(siblings.rows[row, rank])
            columns.content[row] = siblings.flows[rank].tensors["content"].iat[tensor]
            columns.hashes[row] = siblings.flows[rank].tensors["hash"].iat[tensor]
        else:
            columns.hashes[row], columns.content[row] = "", 0
        if len(relation.parts) > 1 or assembly is not None:
            columns.shapes[row] = _join_shapes(siblings, row, relation, assembly, whole_shapes[row])
        columns.files[row] = ""
        if assembly is not None or len(relation.parts) == 1:
            combined = combine_tensor(siblings, row, relation, assembly)
            if combined is not None:
                columns.files[row] = _add_tensor(tensors, combined)
                if assembly is not None and assembly.kept is not None:
                    _measure_kept(combined, row, columns)
    return tensors


def _measure_kept(combined: CombinedTensor, row: int, columns: _Columns) -> None:
    """Fill in the statistics of a tensor without its padding, which the ranks recorded with it."""
    kept = combined.load()
    *statistics, columns.nonfinite[row] = compute_statistics(kept)
    columns.statistics[row], columns.sizes[row] = statistics, kept.size


def _add_tensor(tensors: dict[str, CombinedTensor], combined: CombinedTensor) -> str:
    """Return the name under which the tensor was added."""
    file = combined.file
    while file in tensors:
        file += "'"
    tensors[file] = combined
    return file


def _join_shapes(
    siblings: Siblings,
    row: int,
    relation: Relation,
    assembly: Assembly | None,
    whole: tuple[int, ...] | None,
) -> tuple[int, ...] | None:
    """Return the shape of a concatenated tensor, None if the axis is unknown."""
    shapes = []
    for part in relation.parts:
        tensor = int(siblings.rows[row, part[0]])
        shapes.append(siblings.flows[part[0]].tensors["shape"].iat[tensor])
    if None in shapes or len({len(shape) for shape in shapes}) != 1:
        return None
    if assembly is not None:
        empty = [np.broadcast_to(np.int8(0), shape) for shape in shapes]
        return tuple(assembly.join(empty).shape)
    if whole is None or len(whole) != len(shapes[0]):
        return None
    differing = [axis for axis in range(len(whole)) if whole[axis] != shapes[0][axis]]
    return tuple(whole) if len(differing) <= 1 else None


def _use_reductions(
    siblings: Siblings, relations: Sequence[Relation | None], columns: _Columns
) -> None:
    """Give the partial sums of statistics the value that the reduction of them wrote."""
    statistics, sizes, shapes, files = (
        columns.statistics, columns.sizes, columns.shapes, columns.files
    )  # fmt: skip
    for row, output in list_reductions(siblings):
        relation, result_relation = relations[row], relations[output]
        if relation is None or not relation.is_sum or result_relation is None:
            continue
        for equal_row in siblings.list_equal_rows(row).tolist():
            equal_relation = relations[equal_row]
            if equal_relation is None or not equal_relation.is_sum:
                continue
            # the statistics of the result are multiplied by its own factor
            ratio = equal_relation.factor / result_relation.factor
            if files[equal_row]:
                result = statistics[output] / result_relation.factor
                if ratio != 1.0 or not is_reduced(siblings, row, relation, result):
                    continue
                files[equal_row] = files[output]
            statistics[equal_row] = statistics[output] * ratio
            sizes[equal_row] = sizes[output]
            if len(shapes[equal_row] or ()) == len(shapes[output] or ()):
                shapes[equal_row] = shapes[output]


def _distrust_unknown_sums(relations: Sequence[Relation | None], columns: _Columns) -> None:
    """Mark the sums that statistics do not tell."""
    is_unknown = np.isnan(columns.statistics[:, [0, 3]]).all(axis=1)
    for row, relation in enumerate(relations):
        if relation is not None and relation.is_sum and not columns.files[row] and is_unknown[row]:
            columns.is_trusted[row] = False


def _build_trace(
    siblings: Siblings, columns: _Columns, tensors: Mapping[str, CombinedTensor]
) -> Trace:
    flow = siblings.flows[siblings.base]
    table = flow.tensors.copy()
    table[list(_STATISTICS)] = columns.statistics
    table["size"] = columns.sizes
    table["shape"], table["file"] = columns.shapes, columns.files
    table["hash"], table["content"] = columns.hashes, columns.content
    table["nonfinite"] = columns.nonfinite
    table["addends"] = columns.addends
    table["trusted"] = columns.is_trusted
    problems: list[Problem] = []
    for name, rank_flow in zip(siblings.names, siblings.flows, strict=True):
        problems += [
            replace(problem, file=f"{name}: {problem.file}")
            for problem in (*rank_flow.trace.problems, *rank_flow.problems)
        ]
    base = flow.trace
    details = {**base.source.details, "merged": list(siblings.names)}
    source = replace(base.source, rank=None, process=None, details=details)

    def load(file: str) -> AnyArray:
        if file not in tensors and base.load is not None:
            return base.load(file)  # a constant
        return tensors[file].load()

    return Trace(source, base.ops, table, tuple(problems), load)


def _list_notes(
    siblings: Siblings,
    relations: Sequence[Relation | None],
    is_trusted: Flags,
    separate_modules: Sequence[str],
) -> tuple[str, ...]:
    notes = []
    n_unknown = sum(
        relation is None and not is_constant
        for relation, is_constant in zip(relations, siblings.is_constant, strict=True)
    )
    if n_unknown:
        notes.append(f"{n_unknown:,} values of single ranks (ids, masks) have no counterpart")
    n_sums = sum(
        relation is not None and relation.is_sum and not is_trusted[row]
        for row, relation in enumerate(relations)
    )
    if n_sums:
        notes.append(
            f"{n_sums:,} partial sums cannot be added up from statistics: dump whole tensors"
        )
    if separate_modules:
        notes.append(
            f"{len(separate_modules):,} modules that each rank has of its own (experts) "
            f"were not compared, the first is {separate_modules[0]}"
        )
    if siblings.n_dropped:
        notes.append(f"{siblings.n_dropped:,} ops of single ranks have no sibling")
    return tuple(notes)
