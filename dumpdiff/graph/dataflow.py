"""The dataflow of one side over value classes: the producer and the consumers of each value."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints, Objects, view_numbers
from ..model.dtypes import get_unit_roundoff, is_discrete, is_floating, is_integer
from ..model.int_lists import IntLists
from ..model.trace import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Problem,
    Trace,
    build_digraph,
    flag_words,
)
from .joined_blocks import find_joined_blocks
from .mask_sources import find_mask_sources
from .partitions import find_partitions
from .passing_values import flag_passing_values
from .scaled_gradients import find_scaled_gradients
from .value_classes import flag_doubtful_files
from .written_states import find_written_states

if TYPE_CHECKING:
    import networkx as nx

#: One row per value class, in order of first appearance; the row number is the class id.
CLASS_COLUMNS = {
    "tensor": "id of the tensor that represents it: the producer's output, else the first read",
    "size": "number of elements",
    "max": "", "min": "", "mean": "", "norm": "", "nonfinite": "", "dtype": "of that tensor",
    "evidence": "0..4: how many statistics carry information, see value_classes.count_evidence",
    "producer": "first op that writes and does not read it; -1 if no recorded op produced it",
    "parameter": "name of the parameter it is, '' if none",
    "gradient_of": "name of the parameter whose gradient it is, '' if none",
    "update_of": "name of the parameter whose value after the step it is, '' if none",
    "phase": "phase of the producer, else of the first consumer",
}  # fmt: skip

#: Share of the computed values from which on a dtype counts as one that the run computes in.
_COMMON_DTYPE_SHARE = 0.05


@dataclass(frozen=True)
class Bridge:
    """What a value without a recorded producer comes from."""

    parents: tuple[int, ...]  #: classes
    #: joined, stack, rearranged, cast, part (of another tensor), opposite, one-hot (of a mask),
    #: multiple, state, module call, order
    evidence: str


@dataclass(frozen=True)
class Flow:
    """A trace with complete statistics, collapsed by value."""

    trace: Trace
    tensors: pd.DataFrame  #: the tensor table with complete statistics
    classes: pd.DataFrame  #: see CLASS_COLUMNS
    tensor_class: Ints  #: (tensors,) class of each tensor, -1 for immediates and untrusted tensors
    is_computed: Flags  #: (tensors,) true for outputs that an op computed
    reads: IntLists  #: per op: classes it reads, in slot order, without repeats
    writes: IntLists  #: per op: classes it writes and does not read
    problems: tuple[Problem, ...] = ()
    counters: frozenset[int] = frozenset()  #: classes that are counts of steps
    #: (op, class) where an op reads only the shape of a value, see :func:`mark_shape_reads`
    shape_reads: frozenset[tuple[int, int]] = frozenset()

    @cached_property
    def has_whole_tensor(self) -> Flags:
        """(tensors,) whether there is a whole tensor that may stand for the class."""
        lacks_file = self.tensors["file"].to_numpy() == ""
        flags: Flags = ~lacks_file & (self.tensor_class >= 0)
        return flags & ~flag_doubtful_files(
            self.trace.ops, self.tensors, self.tensor_class, self.producers, lacks_file
        )

    @cached_property
    def consumers(self) -> IntLists:
        """Per class: the ops that read it, in order."""
        return self.reads.invert(len(self.classes))

    @cached_property
    def first_consumers(self) -> Ints:
        """(classes,) the first op that reads each class, -1 if no op does."""
        return self.consumers.first_values

    def list_reads(self, ops: Ints) -> tuple[Ints, Ints]:
        """Return (class, position in ``ops``) of all that some ops read, in slot order."""
        lists = self.reads.take(ops)
        return lists.values, lists.rows

    def flag_readers(self, is_chosen: Flags) -> Flags:
        """Return (ops,) whether each op reads at least one of the chosen classes."""
        flags = np.zeros(len(self.reads), dtype=bool)
        flags[self.reads.rows[is_chosen[self.reads.values]]] = True
        return flags

    def flag_phase(self, phase: str) -> Flags:
        """Return (ops,) whether each op is of a phase."""
        if phase not in self._flags_of_phases:
            self._flags_of_phases[phase] = (self.trace.ops["phase"] == phase).to_numpy()
        return self._flags_of_phases[phase]

    @cached_property
    def _flags_of_phases(self) -> dict[str, Flags]:
        return {}

    @cached_property
    def is_output(self) -> Flags:
        """(tensors,) true for what an op returns, false for what it is given."""
        flags: Flags = self.tensors["slot_kind"].to_numpy() == "output"
        return flags

    @cached_property
    def phase_numbers(self) -> Ints:
        """(ops,) a number for the phase of each op."""
        return pd.factorize(self.trace.ops["phase"])[0]

    @cached_property
    def first_reads(self) -> Ints:
        """(classes,) the op before which each class is read first, -1 if no op reads it.

        A module call is recorded when it returns, but its inputs are there before the ops inside.
        """
        starts = np.arange(len(self.parents))
        for op, parent in enumerate(self.parents):
            if parent > op:
                starts[parent] = min(starts[parent], starts[op])
        first_reads = self.first_consumers.copy()
        lists = self.consumers
        np.minimum.at(first_reads, lists.rows, starts[lists.values])
        return first_reads

    @cached_property
    def is_given(self) -> Flags:
        """(classes,) true for what the record names as a parameter or constant of the graph.

        Parameters are weights and the batch.
        """
        is_given = np.zeros(len(self.classes), dtype=bool)
        is_record = (self.trace.ops["kind"] == "Parameter").to_numpy()
        rows = is_record[self.tensors["op"].to_numpy()] | self.tensors["constant"].to_numpy()
        rows &= self.tensor_class >= 0
        is_given[self.tensor_class[rows]] = True
        return is_given & (self.producers < 0)

    @cached_property
    def may_lack_producer(self) -> Flags:
        """(classes,) false where no op can be missing that produced a value.

        So it is with what an op produced or the graph was given, and with parameters, masks and
        what carries no information, unless it is known to come from other values.
        """
        is_anonymous = (self.classes["parameter"] == "").to_numpy() & ~self.is_given
        flags: Flags = is_anonymous & ~flag_words(self.classes["dtype"], is_discrete)
        flags &= self.classes["evidence"].to_numpy() > 0
        flags |= self.has_known_sources
        return flags & (self.producers < 0) & (self.first_consumers >= 0)

    @cached_property
    def has_known_sources(self) -> Flags:
        """(classes,) true for what is known to come from others although no op produced it."""
        flags = np.zeros(len(self.classes), dtype=bool)
        flags[[*self.known_sources, *self.joined_blocks]] = True
        return flags

    @cached_property
    def may_have_parts(self) -> Flags:
        """(classes,) false where recorded values certainly are no parts of a value, nor it of one.

        It may be joined from others, or its elements may be numbers that one kind of op wrote.
        """
        n_numbers = max((len(values) for _, values in self.written_numbers.values()), default=0)
        is_stack: Flags = (self.sizes > 1) & (self.sizes <= n_numbers)
        return is_stack | self.may_be_joined | self.has_known_sources

    @cached_property
    def has_few_axes(self) -> Flags:
        """(classes,) true for vectors and matrices, as weights are, and for single numbers."""
        counts = [3 if shape is None else len(shape) for shape in self.shapes]
        flags: Flags = np.array(counts, dtype=np.int64) <= 2
        return flags

    @cached_property
    def counts_of_lone_vectors(self) -> Counter[int]:
        """Length -> number of vectors of it that no op produced and only one op reads."""
        is_lone = (self.producers < 0) & (self.consumers.counts == 1) & (self.sizes > 1)
        shapes = (self.shapes[value] for value in np.flatnonzero(is_lone).tolist())
        return Counter(shape[0] for shape in shapes if shape is not None and len(shape) == 1)

    @cached_property
    def is_passing(self) -> Flags:
        """(classes,) true for values that are only passed on, see :mod:`.passing_values`."""
        has_results = self.writes.counts > 0
        return flag_passing_values(
            self.consumers, self.first_reads, self.phase_numbers, has_results
        )

    @cached_property
    def is_module(self) -> Flags:
        """(ops,) true for the call of a module, which contains other ops."""
        return (self.trace.ops["level"] == "module").to_numpy()

    @cached_property
    def is_shape_read(self) -> Flags:
        """(reads,) true where an op reads only the shape of a value; as ``reads.values``."""
        return self.flag_shape_reads(self.reads.rows, self.reads.values)

    def flag_shape_reads(self, ops: Ints, values: Ints) -> Flags:
        """Return whether each op reads only the shape of the value, which may be -1."""
        shape_ops, shape_values = np.array(sorted(self.shape_reads), np.int64).reshape(-1, 2).T
        lists = IntLists.from_pairs(len(self.trace.ops), shape_ops, shape_values)
        return lists.flag_members(ops, values)

    @cached_property
    def operands(self) -> IntLists:
        """Per op: the classes that it computes with, which are those that it reads the numbers of.

        No value flows from ``zeros_like(x)``'s x to its result.
        """
        if not self.shape_reads:
            return self.reads
        lists, is_operand = self.reads, ~self.is_shape_read
        return IntLists.from_pairs(len(lists), lists.rows[is_operand], lists.values[is_operand])

    @cached_property
    def users(self) -> IntLists:
        """Per class: the ops that compute with it, in order."""
        return self.operands.invert(len(self.classes)) if self.shape_reads else self.consumers

    @cached_property
    def coarsest_dtype(self) -> str:
        """The coarsest dtype of at least 5 % of the computed values; float32 if all are finer.

        What follows from such values has errors of its size.
        """
        is_computed = (self.classes["producer"] >= 0) & (self.classes["size"] > 1)
        shares = self.classes.loc[is_computed, "dtype"].value_counts(normalize=True)
        common_dtypes = shares.index[(shares >= _COMMON_DTYPE_SHARE).to_numpy()]
        return max(["float32", *map(str, common_dtypes)], key=get_unit_roundoff)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Dataflow between ops, by recorded edges and by equal values; node ids are op ids."""
        edges = (
            (producer, consumer)
            for value, producer in enumerate(self.producers.tolist())
            if producer >= 0
            for consumer in self.consumers[value]
        )
        return build_digraph(self.trace.ops, edges)

    @cached_property
    def latest_records(self) -> tuple[Ints, Ints]:
        """(op, class) of each computed value that ops write or read, the latest op first.

        Of one op, the results come before what it reads. Gradients that a backward record was given
        are computed, too.
        """
        ops = np.concatenate([self.writes.rows, self.reads.rows])
        values = np.concatenate([self.writes.values, self.reads.values])
        order = np.argsort(-ops, kind="stable")
        ops, values = ops[order], values[order]
        is_computed = (self.producers >= 0) | (self.classes["phase"] != FORWARD).to_numpy()
        is_kept = is_computed[values]
        return ops[is_kept], values[is_kept]

    @cached_property
    def missing_producers(self) -> dict[int, bool]:
        """Answers of :func:`missing_edges.has_missing_producer` so far, by class.

        All stages after the alignment ask the same.
        """
        return {}

    @cached_property
    def bridges(self) -> dict[int, Bridge | None]:
        """Answers of :func:`missing_edges.find_bridge` so far, by class.

        A search for causes asks for the same values thousands of times.
        """
        return {}

    @cached_property
    def recorded_gradients(self) -> dict[int, int]:
        """Forward class -> class of its gradient, where backward ops name their forward call.

        That of the op which computed the class comes first: a module that returns it as well is
        given what flows back from outside of the module.
        """
        ops = self.tensors["op"].to_numpy()
        calls = self.trace.ops["forward"].to_numpy()[ops]
        has_class = self.tensor_class >= 0
        output_rows = np.flatnonzero(has_class & self.is_output)
        given_rows = np.flatnonzero(has_class & ~self.is_output & (calls >= 0))
        gradient_rows = given_rows[self.tensors["slot_kind"].to_numpy()[given_rows] == "input"]
        output_places, outputs = self._index_by_position(output_rows, ops)
        gradient_places, gradients = self._index_by_position(gradient_rows, calls)
        has_output = np.isin(gradient_places, output_places)
        places, gradients = gradient_places[has_output], gradients[has_output]
        by_place = np.argsort(output_places)
        values = outputs[by_place[np.searchsorted(output_places, places, sorter=by_place)]]
        is_producer = places % max(1, len(self.trace.ops)) == self.producers[values]
        gradient_of: dict[int, int] = {}
        for is_chosen in (~is_producer, is_producer):
            chosen_values, first = np.unique(values[is_chosen], return_index=True)
            order = np.argsort(first)
            gradient_list = gradients[is_chosen][first[order]].tolist()
            gradient_of.update(zip(chosen_values[order].tolist(), gradient_list, strict=True))
        return gradient_of

    @cached_property
    def records_calls(self) -> bool:
        """Whether backward records name their forward calls, as those of PyTorch do."""
        return bool((self.trace.ops["forward"] >= 0).any())

    @cached_property
    def named_gradients(self) -> tuple[Ints, Ints]:
        """Parameters, and for each the gradient that the record names after it, by class."""
        names = self.list_column("parameter")
        parameters = {name: value for value, name in enumerate(names) if name}
        pairs = [
            (parameters[name], gradient)
            for gradient, name in enumerate(self.list_column("gradient_of"))
            if name in parameters
        ]
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return columns[0], columns[1]

    @cached_property
    def gradients_of_parameters(self) -> dict[str, int]:
        """Name of a parameter -> class of the gradient that the record names so."""
        names = self.list_column("gradient_of")
        return {name: value for value, name in enumerate(names) if name}

    @cached_property
    def parameter_values(self) -> dict[str, int]:
        """Name of a parameter that the forward pass read -> its class.

        Parameters of equal numbers, and tied ones, have one class.
        """
        names = self.tensors["parameter"].to_numpy()
        is_read = self.flag_phase(FORWARD)[self.tensors["op"].to_numpy()]
        is_read &= (names != "") & (self.tensor_class >= 0)
        return dict(zip(names[is_read].tolist(), self.tensor_class[is_read].tolist(), strict=True))

    def is_read_by_update(self, value: int) -> bool:
        """Return whether an op of the optimizer reads a class."""
        return any(self.phases[op] == OPTIMIZER for op in self.consumers[value])

    def _index_by_position(self, rows: Ints, ops: Ints) -> tuple[Ints, Ints]:
        """Return the places of some tensor rows, and the class at each, of several the first.

        A place is an op and a position among its inputs or outputs, as one number. ``ops`` has the
        op of every tensor. A slot without a number is position 0.
        """
        places = self._slot_positions[rows] * len(self.trace.ops) + ops[rows]
        first_places, first_rows = np.unique(places, return_index=True)
        order = np.argsort(first_rows)
        return first_places[order], self.tensor_class[rows[first_rows[order]]]

    @cached_property
    def _slot_positions(self) -> Ints:
        """(tensors,) the number in the slot, 0 if it has none, numbered anew: 0, 1, 2, ..."""
        codes, slots = pd.factorize(self.tensors["slot"])
        numbers = [slot.partition(".")[2] for slot in slots]
        positions = [int(number) if number.isdecimal() else 0 for number in numbers]
        new_numbers = {position: index for index, position in enumerate(dict.fromkeys(positions))}
        renumbered = np.array([new_numbers[position] for position in positions], dtype=int)
        slot_positions: Ints = renumbered[codes]
        return slot_positions

    def iterate_enclosing_calls(self, op: int) -> Iterator[int]:
        """Yield the module calls that an op ran in, innermost first."""
        while (op := self.parents[op]) >= 0:
            yield op

    def list_ops_inside(self, calls: Collection[int]) -> list[int]:
        """Return the ops that ran in some module calls, in order."""
        parents = self.trace.ops["parent"].to_numpy()
        outer, is_inside = parents, np.zeros(len(parents), dtype=bool)
        while (outer >= 0).any():
            is_inside |= np.isin(outer, list(calls))
            outer = np.where(outer >= 0, parents[outer], -1)
        ops: list[int] = np.flatnonzero(is_inside).tolist()
        return ops

    @cached_property
    def row_order(self) -> Ints:
        """Tensor ids sorted by op, see ``row_offsets``."""
        order: Ints = np.argsort(self.tensors["op"].to_numpy(), kind="stable")
        return order

    @cached_property
    def row_offsets(self) -> Ints:
        """(ops + 1,) where the tensors of each op begin in ``row_order``."""
        counts = np.bincount(self.tensors["op"].to_numpy(), minlength=len(self.trace.ops))
        offsets: Ints = np.concatenate([[0], np.cumsum(counts)])
        return offsets

    def get_tensor_ids(self, op: int) -> Ints:
        """Return the ids of the op's tensors, in slot order as recorded."""
        ids: Ints = self.row_order[self.row_offsets[op] : self.row_offsets[op + 1]]
        return ids

    @cached_property
    def checksums(self) -> list[frozenset[str]]:
        """Per class: its recorded checksums, one for each layout in which it appears."""
        checksums: list[set[str]] = [set() for _ in range(len(self.classes))]
        hashes = self.tensors["hash"].to_numpy()
        for row in np.flatnonzero((hashes != "") & (self.tensor_class >= 0)).tolist():
            checksums[self.tensor_class[row]].add(hashes[row])
        return list(map(frozenset, checksums))

    @cached_property
    def producers(self) -> Ints:
        """(classes,) op that produced each class, -1 if no recorded op did."""
        return self.classes["producer"].to_numpy()

    @cached_property
    def partitions(self) -> dict[int, int]:
        """Class that no recorded op produced -> the class that it is an indexed part of."""
        slots = self.slots[self.classes["tensor"]].tolist()
        return find_partitions(self.classes, self.consumers, self.trace.ops, slots)

    @cached_property
    def known_sources(self) -> dict[int, Bridge]:
        """Class that no recorded op produced -> what it is known to come from."""
        return {
            **{state: Bridge(read, "state") for state, read in self.written_states.items()},
            **{x: Bridge(read, "multiple") for x, read in self.scaled_gradients.items()},
            **self.mask_sources,
            **{part: Bridge((whole,), "part") for part, whole in self.partitions.items()},
        }

    @cached_property
    def mask_sources(self) -> dict[int, Bridge]:
        """Mask that no recorded op produced -> the mask or the indices that it follows from."""
        if not self.has_whole_tensor.any():
            return {}
        highs, lows = (self.classes[name].to_numpy(dtype=float) for name in ("max", "min"))
        dtypes = self.classes["dtype"]
        is_bool = flag_words(dtypes, lambda dtype: dtype == "bool")
        sources = find_mask_sources(
            self.trace,
            self.classes["tensor"].to_numpy(),
            self.sizes,
            self.producers,
            self.first_reads,
            is_bool | ((highs == 1) & (lows == 0)),
            flag_words(dtypes, is_integer),
        )
        return {mask: Bridge((source,), name) for mask, (source, name) in sources.items()}

    @cached_property
    def joined_blocks(self) -> dict[int, tuple[int, ...]]:
        """Class that no recorded op produced -> results that no op reads, and that are in it."""
        if not self.has_whole_tensor.any():
            return {}
        is_floating_value = flag_words(self.classes["dtype"], is_floating)
        is_leaf = (self.producers < 0) & (self.first_consumers >= 0) & ~self.is_given
        return find_joined_blocks(
            self.trace,
            self.classes["tensor"].to_numpy(),
            self.shapes,
            self.producers,
            self.first_reads,
            is_floating_value & (self.producers >= 0) & (self.first_consumers < 0),
            is_floating_value & is_leaf & (self.classes["parameter"] == "").to_numpy(),
        )

    @cached_property
    def wholes(self) -> dict[int, tuple[int, ...]]:
        """Class of a result that no recorded op reads -> what it is known to be joined to."""
        wholes: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
        for whole, parts in self.joined_blocks.items():
            for part in parts:
                wholes[part] += (whole,)
        return dict(wholes)

    @cached_property
    def scaled_gradients(self) -> dict[int, tuple[int, ...]]:
        """Class that the update reads and no recorded op produced -> (gradient, coefficient)."""
        slots = self.slots[self.classes["tensor"]].tolist()
        return find_scaled_gradients(self.classes, self.consumers, self.trace.ops, slots)

    @cached_property
    def written_states(self) -> dict[int, tuple[int, ...]]:
        """State that the call of a layer overwrote -> what the layer was called with."""
        names = self.tensors["parameter"].to_numpy()
        in_forward = self.flag_phase(FORWARD)[self.tensors["op"].to_numpy()]
        is_named = (names != "") & in_forward & (self.tensor_class >= 0)
        is_named[is_named] = self.producers[self.tensor_class[is_named]] < 0
        values = pd.DataFrame({"name": names[is_named], "value": self.tensor_class[is_named]})
        return find_written_states(values, self.consumers, self.reads, self.parents)

    @cached_property
    def multiples_of_gradients(self) -> dict[int, list[int]]:
        """Gradient -> its multiples of :attr:`scaled_gradients`."""
        multiples: dict[int, list[int]] = {}
        for multiple, sources in self.scaled_gradients.items():
            multiples.setdefault(sources[0], []).append(multiple)
        return multiples

    @cached_property
    def positions(self) -> Floats:
        """(classes,) place in the run, 0 to 1: that of the producer, else of the first consumer."""
        first_consumers = np.maximum(self.first_consumers, 0)
        ops = np.where(self.producers >= 0, self.producers, first_consumers)
        positions: Floats = ops / max(1, len(self.trace.ops))
        return positions

    @cached_property
    def is_written(self) -> Flags:
        """(classes,) true where a recorded op has the value as output, new or only rearranged."""
        is_written = np.zeros(len(self.classes), dtype=bool)
        is_written[self.tensor_class[self.is_computed & (self.tensor_class >= 0)]] = True
        return is_written

    @cached_property
    def is_result(self) -> Flags:
        """(tensors,) true for outputs, and for the gradients that a backward record was given."""
        is_backward_record = self.trace.ops["forward"].to_numpy()[self.tensors["op"]] >= 0
        is_given = is_backward_record & (self.tensors["slot_kind"].to_numpy() == "input")
        is_result: Flags = self.is_computed | is_given
        return is_result

    @cached_property
    def slots(self) -> Objects:
        """(tensors,) the slot of each."""
        return self.tensors["slot"].to_numpy()

    @cached_property
    def phases(self) -> list[str]:
        """Per op its phase."""
        phases: list[str] = self.trace.ops["phase"].tolist()
        return phases

    @cached_property
    def calls(self) -> Sequence[int]:
        """Per op: the forward call whose gradient it computes, -1 if the record names none."""
        return view_numbers(self.trace.ops["forward"].to_numpy())

    @cached_property
    def parents(self) -> Sequence[int]:
        """Per op: the module call that it ran in, -1 if unknown."""
        return view_numbers(self.trace.ops["parent"].to_numpy())

    @cached_property
    def levels(self) -> list[str]:
        """Per op: 'op' or 'module'."""
        levels: list[str] = self.trace.ops["level"].tolist()
        return levels

    @cached_property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """Per class: the shape of the tensor that represents it, None if unknown."""
        shapes = self.tensors["shape"].to_numpy()[self.classes["tensor"].to_numpy()]
        shape_list: list[tuple[int, ...] | None] = shapes.tolist()
        return shape_list

    @cached_property
    def written_numbers(self) -> dict[str, tuple[list[int], list[int]]]:
        """Per kind of op: (op, class) of each single number that such ops wrote, in order."""
        kinds = self.trace.ops["kind"].tolist()
        lists = self.writes
        is_number = self.sizes[lists.values] == 1
        results = zip(lists.rows[is_number].tolist(), lists.values[is_number].tolist(), strict=True)
        numbers: dict[str, tuple[list[int], list[int]]] = {}
        for op, result in results:
            ops, values = numbers.setdefault(kinds[op], ([], []))
            ops.append(op)
            values.append(result)
        return numbers

    def list_column(self, name: str) -> Sequence[Any]:
        """Return a column of ``classes`` for loops, in which a frame is a hundred times slower."""
        if name not in self._columns:
            column = self.classes[name].to_numpy()
            is_object = column.dtype == object
            self._columns[name] = column.tolist() if is_object else view_numbers(column)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, Sequence[Any]]:
        return {}

    def list_values_of_extreme(self, name: str, phase: str, number: float) -> list[int]:
        """Return the values of a phase whose 'max' or 'min' is a number, in order.

        These are computed ones, and sums of gradients. None has NaN.
        """
        numbers, values = self._values_by_extreme[name]
        if math.isnan(number):
            return []
        start = np.searchsorted(numbers, number, "left")
        end = np.searchsorted(numbers, number, "right")
        phases = self.list_column("phase")
        return [value for value in values[start:end].tolist() if phases[value] == phase]

    @cached_property
    def may_be_joined(self) -> Flags:
        """(classes,) true for values that no op produced, but that may be joined from others.

        :meth:`list_values_of_extreme` has other values for their maximum and their minimum.
        """
        flags = self.producers < 0
        for name in ("max", "min"):
            numbers, values = self._values_by_extreme[name]
            leaves = np.flatnonzero(flags)
            own_numbers = self.classes[name].to_numpy()[leaves]
            n_values = np.searchsorted(numbers, own_numbers, "right")
            n_values -= np.searchsorted(numbers, own_numbers, "left")
            n_values -= np.isin(leaves, values)
            flags[leaves] = (n_values > 0) & ~np.isnan(own_numbers)
        return flags

    @cached_property
    def _values_by_extreme(self) -> dict[str, tuple[Floats, Ints]]:
        """'max' or 'min' -> (this number of all computed values sorted, the values).

        With them are gradients that no op wrote: autograd adds up what flows back from the readers
        of a value, and no recorder shows it.
        """
        is_unwritten = (self.producers < 0) & (self.classes["phase"] == BACKWARD).to_numpy()
        unwritten_gradients = np.flatnonzero(is_unwritten & (self.first_consumers >= 0))
        all_values = np.concatenate([self._computed_values, unwritten_gradients])
        producers = self.producers[all_values]
        first_ops = np.where(producers >= 0, producers, self.first_consumers[all_values])
        values = all_values[np.argsort(first_ops, kind="stable")]
        sorted_columns = {}
        for name in ("max", "min"):
            numbers = self.classes[name].to_numpy()[values]
            order = np.argsort(numbers, kind="stable")
            sorted_columns[name] = (numbers[order], values[order])
        return sorted_columns

    def get_first_op(self, value: int) -> int:
        """Return the op that wrote a value, else the first one that reads it."""
        producer = int(self.producers[value])
        return producer if producer >= 0 else self.consumers[value][0]

    @cached_property
    def values_by_size(self) -> dict[tuple[str, int], list[int]]:
        """(phase, number of elements) -> the computed values that have it, in order."""
        phases, sizes = self.list_column("phase"), self.list_column("size")
        values_of: dict[tuple[str, int], list[int]] = {}
        for value in self._computed_values.tolist():
            values_of.setdefault((phases[value], sizes[value]), []).append(value)
        return values_of

    @cached_property
    def unread_values(self) -> list[int]:
        """The forward results with a recorded gradient that no recorded op reads, in order."""
        phases = self.list_column("phase")
        return [
            value
            for value in self._computed_values.tolist()
            if phases[value] == FORWARD
            and value in self.recorded_gradients
            and not self.consumers[value]
        ]

    @cached_property
    def unread_inner_results(self) -> IntLists:
        """Per op, which is the call of a module: what ops inside it compute and no op reads.

        Results of modules inside, and single numbers, are left out.
        """
        lists = self.writes
        calls = self.trace.ops["parent"].to_numpy()[lists.rows]
        is_unread = (calls >= 0) & ~self.is_module[lists.rows]
        is_unread &= (self.first_consumers[lists.values] < 0) & (self.sizes[lists.values] > 1)
        return IntLists.from_pairs(len(lists), calls[is_unread], lists.values[is_unread])

    @cached_property
    def unread_inner_places(self) -> Ints:
        """(values of ``unread_inner_results``,) call times ops plus producer, in rising order."""
        lists = self.unread_inner_results
        places: Ints = lists.rows * len(lists) + self.producers[lists.values]
        return places

    @cached_property
    def assignments(self) -> list[int]:
        """The ops of an API dump that write into a part of a tensor, in order."""
        kinds = self.trace.ops["kind"].tolist()
        return [op for op, kind in enumerate(kinds) if kind.endswith("__setitem__")]

    @cached_property
    def _computed_values(self) -> Ints:
        """The values that a recorded op produced, in the order of the run."""
        values = np.flatnonzero(self.producers >= 0)
        computed_values: Ints = values[np.argsort(self.producers[values], kind="stable")]
        return computed_values

    @cached_property
    def sizes(self) -> Ints:
        """(classes,) number of elements."""
        return self.classes["size"].to_numpy()

    @cached_property
    def rms(self) -> Sequence[float]:
        """Per class the root mean square of its elements, NaN if unknown."""
        return view_numbers(self.norms / np.sqrt(np.maximum(self.sizes, 1)))

    @cached_property
    def norms(self) -> Floats:
        """(classes,) L2 norm, NaN if unknown."""
        return self.classes["norm"].to_numpy()

    @cached_property
    def is_layout(self) -> Flags:
        """(ops,) true where an op reads, but writes no new value: a reshape, transpose or copy."""
        is_layout: Flags = (self.reads.counts > 0) & (self.writes.counts == 0)
        return is_layout
