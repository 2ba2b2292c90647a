"""Which op hands which value to which, of one side: as recorded, and where the record has a hole as it was bridged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..divergence.joint_graph import Joined
from ..graph import Flow
from ..model.arrays import Ints
from ..model.trace import FORWARD


class Link(NamedTuple):
    """A value on its way between two ops."""

    maker: int
    reader: int
    value: int  #: class, as the reader has it
    made: int  #: class, as the maker has it: another one where the record has a hole in between that was bridged


@dataclass(frozen=True)
class Dataflow:
    """Ops of one side that compute something, and the values between them.

    Reshapes, transposes and copies pass a value on and module calls repeat what the ops in them did: neither is an op
    here, and their readers read from the op that computed the value.
    """

    flow: Flow
    computing: Sequence[bool]  #: (ops,) which of the trace's ops these are
    links: tuple[Link, ...]

    @cached_property
    def above(self) -> dict[int, list[Link]]:
        """Per op the values it reads."""
        return _grouped((link.reader, link) for link in self.links)

    @cached_property
    def below(self) -> dict[int, list[Link]]:
        """Per op the values that others read from it."""
        return _grouped((link.maker, link) for link in self.links)

    def phase(self, op: int) -> str:
        """Forward, backward, ..."""
        given = self.given(op)
        return self.flow.phases[op] if given < 0 else str(self.flow.column("phase")[given])

    def given(self, op: int) -> int:
        """The value that an op of :meth:`with_given` stands for, -1 if it is an op of the trace."""
        return max(-1, op - len(self.flow.phases))

    def with_given(self, value: int) -> tuple[Dataflow, int]:
        """(the dataflow with one more op, which stands for the making of a value that no op makes; that op)."""
        op = len(self.flow.phases) + value
        readers = [reader for reader in self.flow.readers[value] if self.computing[reader]]
        bridged = [link for link in self.links if link.value == value and link.maker < min(readers)]
        into = dict.fromkeys(Link(link.maker, op, link.made, link.made) for link in bridged)
        out_of = [Link(op, reader, value, value) for reader in readers]
        return replace(
            self, links=(*(link for link in self.links if link.value != value), *into, *out_of)
        ), op

    def is_made(self, value: int) -> bool:
        """Some op is known to have made it, or to have been given it as its gradient."""
        return _maker(self.flow, value) >= 0

    def results(self, op: int) -> tuple[int, ...]:
        """The values that tell how an op fared: what it made, and of a backward call the gradients it was given."""
        given = self.given(op)
        return (
            (given,)
            if given >= 0
            else tuple(dict.fromkeys((*self.flow.writes[op], *_gradients(self.flow, op))))
        )


def dataflows(graph: Joined) -> tuple[Dataflow, Dataflow]:
    """Of the target and of the reference."""
    alignment = graph.comparison.alignment
    return (
        _dataflow(alignment.target, graph, graph.node_t, graph.class_t),
        _dataflow(alignment.reference, graph, graph.node_r, graph.class_r),
    )


def _dataflow(flow: Flow, graph: Joined, node_of: Ints, class_of: Ints) -> Dataflow:
    computing = _computing(flow)
    nodes, classes, producers = node_of.tolist(), class_of.tolist(), flow.producers.tolist()
    links: dict[Link, None] = {}
    for reader, values in enumerate(flow.reads):
        if not computing[reader]:
            continue
        for value in values:
            above = (
                [value]
                if producers[value] >= 0
                else [classes[node] for node in graph.parents[nodes[value]]]
            )
            for made in above:
                maker = _maker(flow, made) if made >= 0 else -1
                if (
                    0 <= maker < reader
                ):  # a value that equals a later one by chance is not computed from it
                    links[Link(maker, reader, value, made)] = None
    return Dataflow(flow, computing, tuple(links))


def _grouped(pairs: Iterable[tuple[int, Link]]) -> dict[int, list[Link]]:
    table: dict[int, list[Link]] = {}
    for op, link in pairs:
        table.setdefault(op, []).append(link)
    return table


def _computing(flow: Flow) -> list[bool]:
    """(ops,) whether an op makes a value of its own, or takes part in the backward pass."""
    producers = set(flow.producers.tolist())
    columns = zip(
        flow.trace.ops["level"].tolist(),
        flow.trace.ops["forward"].tolist(),
        flow.writes,
        strict=True,
    )
    return [
        op in producers or (level == "op" and bool(writes or forward >= 0))
        for op, (level, forward, writes) in enumerate(columns)
    ]


def _maker(flow: Flow, value: int) -> int:
    """The op that made a value; of a gradient that nobody recorded making, the one that was given it; else -1."""
    if flow.producers[value] >= 0:
        return int(flow.producers[value])
    return next((op for op in flow.readers[value] if _takes_gradient(flow, op)), -1)


def _takes_gradient(flow: Flow, op: int) -> bool:
    """It is the backward of a recorded call: what it was given is what the dump knows of that gradient."""
    return flow.phases[op] != FORWARD and bool(flow.trace.ops["forward"].iat[op] >= 0)


def _gradients(flow: Flow, op: int) -> Iterator[int]:
    if _takes_gradient(flow, op):
        phase = flow.column("phase")
        yield from (
            value
            for value in flow.reads[op]
            if flow.producers[value] < 0 and phase[value] != FORWARD
        )
