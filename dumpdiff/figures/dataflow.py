"""Which op passes which value to which, of one side; missing edges are bridged as in alignment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..divergence.joint_graph import JointGraph
from ..graph import Flow
from ..model.arrays import Ints
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
    computing: Sequence[bool]  #: (ops,) which of the trace's ops these are
    links: tuple[Link, ...]

    @cached_property
    def inputs(self) -> dict[int, list[Link]]:
        """The links to each op."""
        return _group_links((link.consumer, link) for link in self.links)

    @cached_property
    def outputs(self) -> dict[int, list[Link]]:
        """The links from each op."""
        return _group_links((link.producer, link) for link in self.links)

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
        recorded_consumers = self.flow.consumers[value]
        consumers = [consumer for consumer in recorded_consumers if self.computing[consumer]]
        other_links = []
        input_links: dict[Link, None] = {}
        for link in self.links:
            if link.value != value:
                other_links.append(link)
            elif link.producer < min(consumers):
                source = link.produced_value
                input_links[Link(link.producer, op, source, source)] = None
        output_links = [Link(op, consumer, value, value) for consumer in consumers]
        return replace(self, links=(*other_links, *input_links, *output_links)), op

    def is_produced(self, value: int) -> bool:
        """Return whether an op produced it, or received it as its gradient."""
        return _find_producer(self.flow, value) >= 0

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


def _build_dataflow(flow: Flow, graph: JointGraph, node_of: Ints, class_of: Ints) -> Dataflow:
    computing = _mark_computing_ops(flow)
    nodes, classes, producers = node_of.tolist(), class_of.tolist(), flow.producers.tolist()
    links: dict[Link, None] = {}
    for consumer, values in enumerate(flow.reads):
        if not computing[consumer]:
            continue
        for value in values:
            if producers[value] >= 0:
                sources = [value]
            else:
                sources = [classes[node] for node in graph.parents[nodes[value]]]
            for source in sources:
                producer = _find_producer(flow, source) if source >= 0 else -1
                # A value that equals a later one by chance is not computed from it.
                if 0 <= producer < consumer:
                    links[Link(producer, consumer, value, source)] = None
    return Dataflow(flow, computing, tuple(links))


def _group_links(links_by_op: Iterable[tuple[int, Link]]) -> dict[int, list[Link]]:
    groups: dict[int, list[Link]] = {}
    for op, link in links_by_op:
        groups.setdefault(op, []).append(link)
    return groups


def _mark_computing_ops(flow: Flow) -> list[bool]:
    """Return (ops,) whether an op produces a value or takes part in the backward pass."""
    producers = set(flow.producers.tolist())
    levels = flow.trace.ops["level"].tolist()
    forward_ops = flow.trace.ops["forward"].tolist()
    computing = []
    for op, writes in enumerate(flow.writes):
        has_results = bool(writes or forward_ops[op] >= 0)
        computing.append(op in producers or (levels[op] == "op" and has_results))
    return computing


def _find_producer(flow: Flow, value: int) -> int:
    """Return the op that produced a value, -1 if unknown.

    For a gradient whose producer was not recorded, this is the backward call that received it.
    """
    producer = int(flow.producers[value])
    if producer >= 0:
        return producer
    for op in flow.consumers[value]:
        if _takes_gradient(flow, op):
            return op
    return -1


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
