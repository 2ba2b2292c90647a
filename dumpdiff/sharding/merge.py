"""One trace of the whole run from the traces of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ..graph.statistics import compute_statistics
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import is_floating
from ..model.trace import Problem, Trace
from ..rulebook import RelationRule
from .assemblies import find_assemblies
from .batch_slices import BatchSlices
from .kinds import describe_kinds
from .other_run import OtherRun, load_shaped
from .partial_sums import list_reductions, load_ranks
from .relation import Relation, add_arrays, combine_statistics
from .relation_rules import apply_relation_rules
from .relations import find_relations
from .sibling_tensors import Siblings
from .slices import Assembly
from .unproved_relations import complete_relations

#: Relative difference up to which a sum over ranks is what the collective wrote.
_REDUCTION_ERROR = 1e-4


@dataclass(frozen=True)
class LayoutRow:
    """How the values of one kind are distributed over the ranks."""

    name: str
    relation: str
    count: int  #: values of the kind


@dataclass(frozen=True)
class Shards:
    """Which ranks hold which elements of a whole tensor."""

    names: tuple[str, ...]  #: of the ranks that hold each part; '' of those that hold none
    parts: AnyArray  #: the number of the part that each element belongs to


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


def merge_ranks(
    siblings: Siblings,
    other: OtherRun,
    slices: BatchSlices,
    rules: Mapping[str, RelationRule],
) -> MergedRun:
    """Return sibling ranks as one; ``other`` has the values of the other run.

    ``rules`` has the relations, by the name of the kind, that are not looked for.
    """
    return _Merger(siblings, other, slices, rules).run()


class _Merger:
    def __init__(
        self,
        siblings: Siblings,
        other: OtherRun,
        slices: BatchSlices,
        rules: Mapping[str, RelationRule],
    ) -> None:
        self._siblings = siblings
        self._other = other
        self._index = other.index
        row_relations = find_relations(siblings, other, slices)
        self._kinds = row_relations.kinds
        self._matches = row_relations.matches
        complete = complete_relations(siblings, other, slices, row_relations)
        self._relations, self._ruled_assemblies = apply_relation_rules(
            rules, siblings, self._kinds, complete.relations
        )
        self._separate_modules = complete.separate_modules
        self._reduction_rows = list_reductions(siblings)
        self._base = siblings.base
        self._base_flow = siblings.flows[self._base]
        table = self._base_flow.tensors
        self._is_constant = table["constant"].to_numpy()
        self._dtypes = table["dtype"].tolist()
        self._deviations: dict[int, tuple[str, ...]] = {}
        self._recipes: dict[str, _Recipe] = {}

    def run(self) -> MergedRun:
        n_rows = len(self._siblings.rows)
        patterns = self._choose_patterns()
        statistics = np.full((n_rows, 4), np.nan)
        sizes = self._siblings.sizes.max(axis=1)
        for group_relation, rows in self._group_rows(patterns):
            statistics[rows], sizes[rows] = combine_statistics(
                self._siblings.statistics[rows], self._siblings.sizes[rows], group_relation
            )
        assemblies = find_assemblies(
            self._siblings, self._other, self._kinds, self._matches, patterns
        )
        assemblies |= self._ruled_assemblies
        table = self._base_flow.tensors.copy()
        shapes = table["shape"].tolist()
        files = table["file"].tolist()
        hashes = table["hash"].to_numpy(copy=True)
        content = table["content"].to_numpy(copy=True)
        is_trusted = self._collect_trust()
        for row, relation in enumerate(patterns):
            if relation is None:
                if not self._is_constant[row]:
                    is_trusted[row] = False
                continue
            assembly = assemblies.get(row)
            is_permuted = assembly is not None and assembly.order is not None
            if relation.is_replicated and not is_permuted:
                files[row] = self._name_file(row, relation, None)
                rank = relation.parts[0][0]
                rank_table = self._siblings.flows[rank].tensors
                tensor = int(self._siblings.rows[row, rank])
                content[row] = rank_table["content"].iat[tensor]
                hashes[row] = rank_table["hash"].iat[tensor]
                continue
            hashes[row], content[row] = "", 0
            if len(relation.parts) > 1:
                shapes[row] = self._get_joined_shape(row, relation, assembly)
            can_join = assembly is not None or len(relation.parts) == 1
            files[row] = self._name_file(row, relation, assembly) if can_join else ""
        self._use_reductions(patterns, statistics, sizes, shapes, files, is_trusted)
        for column, name in enumerate(("max", "min", "mean", "norm")):
            values = table[name].to_numpy(copy=True)
            is_combined = np.array([relation is not None for relation in patterns])
            values[is_combined] = statistics[is_combined, column]
            table[name] = values
        self._measure_sums(table, patterns, files, is_trusted)
        table["size"] = sizes
        table["shape"] = np.fromiter(shapes, dtype=object, count=n_rows)
        table["file"] = np.fromiter(files, dtype=object, count=n_rows)
        table["hash"], table["content"] = hashes, content
        table["nonfinite"] = self._siblings.collect("nonfinite", -1).max(axis=1).astype(np.int8)
        table["trusted"] = is_trusted
        trace = self._build_trace(table)
        return MergedRun(
            trace,
            self._siblings.names,
            self._describe_layout(patterns, assemblies),
            self._list_notes(patterns, is_trusted),
            self._deviations,
            self._find_shards,
        )

    def _find_shards(self, file: str) -> Shards | None:
        recipe = self._recipes.get(file)
        return None if recipe is None else recipe.find_shards()

    def _choose_patterns(self) -> list[Relation | None]:
        """Return the relations with the ranks whose values are taken.

        Where ranks that hold the same part have different numbers, the one that differs from the
        others is taken: the comparison then shows it.
        """
        labels = self._siblings.labels
        chosen: list[Relation | None] = []
        for row, relation in enumerate(self._relations):
            row_labels = labels[row].tolist()
            if relation is None or list(relation.pattern) == row_labels:
                chosen.append(relation)
                continue
            replacements = {}
            for first in sorted(set(relation.pattern) - {-1}):
                ranks = [
                    rank
                    for rank, label in enumerate(relation.pattern)
                    if label == first and row_labels[rank] >= 0
                ]
                if not ranks:
                    continue
                replacements[first] = ranks[0]
                if len({row_labels[rank] for rank in ranks}) > 1:
                    deviating_rank = self._find_deviating_rank(row, relation, ranks)
                    self._deviations[row] = (self._siblings.names[deviating_rank],)
                    replacements[first] = deviating_rank
            parts = []
            for part in relation.parts:
                ranks = [replacements[rank] for rank in part if rank in replacements]
                if ranks:
                    parts.append(tuple(ranks))
            chosen.append(replace(relation, parts=tuple(parts)) if parts else None)
        return chosen

    def _find_deviating_rank(self, row: int, relation: Relation, ranks: list[int]) -> int:
        """Return the rank whose copy differs from the other run, else from the other ranks."""
        siblings = self._siblings
        if relation.is_replicated:
            sizes = siblings.sizes[row, ranks]
            entries = self._index.find(
                sizes, siblings.statistics[row, ranks], np.full(len(ranks), _REDUCTION_ERROR)
            )
            strangers = [rank for rank, entry in zip(ranks, entries, strict=True) if entry < 0]
            if 0 < len(strangers) < len(ranks):
                return strangers[0]
        counts = dict.fromkeys(ranks, 0)
        for rank in ranks:
            counts[rank] = sum(
                int(siblings.labels[row, rank] == siblings.labels[row, peer]) for peer in ranks
            )
        return min(reversed(ranks), key=counts.__getitem__)

    def _group_rows(self, relations: Sequence[Relation | None]) -> list[tuple[Relation, Ints]]:
        rows_of: dict[Relation, list[int]] = {}
        for row, relation in enumerate(relations):
            if relation is not None:
                rows_of.setdefault(relation, []).append(row)
        return [(relation, np.array(rows)) for relation, rows in rows_of.items()]

    def _collect_trust(self) -> Flags:
        siblings = self._siblings
        is_trusted = np.ones(len(siblings.rows), dtype=bool)
        for rank, flow in enumerate(siblings.flows):
            ids = siblings.rows[:, rank]
            is_trusted &= np.where(ids >= 0, flow.tensors["trusted"].to_numpy()[ids], True)
        return is_trusted

    def _get_joined_shape(
        self, row: int, relation: Relation, assembly: Assembly | None
    ) -> tuple[int, ...] | None:
        """Return the shape of a concatenated tensor, None if the axis is unknown."""
        shapes = []
        for part in relation.parts:
            tensor = int(self._siblings.rows[row, part[0]])
            shapes.append(self._siblings.flows[part[0]].tensors["shape"].iat[tensor])
        if None in shapes or len({len(shape) for shape in shapes}) != 1:
            return None
        if assembly is not None:
            empty = [np.broadcast_to(np.int8(0), shape) for shape in shapes]
            return tuple(assembly.join(empty).shape)
        match = int(self._matches[row])
        if match < 0:
            return None
        whole = self._other.get_shape(match)
        if whole is None or len(whole) != len(shapes[0]):
            return None
        differing = [axis for axis in range(len(whole)) if whole[axis] != shapes[0][axis]]
        return tuple(whole) if len(differing) <= 1 else None

    def _name_file(self, row: int, relation: Relation, assembly: Assembly | None) -> str:
        """Return the name of the combined whole tensor, and keep how it is loaded; '' if none."""
        parts = []
        first_file = ""
        for part in relation.parts:
            tensors = []
            for rank in part:
                tensor = int(self._siblings.rows[row, rank])
                file = self._siblings.flows[rank].tensors["file"].iat[tensor]
                if not file:
                    return ""
                first_file = first_file or file
                tensors.append((self._siblings.flows[rank].trace, tensor))
            parts.append(tuple(tensors))
        ranks = [" + ".join(self._siblings.names[rank] for rank in part) for part in relation.parts]
        name = f"{first_file} ({', '.join(ranks)})"
        while name in self._recipes:
            name += "'"
        labels = self._siblings.labels[row].tolist()
        names = tuple(self._name_holders(part, labels) for part in relation.parts)
        if len(names) == 1 and len(set(labels)) > 1:
            names = (*names, "")  # the other ranks hold other numbers, which were not taken
        self._recipes[name] = _Recipe(tuple(parts), relation.factor, assembly, names)
        return name

    def _name_holders(self, part: tuple[int, ...], labels: list[int]) -> str:
        """Return the ranks that hold a part: 'rank 0, rank 1'; '' if it is a sum over ranks."""
        if len(part) > 1:
            return ""
        holders = [rank for rank, label in enumerate(labels) if label == labels[part[0]]]
        return ", ".join(self._siblings.names[rank] for rank in holders)

    def _use_reductions(
        self,
        patterns: list[Relation | None],
        statistics: Floats,
        sizes: Ints,
        shapes: list[tuple[int, ...] | None],
        files: list[str],
        is_trusted: Flags,
    ) -> None:
        """Give the partial sums of statistics the value that the reduction of them wrote."""
        for row, output in self._reduction_rows:
            relation, result_relation = patterns[row], patterns[output]
            if relation is None or not relation.is_sum or result_relation is None:
                continue
            for equal_row in self._siblings.list_equal_rows(row).tolist():
                equal_relation = patterns[equal_row]
                if equal_relation is None or not equal_relation.is_sum:
                    continue
                # the statistics of the result are multiplied by its own factor
                ratio = equal_relation.factor / result_relation.factor
                if files[equal_row]:
                    if ratio != 1.0 or not self._is_reduced(
                        row, relation, statistics[output] / result_relation.factor
                    ):
                        continue
                    files[equal_row] = files[output]
                statistics[equal_row] = statistics[output] * ratio
                sizes[equal_row] = sizes[output]
                if len(shapes[equal_row] or ()) == len(shapes[output] or ()):
                    shapes[equal_row] = shapes[output]

    def _is_reduced(self, row: int, relation: Relation, result: Floats) -> bool:
        """Return whether a collective wrote the sum, mean or maximum of what it read."""
        arrays = load_ranks(self._siblings, row)
        if arrays is None:
            return True
        arrays = [array.astype(np.float64) for array in arrays]
        n_summands = len(relation.parts[0])
        totals, highs = [], []
        for part in relation.parts:
            totals.append(add_arrays(arrays, part).reshape(-1))
            highs.append(np.max([arrays[rank] for rank in part], axis=0).reshape(-1))
        total = np.concatenate(totals)
        for combined in (total, total / n_summands, np.concatenate(highs)):
            numbers = np.array(compute_statistics(combined)[:4])
            limit = _REDUCTION_ERROR * max(abs(result[0]), abs(result[1]), 1e-30)
            if bool(np.all(np.abs(numbers[:3] - result[:3]) <= limit)):
                return True
        return False

    def _measure_sums(
        self,
        table: pd.DataFrame,
        patterns: list[Relation | None],
        files: list[str],
        is_trusted: Flags,
    ) -> None:
        """Mark the sums that statistics do not tell."""
        norms = table["norm"].to_numpy()
        highs = table["max"].to_numpy()
        for row, relation in enumerate(patterns):
            if relation is None or not relation.is_sum or files[row]:
                continue
            if np.isnan(norms[row]) and np.isnan(highs[row]):
                is_trusted[row] = False

    def _build_trace(self, table: pd.DataFrame) -> Trace:
        base = self._base_flow.trace
        names = self._siblings.names
        problems: list[Problem] = []
        for name, flow in zip(names, self._siblings.flows, strict=True):
            problems += [
                replace(problem, file=f"{name}: {problem.file}")
                for problem in (*flow.trace.problems, *flow.problems)
            ]
        source = replace(
            base.source,
            rank=None,
            process=None,
            details={**base.source.details, "merged": list(names)},
        )
        recipes, load_own = self._recipes, base.load

        def load(name: str) -> AnyArray:
            if name not in recipes and load_own is not None:
                return load_own(name)  # a constant
            return recipes[name].load()

        return Trace(source, base.ops, table, tuple(problems), load)

    def _describe_layout(
        self, patterns: list[Relation | None], assemblies: dict[int, Assembly]
    ) -> tuple[LayoutRow, ...]:
        words = describe_kinds(self._siblings, self._kinds)
        first_row: dict[int, int] = {}
        counts: dict[int, int] = {}
        for row, kind in enumerate(self._kinds.tolist()):
            if self._is_constant[row]:
                continue
            first_row.setdefault(kind, row)
            counts[kind] = counts.get(kind, 0) + 1
        rows = []
        for kind, row in first_row.items():
            relation = patterns[row]
            shape = self._base_flow.tensors["shape"].iat[row]
            text = describe_relation(relation, assemblies.get(row), shape, self._siblings.names)
            rows.append(LayoutRow(str(words[kind]), text, counts[kind]))
        return tuple(rows)

    def _list_notes(self, patterns: list[Relation | None], is_trusted: Flags) -> tuple[str, ...]:
        notes = []
        n_unknown = sum(
            relation is None and not is_constant
            for relation, is_constant in zip(patterns, self._is_constant, strict=True)
        )
        if n_unknown:
            notes.append(f"{n_unknown:,} values of single ranks (ids, masks) have no counterpart")
        n_sums = sum(
            relation is not None and relation.is_sum and not is_trusted[row]
            for row, relation in enumerate(patterns)
        )
        if n_sums:
            notes.append(
                f"{n_sums:,} partial sums cannot be added up from statistics: dump whole tensors"
            )
        if self._separate_modules:
            notes.append(
                f"{len(self._separate_modules):,} modules that each rank has of its own (experts) "
                f"were not compared, the first is {self._separate_modules[0]}"
            )
        if self._siblings.n_dropped:
            notes.append(f"{self._siblings.n_dropped:,} ops of single ranks have no sibling")
        return tuple(notes)


@dataclass(frozen=True, eq=False)
class _Recipe:
    """How a combined whole tensor is loaded."""

    parts: tuple[tuple[tuple[Trace, int], ...], ...]  #: summands of each part
    factor: float
    assembly: Assembly | None
    #: of the ranks that hold each part, '' if it is a sum; a last '' stands for ranks of which no
    #: part was taken
    names: tuple[str, ...]

    def find_shards(self) -> Shards | None:
        """Return which ranks hold which elements; None if all ranks hold all, or of a sum."""
        is_of_some_ranks = len(self.parts) == 1 and len(self.names) > 1
        if "" in self.names[: len(self.parts)] or (self.assembly is None and not is_of_some_ranks):
            return None
        parts = []
        for number, tensors in enumerate(self.parts):
            trace, tensor = tensors[0]
            parts.append(np.full(load_shaped(trace, tensor).shape, number, dtype=np.int16))
        return Shards(self.names, parts[0] if self.assembly is None else self.assembly.join(parts))

    def load(self) -> AnyArray:
        """Return the combined tensor."""
        parts = []
        for tensors in self.parts:
            arrays = [load_shaped(trace, tensor) for trace, tensor in tensors]
            parts.append(add_arrays(arrays, range(len(arrays))))
        combined = parts[0] if self.assembly is None else self.assembly.join(parts)
        if self.factor != 1.0 and is_floating(str(combined.dtype)):
            combined = combined * combined.dtype.type(self.factor)
        return combined


def describe_relation(
    relation: Relation | None,
    assembly: Assembly | None,
    shape: tuple[int, ...] | None,
    names: tuple[str, ...],
) -> str:
    """Return words for a relation: ``4 x 16 x 48[2], joined``."""
    if relation is None:
        return "local to a rank"
    factor = "" if relation.factor == 1.0 else f", times {relation.factor:g}"
    n_parts = len(relation.parts)
    summands = f", each the sum of {len(relation.parts[0])} ranks" if relation.is_sum else ""
    if n_parts == 1:
        if relation.is_sum:
            return f"sum of {len(relation.parts[0])} ranks{factor}"
        return f"replicated{factor}"
    factor = summands + factor
    if assembly is None or shape is None:
        return f"{n_parts} shards{factor}"
    extents = list(map(str, shape))
    extents[assembly.axis] += f"[{n_parts if not assembly.groups else len(assembly.groups)}]"
    if assembly.groups:
        extents[assembly.inner_axis] += f"[{len(assembly.groups[0])}]"
    blocks = ", in blocks" if assembly.order is not None else ""
    return f"{n_parts} shards: {' x '.join(extents)}{blocks}{factor}"
