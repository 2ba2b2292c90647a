"""One trace of the whole run from the traces of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import is_discrete, is_floating
from ..model.trace import COMMUNICATION, Problem, Trace
from .assemblies import find_assemblies
from .kinds import describe_kinds
from .relations import JOINED, SUM, Relation, combine_statistics, find_relations
from .siblings import Siblings
from .slices import Assembly
from .value_index import ValueIndex

#: Collectives that leave the same on all ranks, or each rank its part of the same.
_REDUCTIONS = ("reduce",)
#: Relative difference up to which a sum over ranks is what the collective wrote.
_REDUCTION_ERROR = 1e-4


@dataclass(frozen=True)
class LayoutRow:
    """How the values of one kind are distributed over the ranks."""

    name: str
    relation: str
    count: int  #: values of the kind


@dataclass(frozen=True)
class MergedRun:
    """Ranks of one step merged to one trace."""

    trace: Trace
    ranks: tuple[str, ...]
    layout: tuple[LayoutRow, ...]
    notes: tuple[str, ...]
    #: merged tensor -> ranks whose copy of a replicated value differs
    deviations: dict[int, tuple[str, ...]] = field(default_factory=dict)


def merge_ranks(siblings: Siblings, other: Siblings, index: ValueIndex) -> MergedRun:
    """Return the ranks as one run; ``other`` has the values of the other run, see ``index``."""
    return _Merger(siblings, other, index).run()


class _Merger:
    def __init__(self, siblings: Siblings, other: Siblings, index: ValueIndex) -> None:
        self._siblings = siblings
        self._other = other
        self._index = index
        row_relations = find_relations(siblings, index)
        self._kinds = row_relations.kinds
        self._matches = row_relations.matches
        self._relations: list[Relation | None] = list(row_relations.relations)
        self._base = int(np.argmax((siblings.ops >= 0).sum(axis=0)))
        self._base_flow = siblings.flows[self._base]
        table = self._base_flow.tensors
        self._is_constant = table["constant"].to_numpy()
        self._dtypes = table["dtype"].tolist()
        self._deviations: dict[int, tuple[str, ...]] = {}
        self._recipes: dict[str, _Recipe] = {}

    def run(self) -> MergedRun:
        self._complete_relations()
        n_rows = len(self._siblings.rows)
        patterns = self._choose_patterns()
        statistics = np.full((n_rows, 4), np.nan)
        sizes = self._siblings.sizes.max(axis=1)
        for relation, rows in self._group_rows(patterns):
            parts = list(relation.parts)
            statistics[rows], sizes[rows] = combine_statistics(
                self._siblings.statistics[rows],
                self._siblings.sizes[rows],
                parts,
                relation.how,
                relation.factor,
            )
        assemblies = find_assemblies(
            self._siblings, self._other, self._kinds, self._matches, patterns
        )
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
            parts = relation.parts
            if relation.how == JOINED and len(parts) == 1 and relation.factor == 1.0:
                files[row] = self._name_file(row, relation, None)
                rank_table = self._siblings.flows[parts[0]].tensors
                tensor = int(self._siblings.rows[row, parts[0]])
                content[row] = rank_table["content"].iat[tensor]
                hashes[row] = rank_table["hash"].iat[tensor]
                continue
            hashes[row], content[row] = "", 0
            assembly = assemblies.get(row)
            if relation.how == JOINED:
                shapes[row] = self._get_joined_shape(row, parts, assembly)
            can_join = relation.how != JOINED or assembly is not None or len(parts) == 1
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
        )

    def _complete_relations(self) -> None:
        """Decide the relations that no value of the other run proves."""
        siblings = self._siblings
        labels = siblings.labels
        for row, relation in enumerate(self._relations):
            if relation is not None or self._is_constant[row]:
                continue
            pattern = tuple(labels[row].tolist())
            if len(set(pattern) - {-1}) == 1:
                self._relations[row] = Relation(JOINED, pattern)
        self._sum_reduced_values()
        self._sum_gradients()
        for row, relation in enumerate(self._relations):
            if relation is None and not self._is_constant[row]:
                if is_discrete(self._dtypes[row]):
                    continue
                self._relations[row] = Relation(JOINED, tuple(labels[row].tolist()))

    @property
    def _reduction_rows(self) -> list[tuple[int, int]]:
        """The input and the output of every reduction over ranks."""
        ops = self._base_flow.trace.ops
        kinds = ops["kind"].str.lower()
        is_reduction = kinds.str.contains("reduce").to_numpy()
        is_reduction &= (ops["phase"] == COMMUNICATION).to_numpy()
        table = self._base_flow.tensors
        row_ops = table["op"].to_numpy()
        slot_kinds = table["slot_kind"].to_numpy()
        rows_of: dict[int, list[list[int]]] = {}
        for row in np.flatnonzero(is_reduction[row_ops] & ~self._is_constant).tolist():
            inputs_outputs = rows_of.setdefault(int(row_ops[row]), [[], []])
            inputs_outputs[int(slot_kinds[row] == "output")].append(row)
        pairs = []
        for inputs, outputs in rows_of.values():
            if len(outputs) == 1 and inputs:
                pairs.append((inputs[-1] if len(inputs) > 1 else inputs[0], outputs[0]))
        return pairs

    def _list_equal_rows(self, row: int) -> Ints:
        """Return the rows that hold the same value on every rank."""
        if not hasattr(self, "_joint_classes"):
            columns = []
            for rank, flow in enumerate(self._siblings.flows):
                ids = self._siblings.rows[:, rank]
                columns.append(np.where(ids >= 0, flow.tensor_class[ids], -1))
            self._joint_classes = np.stack(columns, axis=1)
        classes = self._joint_classes[row]
        if (classes < 0).any():
            return np.array([row])
        rows: Ints = np.flatnonzero((self._joint_classes == classes).all(axis=1))
        return rows

    def _sum_reduced_values(self) -> None:
        """Take what a reduction reads for partial sums, where nothing else is known."""
        pattern = tuple(range(self._siblings.n_ranks))
        for row, _ in self._reduction_rows:
            for equal_row in self._list_equal_rows(row).tolist():
                if self._relations[equal_row] is None:
                    self._relations[equal_row] = Relation(SUM, pattern)

    def _sum_gradients(self) -> None:
        """Take different gradients of a replicated parameter for partial sums."""
        table = self._base_flow.tensors
        parameters = table["parameter"].to_numpy()
        replicated_names = {
            parameters[row]
            for row in np.flatnonzero(parameters != "").tolist()
            if self._relations[row] is not None and self._relations[row].is_replicated
        }
        gradients = table["gradient_of"].tolist()
        pattern = tuple(range(self._siblings.n_ranks))
        for row, name in enumerate(gradients):
            if name and self._relations[row] is None and name in replicated_names:
                self._relations[row] = Relation(SUM, pattern)

    def _choose_patterns(self) -> list[Relation | None]:
        """Return the relations with the ranks whose values are taken.

        Where ranks that hold the same part have different numbers, the one that differs from the
        others is taken: the comparison then shows it.
        """
        labels = self._siblings.labels
        chosen: list[Relation | None] = []
        for row, relation in enumerate(self._relations):
            if relation is None or relation.pattern == tuple(labels[row].tolist()):
                chosen.append(relation)
                continue
            pattern = list(relation.pattern)
            for part in relation.parts:
                ranks = [
                    rank
                    for rank, label in enumerate(relation.pattern)
                    if label == part and labels[row, rank] >= 0
                ]
                copies = {int(labels[row, rank]) for rank in ranks}
                if len(copies) <= 1:
                    continue
                deviating_rank = self._find_deviating_rank(row, relation, ranks)
                self._deviations[row] = (self._siblings.names[deviating_rank],)
                for rank in ranks:
                    pattern[rank] = deviating_rank
            present = [
                label if labels[row, rank] >= 0 else -1 for rank, label in enumerate(pattern)
            ]
            chosen.append(replace(relation, pattern=tuple(present)))
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
        self, row: int, parts: tuple[int, ...], assembly: Assembly | None
    ) -> tuple[int, ...] | None:
        """Return the shape of a concatenated tensor, None if the axis is unknown."""
        shapes = []
        for rank in parts:
            tensor = int(self._siblings.rows[row, rank])
            shapes.append(self._siblings.flows[rank].tensors["shape"].iat[tensor])
        if None in shapes or len({len(shape) for shape in shapes}) != 1:
            return None
        if assembly is not None:
            empty = [np.broadcast_to(np.int8(0), shape) for shape in shapes]
            return tuple(assembly.join(empty).shape)
        match = int(self._matches[row])
        if match < 0:
            return None
        rank = int(self._other.bases[match])
        whole = self._other.flows[rank].tensors["shape"].iat[int(self._other.rows[match, rank])]
        if whole is None or len(whole) != len(shapes[0]):
            return None
        differing = [axis for axis in range(len(whole)) if whole[axis] != shapes[0][axis]]
        return tuple(whole) if len(differing) <= 1 or len(parts) > 2 else None

    def _name_file(self, row: int, relation: Relation, assembly: Assembly | None) -> str:
        """Return the name of the combined whole tensor, and keep how it is loaded; '' if none."""
        tensors = []
        for rank in relation.parts:
            tensor = int(self._siblings.rows[row, rank])
            file = self._siblings.flows[rank].tensors["file"].iat[tensor]
            if not file:
                return ""
            tensors.append((rank, tensor, file))
        ranks = ", ".join(self._siblings.names[rank] for rank, _, _ in tensors)
        name = f"{tensors[0][2]} ({ranks})"
        if len(tensors) > 1:
            verb = "sum" if relation.how != JOINED else "joined"
            name = f"{tensors[0][2]} ({verb} of {ranks})"
        recipe = _Recipe(
            tuple((self._siblings.flows[rank].trace, tensor) for rank, tensor, _ in tensors),
            relation,
            assembly,
        )
        while name in self._recipes and self._recipes[name] != recipe:
            name += "'"
        self._recipes[name] = recipe
        return name

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
            relation = patterns[row]
            if relation is None or relation.how == JOINED or patterns[output] is None:
                continue
            for equal_row in self._list_equal_rows(row).tolist():
                equal_relation = patterns[equal_row]
                if equal_relation is None or equal_relation.how == JOINED:
                    continue
                if files[equal_row]:
                    if equal_relation.factor != 1.0 or not self._is_reduced(
                        row, statistics[output]
                    ):
                        continue
                    files[equal_row] = files[output]
                statistics[equal_row] = statistics[output] * equal_relation.factor
                sizes[equal_row] = sizes[output]
                if len(shapes[equal_row] or ()) == len(shapes[output] or ()):
                    shapes[equal_row] = shapes[output]

    def _is_reduced(self, row: int, result: Floats) -> bool:
        """Return whether a collective wrote the sum, mean or maximum of what it read."""
        from ..graph.statistics import compute_statistics

        arrays = []
        for rank, flow in enumerate(self._siblings.flows):
            tensor = int(self._siblings.rows[row, rank])
            if tensor < 0 or not flow.tensors["file"].iat[tensor]:
                return True
            arrays.append(flow.trace.array(tensor).astype(np.float64))
        total = np.sum(arrays, axis=0)
        for combined in (total, total / len(arrays), np.max(arrays, axis=0)):
            numbers = np.array(compute_statistics(combined)[:4])
            limit = _REDUCTION_ERROR * max(abs(result[0]), abs(result[1]), 1e-30)
            if bool(np.all(np.abs(numbers[:3] - result[:3]) <= limit)):
                return True
        return False

    def _measure_sums(
        self,
        table: object,
        patterns: list[Relation | None],
        files: list[str],
        is_trusted: Flags,
    ) -> None:
        """Mark the sums that statistics do not tell."""
        norms = table["norm"].to_numpy()  # type: ignore[index]
        highs = table["max"].to_numpy()  # type: ignore[index]
        for row, relation in enumerate(patterns):
            if relation is None or relation.how == JOINED or files[row]:
                continue
            if np.isnan(norms[row]) and np.isnan(highs[row]):
                is_trusted[row] = False

    def _build_trace(self, table: object) -> Trace:
        base = self._base_flow.trace
        names = self._siblings.names
        problems: list[Problem] = []
        for name, flow in zip(names, self._siblings.flows, strict=True):
            for problem in (*flow.trace.problems, *flow.problems):
                problems.append(replace(problem, file=f"{name}: {problem.file}"))
        source = replace(
            base.source,
            rank=None,
            process=None,
            details={**base.source.details, "merged": list(names)},
        )
        recipes = self._recipes

        def load(name: str) -> AnyArray:
            return recipes[name].load()

        return Trace(source, base.ops, table, tuple(problems), load)  # type: ignore[arg-type]

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
            relation is not None and relation.how != JOINED and not is_trusted[row]
            for row, relation in enumerate(patterns)
        )
        if n_sums:
            notes.append(
                f"{n_sums:,} partial sums cannot be added up from statistics: dump whole tensors"
            )
        if self._siblings.n_dropped:
            notes.append(f"{self._siblings.n_dropped:,} ops of single ranks have no sibling")
        return tuple(notes)


@dataclass(frozen=True)
class _Recipe:
    """How a combined whole tensor is loaded."""

    tensors: tuple[tuple[Trace, int], ...]
    relation: Relation
    assembly: Assembly | None

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def load(self) -> AnyArray:
        """Return the combined tensor."""
        arrays = [trace.array(tensor) for trace, tensor in self.tensors]
        combined: AnyArray = arrays[0]
        if self.relation.how == JOINED:
            if len(arrays) > 1 and self.assembly is not None:
                combined = self.assembly.join(arrays)
        else:
            for array in arrays[1:]:
                combined = combined + array
            if self.relation.how != SUM:
                combined = combined / len(arrays)
        factor = self.relation.factor
        if factor != 1.0 and is_floating(str(combined.dtype)):
            combined = combined * combined.dtype.type(factor)
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
    if relation.how != JOINED:
        return f"{relation.how} of {n_parts} ranks{factor}"
    if n_parts == 1:
        return f"replicated{factor}"
    if assembly is None or shape is None:
        return f"{n_parts} shards{factor}"
    extents = list(map(str, shape))
    extents[assembly.axis] += f"[{n_parts if not assembly.groups else len(assembly.groups)}]"
    if assembly.groups:
        extents[assembly.inner_axis] += f"[{len(assembly.groups[0])}]"
    blocks = ", in blocks" if assembly.order is not None else ""
    return f"{n_parts} shards: {' x '.join(extents)}{blocks}{factor}"
