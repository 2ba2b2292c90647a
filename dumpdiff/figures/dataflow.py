"""Which op passes which value to which, of one side; missing edges are bridged as in alignment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..divergence.joint_graph import JointGraph
from ..graph import Flow
from ..model.arrays import Flags, Ints
from ..model.int_lists import IntLists
from ..model.trace import FORWARD


class Link(NamedTuple):
    """A value that goes from one op to another."""

    producer: int
    consumer: int
    value: int  #: value class at the consumer
    produced_value: int  #: value class at the producer: a different one across a bridged edge


@dataclass(frozen=True)
class Dataflow:
    """Ops of one side that compute something, and the values between them.

    Reshapes, transposes and copies only pass a value on, and a module call repeats what the ops in
    it did. Neither is an op here: their consumers are linked to the op that computed the value.
    """

    flow: Flow
    computing: Flags  #: (ops,) which of the trace's ops these are
    producers: Ints  #: (classes,) see :func:`_find_producers`
    link_table: Ints  #: (links, 4) in the order of the fields of :class:`Link`

    @property
    def links(self) -> list[Link]:
        """All links."""
        return self._list_links(slice(None))

    def list_inputs(self, op: int) -> list[Link]:
        """Return the links to an op; none for -1."""
        return self._list_links(list(self._rows_by_consumer[op])) if op >= 0 else []

    def list_outputs(self, op: int) -> list[Link]:
        """Return the links from an op; none for -1."""
        return self._list_links(list(self._rows_by_producer[op])) if op >= 0 else []

    def _list_links(self, rows: slice | list[int]) -> list[Link]:
        return [Link(*row) for row in self.link_table[rows].tolist()]

    @cached_property
    def _rows_by_consumer(self) -> IntLists:
        return self._group_rows(self.link_table[:, 1])

    @cached_property
    def _rows_by_producer(self) -> IntLists:
        return self._group_rows(self.link_table[:, 0])

    def _group_rows(self, ops: Ints) -> IntLists:
        """Return the rows of the links of each op, and of each possible unrecorded one."""
        n_ops = len(self.flow.phases) + len(self.flow.classes)
        return IntLists.from_pairs(n_ops, ops, np.arange(len(ops)))

    def get_phase(self, op: int) -> str:
        """Return the phase of an op: forward, backward, ..."""
        value = self.get_unrecorded_output(op)
        if value < 0:
            return self.flow.phases[op]
        return str(self.flow.list_column("phase")[value])

    def get_unrecorded_output(self, op: int) -> int:
        """Return the output of an op of :meth:`with_unrecorded_producer`, -1 for other ops."""
        return max(-1, op - len(self.flow.phases))

    def with_unrecorded_producer(self, value: int) -> tuple[Dataflow, int]:
        """Return (the dataflow with an extra op as the producer of ``value``, that op).

        ``value`` is one that no recorded op produces.
        """
        op = len(self.flow.phases) + value
        consumers = [c for c in self.flow.consumers[value] if self.computing[c]]
        is_of_value = self.link_table[:, 2] == value
        input_links = dict.fromkeys(
            Link(producer, op, source, source)
            for producer, _, _, source in self.link_table[is_of_value].tolist()
            if producer < min(consumers)
        )
        output_links = [Link(op, consumer, value, value) for consumer in consumers]
        links = np.array([*input_links, *output_links], dtype=np.int64).reshape(-1, 4)
        link_table = np.concatenate([self.link_table[~is_of_value], links])
        return replace(self, link_table=link_table), op

    def is_produced(self, value: int) -> bool:
        """Return whether an op produced it, or received it as its gradient."""
        return bool(self.producers[value] >= 0)

    def list_results(self, op: int) -> tuple[int, ...]:
        """Return the values that decide the state of an op.

        These are its outputs, and the gradients that a backward call received.
        """
        unrecorded_output = self.get_unrecorded_output(op)
        if unrecorded_output >= 0:
            return (unrecorded_output,)
        return tuple(dict.fromkeys((*self.flow.writes[op], *_list_taken_gradients(self.flow, op))))


def build_dataflows(graph: JointGraph) -> tuple[Dataflow, Dataflow]:
    """Return the dataflow of the target and of the reference."""
    alignment = graph.comparison.alignment
    return (
        _build_dataflow(alignment.target, graph, graph.target_nodes, graph.target_classes),
        _build_dataflow(alignment.reference, graph, graph.reference_nodes, graph.reference_classes),
    )


def _build_dataflow(flow: Flow, graph: JointGraph, nodes: Ints, classes: Ints) -> Dataflow:
    computing = _flag_computing_ops(flow)
    producers = _find_producers(flow)
    is_read = computing[flow.reads.rows]
    consumers, values = flow.reads.rows[is_read], flow.reads.values[is_read]
    is_open = flow.producers[values] < 0
    sources = graph.parents.take(nodes[values[is_open]])
    # a value with a producer is its own source, the others have those of their node
    rows = np.concatenate([np.flatnonzero(~is_open), np.flatnonzero(is_open)[sources.rows]])
    produced_values = np.concatenate([values[~is_open], classes[sources.values]])
    order = np.argsort(rows, kind="stable")
    rows, produced_values = rows[order], produced_values[order]
    link_producers = np.where(produced_values >= 0, producers[produced_values], -1)
    links = np.stack([link_producers, consumers[rows], values[rows], produced_values], axis=1)
    # A value that equals a later one by chance is not computed from it.
    is_link = (links[:, 0] >= 0) & (links[:, 0] < links[:, 1])
    return Dataflow(flow, computing, producers, links[is_link])


def _flag_computing_ops(flow: Flow) -> Flags:
    """Return (ops,) whether an op produces a value or takes part in the backward pass."""
    is_producer = np.zeros(len(flow.reads), dtype=bool)
    is_producer[flow.producers[flow.producers >= 0]] = True
    has_results = (flow.writes.counts > 0) | (flow.trace.ops["forward"].to_numpy() >= 0)
    flags: Flags = is_producer | (has_results & (flow.trace.ops["level"] == "op").to_numpy())
    return flags


def _find_producers(flow: Flow) -> Ints:
    """Return (classes,) the op that produced each value, -1 if unknown.

    For a gradient whose producer was not recorded, this is the backward call that received it.
    """
    takes_gradient = ~flow.flag_phase(FORWARD) & (flow.trace.ops["forward"].to_numpy() >= 0)
    is_taken = takes_gradient[flow.consumers.values]
    takers = IntLists.from_pairs(
        len(flow.classes), flow.consumers.rows[is_taken], flow.consumers.values[is_taken]
    )
    producers: Ints = np.where(flow.producers >= 0, flow.producers, takers.first_values)
    return producers


def _takes_gradient(flow: Flow, op: int) -> bool:
    """Return whether an op is the backward of a recorded call."""
    return flow.phases[op] != FORWARD and bool(flow.trace.ops["forward"].iat[op] >= 0)


def _list_taken_gradients(flow: Flow, op: int) -> Iterator[int]:
    """Yield the gradients that a backward call received and no op produced."""
    if not _takes_gradient(flow, op):
        return
    phases = flow.list_column("phase")
    for value in flow.reads[op]:
        if flow.producers[value] < 0 and phases[value] != FORWARD:
            yield value
