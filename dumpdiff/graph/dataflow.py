"""The dataflow of one side over value classes: who made each value, who reads it, what a gradient depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import unit_roundoff
from ..model.trace import FORWARD, OPTIMIZER, Problem, Trace, digraph
from .statistics import complete_statistics
from .value_classes import assign_classes, count_evidence

if TYPE_CHECKING:
    import networkx as nx

#: One row per value class, in order of first appearance; the row number is the class id.
CLASS_COLUMNS = {
    "tensor": "id of the tensor that stands for the class: the producer's output, else the first read",
    "size": "number of elements",
    "max": "", "min": "", "mean": "", "norm": "", "nonfinite": "", "dtype": "of that tensor",
    "evidence": "0..4: how many of its numbers say something, see classes.evidence",
    "producer": "op that made it: the first that writes and does not read it; -1 if nothing recorded made it",
    "parameter": "name of the parameter it is, '' if none",
    "gradient_of": "name of the parameter whose gradient it is, '' if none",
    "phase": "phase of the producer, else of the first reader",
}  # fmt: skip


@dataclass(frozen=True)
class Flow:
    """A trace with complete statistics, collapsed by value."""

    trace: Trace
    tensors: pd.DataFrame  #: the tensor table with complete statistics
    classes: pd.DataFrame  #: see CLASS_COLUMNS
    tensor_class: Ints  #: (tensors,) class of each tensor, -1 for immediates and untrusted tensors
    is_computed: Flags  #: (tensors,) true for outputs that an op computed
    reads: tuple[tuple[int, ...], ...]  #: per op: classes it reads, in slot order, without repeats
    writes: tuple[tuple[int, ...], ...]  #: per op: classes it writes and does not read
    problems: tuple[Problem, ...] = ()

    @cached_property
    def consumers(self) -> list[list[int]]:
        """Per class: the ops that read it, in order."""
        table: list[list[int]] = [[] for _ in range(len(self.classes))]
        for op, classes in enumerate(self.reads):
            for value in classes:
                table[value].append(op)
        return table

    @cached_property
    def coarsest_dtype(self) -> str:
        """The least exact dtype of at least 5 % of the computed values (float32 at best): what follows errs like it."""
        made = self.classes.loc[
            (self.classes["producer"] >= 0) & (self.classes["size"] > 1), "dtype"
        ]
        shares = made.value_counts(normalize=True)
        common = [str(dtype) for dtype, share in shares.items() if share >= 0.05]
        return max(["float32", *common], key=unit_roundoff)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Dataflow between ops, by recorded edges and by equal values; node ids are op ids."""
        makers = enumerate(self.producers.tolist())
        edges = (
            (maker, reader)
            for value, maker in makers
            if maker >= 0
            for reader in self.consumers[value]
        )
        return digraph(self.trace.ops, edges)

    @cached_property
    def recorded_gradients(self) -> dict[int, int]:
        """Forward class -> class of its gradient, where backward ops name the forward call they belong to."""
        forward = self.trace.ops["forward"].to_numpy()[self.tensors["op"]]
        role = self.tensors["role"].to_numpy()
        known = self.tensor_class >= 0
        outputs = self._by_position(
            np.flatnonzero(known & (role == "output")), self.tensors["op"].to_numpy()
        )
        given = self._by_position(
            np.flatnonzero(known & (role == "input") & (forward >= 0)), forward
        )
        pairs: dict[int, int] = {}
        for place, gradient in given.items():
            if place in outputs:
                pairs.setdefault(outputs[place], gradient)
        return pairs

    def iterate_enclosing_calls(self, op: int) -> Iterator[int]:
        """The module calls that an op ran in, innermost first."""
        parents = self.trace.ops["parent"]
        while (op := int(parents.iat[op])) >= 0:
            yield op

    def _by_position(self, rows: Ints, op: Ints) -> dict[tuple[int, int], int]:
        """(op, position among its inputs or outputs) -> class of the rows; a slot without a number is position 0."""
        found: dict[tuple[int, int], int] = {}
        slots = self.tensors["slot"].to_numpy()[rows].tolist()
        for call, slot, value in zip(
            op[rows].tolist(), slots, self.tensor_class[rows].tolist(), strict=True
        ):
            number = slot.partition(".")[2]
            found.setdefault((call, int(number) if number.isdigit() else 0), value)
        return found

    @cached_property
    def row_order(self) -> Ints:
        """Tensor ids sorted by op; ``row_order[rows[op]:rows[op + 1]]`` are the op's."""
        order: Ints = np.argsort(self.tensors["op"].to_numpy(), kind="stable")
        return order

    @cached_property
    def row_offsets(self) -> Ints:
        """(ops + 1,) offsets into ``row_order``."""
        counts = np.bincount(self.tensors["op"].to_numpy(), minlength=len(self.trace.ops))
        offsets: Ints = np.concatenate([[0], np.cumsum(counts)])
        return offsets

    def get_tensor_ids(self, op: int) -> Ints:
        """Ids of the op's tensors, in slot order as recorded."""
        ids: Ints = self.row_order[self.row_offsets[op] : self.row_offsets[op + 1]]
        return ids

    @cached_property
    def checksums(self) -> list[frozenset[str]]:
        """Per class the checksums recorded of it: one for each layout in which it appears."""
        sums: list[set[str]] = [set() for _ in range(len(self.classes))]
        recorded = self.tensors["hash"].to_numpy()
        for row in np.flatnonzero((recorded != "") & (self.tensor_class >= 0)).tolist():
            sums[self.tensor_class[row]].add(recorded[row])
        return [frozenset(found) for found in sums]

    @cached_property
    def producers(self) -> Ints:
        """(classes,) op that made each class, -1 if nothing recorded did."""
        return self.classes["producer"].to_numpy()

    @cached_property
    def phases(self) -> list[str]:
        """Per op its phase."""
        phases: list[str] = self.trace.ops["phase"].tolist()
        return phases

    def list_column(self, name: str) -> list[Any]:
        """A column of ``classes`` as a list: for loops, where a frame is a hundred times slower."""
        if name not in self._columns:
            self._columns[name] = self.classes[name].tolist()
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        return {}

    @cached_property
    def sizes(self) -> Ints:
        """(classes,) number of elements."""
        return self.classes["size"].to_numpy()

    @cached_property
    def rms(self) -> list[float]:
        """Per class the root mean square of its elements, NaN if unknown."""
        values: list[float] = (self.norms / np.sqrt(np.maximum(self.sizes, 1))).tolist()
        return values

    @cached_property
    def norms(self) -> Floats:
        """(classes,) L2 norm, NaN if unknown."""
        return self.classes["norm"].to_numpy()

    @cached_property
    def is_layout(self) -> Flags:
        """(ops,) true where an op writes nothing that it does not read: a reshape, transpose or copy."""
        return np.array(
            [
                bool(read) and not written
                for read, written in zip(self.reads, self.writes, strict=True)
            ]
        )


def build_flow(trace: Trace, progress: Callable[[float], None] | None = None) -> Flow:
    """Complete the statistics of a trace and collapse it by value."""
    tensors, problems = complete_statistics(trace, progress)
    updates = (trace.ops["phase"] == OPTIMIZER).to_numpy()[tensors["op"]]
    tensor_class = assign_classes(tensors, trace.source.low_precision_statistics, updates)
    made = _made(trace, tensors)
    reads, writes = _per_op(len(trace.ops), tensors, tensor_class, made)
    classes = _class_table(trace, tensors, tensor_class, reads, made)
    return Flow(trace, tensors, classes, tensor_class, made, reads, writes, problems)


def _made(trace: Trace, tensors: pd.DataFrame) -> Flags:
    """(tensors,) outputs of real ops: parameters, which MindSpore writes as ops of kind Parameter, are no results."""
    parameters = (trace.ops["kind"] == "Parameter").to_numpy()[tensors["op"]]
    made: Flags = (tensors["role"] == "output").to_numpy() & ~parameters
    return made


def _per_op(
    ops: int, tensors: pd.DataFrame, tensor_class: Ints, made: Flags
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    reads: list[dict[int, None]] = [{} for _ in range(ops)]
    writes: list[dict[int, None]] = [{} for _ in range(ops)]
    known = np.flatnonzero((tensor_class >= 0) & (made | (tensors["role"] != "output").to_numpy()))
    rows = zip(
        tensors["op"].to_numpy()[known].tolist(),
        tensor_class[known].tolist(),
        made[known].tolist(),
        strict=True,
    )
    for op, value, output in rows:
        (writes if output else reads)[op][value] = None
    fresh = [
        tuple(value for value in made if value not in read)
        for read, made in zip(reads, writes, strict=True)
    ]
    return tuple(tuple(read) for read in reads), tuple(fresh)


def _class_table(
    trace: Trace,
    tensors: pd.DataFrame,
    tensor_class: Ints,
    reads: tuple[tuple[int, ...], ...],
    outputs: Flags,
) -> pd.DataFrame:
    count = int(tensor_class.max(initial=-1)) + 1
    op = tensors["op"].to_numpy()
    module = (trace.ops["level"] == "module").to_numpy()
    known = np.flatnonzero(tensor_class >= 0)
    made = np.zeros(len(tensors), dtype=bool)
    rows = known[outputs[known]]
    made[rows] = [tensor_class[row] not in reads[op[row]] for row in rows.tolist()]
    # a module call repeats what an op inside it made: prefer the op, then the earliest
    makers = np.flatnonzero(made)
    makers = makers[np.lexsort((op[makers], module[op[makers]]))][::-1]
    producer = np.full(count, -1)
    producer[tensor_class[makers]] = op[makers]
    made[makers] = op[makers] == producer[tensor_class[makers]]
    whole = (tensors["file"] != "").to_numpy()
    best_last = known[np.lexsort((known, ~whole[known], ~made[known]))][::-1]
    representative = np.full(count, -1)
    representative[tensor_class[best_last]] = best_last
    first = np.full(count, -1)
    first[tensor_class[known[::-1]]] = known[::-1]
    table = tensors.iloc[representative][
        ["size", "max", "min", "mean", "norm", "nonfinite", "dtype"]
    ].reset_index(drop=True)
    table.insert(0, "tensor", representative)
    table["evidence"] = count_evidence(table)
    table["producer"] = producer
    phase = trace.ops["phase"].to_numpy()
    table["phase"] = np.where(producer >= 0, phase[producer], phase[op[first]]) if count else []
    for name in ("parameter", "gradient_of"):
        values = tensors[name].to_numpy()
        names = np.full(count, "", dtype=object)
        named = known[values[known] != ""]
        if name == "parameter":  # the optimizer's reading of a parameter is another value already
            named = named[phase[op[named]] == FORWARD] if len(named) else named
        names[tensor_class[named[::-1]]] = values[named[::-1]]
        table[name] = pd.Series(names, dtype=object)
    return table
