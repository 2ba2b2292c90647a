"""The result of a comparison of many ranks and steps: plain data for reports and programs.

A **task** is one step of one rank of both runs, compared. Its complete :class:`~.result.Result` is
on disk; a :class:`TaskResult` is what the answer about the whole run needs of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import DumpError
from .finding import Finding
from .formatting import format_number_ranges
from .inheritance import Inheritance
from .reportable import Backend, Reportable
from .result import Result, Side
from .verdict import DIFFERING_STATES, AlignmentVerdict

#: What a finding of a run is about: the kinds of :class:`~.finding.Finding`, or ``update``: the
#: weights agree before a step and its gradients agree, and after it the weights differ.
UPDATE = "update"


@dataclass(frozen=True)
class LayerState:
    """How one layer of one phase compares in one task."""

    phase: str
    layer: str  #: layers.1, final_norm, '' if unknown
    state: str  #: the worst state of its values, see ``model.verdict.VALUE_STATES``
    ratio: float  #: the largest error over its tolerance, NaN if nothing was compared
    values: int  #: number of pairs
    differing: int  #: number of pairs that differ


@dataclass(frozen=True)
class CollectiveState:
    """One collective, as one rank of the target took part in it."""

    op: str  #: the dump's own name
    kind: str  #: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, recv, ...
    phase: str
    position: int  #: number of the op in its trace
    group: str  #: as recorded, '' if unknown
    group_kind: str  #: tp, dp, pp, ep, cp, sp, world, '' if unknown
    members: tuple[int, ...]  #: ranks of the group, () if unknown
    order: int  #: number of the collective in its group; of send and recv, between the two ranks
    peer: int  #: the other rank of send and recv, the source of a broadcast, -1 if there is none
    input_state: str  #: the worst state of what it reads, '' if that was not compared
    output_state: str  #: the worst state of what it writes
    #: if an input differs and is no value that alignment compared: the ops that made it, back to
    #: values that agree, in order
    input_ops: tuple[str, ...] = ()

    @property
    def has_differing_input(self) -> bool:
        """Whether something that it reads differs from the reference."""
        return self.input_state in DIFFERING_STATES


@dataclass(frozen=True)
class ParameterState:
    """One parameter in one step; a state is '' if it was not compared."""

    name: str  #: as the target calls it
    weight: str  #: state of the weight before the step
    gradient: str
    update: str  #: state of the weight after the step
    weight_error: float  #: of the weight before the step, NaN if it was not compared
    update_error: float  #: of the weight after the step


@dataclass(frozen=True)
class TaskResult:
    """What was found in one step of one rank."""

    step: int | None
    rank: int | None
    reference_rank: int | None
    verdict: AlignmentVerdict
    headline: str  #: the answer in one line
    findings: tuple[Finding, ...] = ()  #: the first ones
    positions: tuple[int, ...] = ()  #: of each finding: number of the target's op, -1 if none
    n_findings: int = 0
    coverage: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]] = field(
        default_factory=dict
    )
    target: Side | None = None
    reference: Side | None = None
    notes: tuple[str, ...] = ()
    weaknesses: tuple[str, ...] = ()
    layers: tuple[LayerState, ...] = ()
    collectives: tuple[CollectiveState, ...] = ()
    parameters: tuple[ParameterState, ...] = ()
    #: ranks that the collectives and transfers of the target or the reference name
    named_ranks: tuple[int, ...] = ()
    problem: str = ""  #: why the task could not be compared, '' if it was
    folder: str = ""  #: of its complete result, relative to the folder of the run
    inheritance: Inheritance | None = None  #: differences that were allowed, None if none was

    @property
    def place(self) -> str:
        """The task in words: 'rank 3, step 0'."""
        return format_place((self.rank,), (self.step,))


@dataclass(frozen=True)
class Reception:
    """Ranks that received an error through a collective or from another rank."""

    ranks: tuple[int, ...]
    kind: str  #: all_reduce, recv, ...
    group: str  #: kind or name of the group, '' if unknown
    op: str  #: the receiving op of the first of the ranks


@dataclass(frozen=True)
class RunFinding:
    """One place where two runs of many ranks and steps diverge."""

    number: int  #: position in the result, 1 is the first divergence
    kind: str
    step: int | None  #: the first step at which it was found
    steps: tuple[int, ...]  #: all of them
    ranks: tuple[int, ...]  #: ranks that have it in the first step
    place: str  #: rank 3 (tp 1, dp 1), step 0
    title: str
    finding: Finding  #: of the first rank, in that task's result
    task: str  #: folder of that task, relative to the folder of the run
    receptions: tuple[Reception, ...] = ()
    evidence: tuple[str, ...] = ()
    #: the target's ops that it names on the first of its ranks; those of ``finding`` are of another
    #: rank if that is the first to have one
    ops: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The identity of the finding in the result of its task."""
        return self.finding.id


class RunBackend(Backend, Protocol):
    """Also reads the complete results of tasks, which are on disk."""

    def load_task(self, result: RunResult, task: TaskResult) -> Result:
        """Return the complete result of a task."""

    def explain(self, result: RunResult, finding: RunFinding) -> Finding:
        """Return a finding with its causes."""

    def close(self) -> None:
        """Delete what is stored of a result that was not given a folder."""


@dataclass(frozen=True)
class RunResult(Reportable[RunBackend]):
    """The answer of ``dumpdiff align`` on several ranks or steps.

    It has the verbs of :class:`~.result.Result`; ``task(step, rank)`` is the complete result of
    one step of one rank.
    """

    target: str  #: path
    reference: str  #: path
    verdict: AlignmentVerdict
    findings: tuple[RunFinding, ...]
    tasks: tuple[TaskResult, ...]
    #: rank -> its place in the layout: 'tp 1, dp 1'; without ranks whose place is unknown
    coordinates: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()  #: sentences: ranks and steps that were not read
    unpaired: tuple[str, ...] = ()  #: sentences: ranks that have no partner
    notes: tuple[str, ...] = ()  #: sentences; why inconclusive first
    details: Mapping[str, Any] = field(default_factory=dict)
    backend: RunBackend | None = field(default=None, repr=False, compare=False)

    @property
    def first_divergence(self) -> RunFinding | None:
        """The first finding that is not isolated, None if there is none."""
        for finding in self.findings:
            if finding.kind != "isolated":
                return finding
        return None

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The steps that were compared, in order."""
        return tuple(dict.fromkeys(task.step for task in self.tasks))

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """The ranks that were compared, in order."""
        ranks = dict.fromkeys(task.rank for task in self.tasks)
        return tuple(sorted(ranks, key=lambda rank: -1 if rank is None else rank))

    def finding(self, key: int | str) -> RunFinding:
        """Return the finding of a number (1 is the first) or of an id.

        Raises DumpError if there is none.
        """
        for finding in self.findings:
            if key in (finding.number, str(finding.number), finding.id):
                return finding
        raise DumpError(f"the result has no finding {key}; it has {len(self.findings)}")

    def task(self, rank: int | None = None, step: int | None = None) -> Result:
        """Return the complete result of a task; default: the first rank and step.

        Raises DumpError if the task was not compared.
        """
        for task in self.list_tasks(step):
            if rank in (None, task.rank):
                if task.problem:
                    raise DumpError(f"{task.place} could not be compared: {task.problem}")
                return self._require_backend().load_task(self, task)
        raise DumpError(f"{format_place((rank,), (step,))} was not compared")

    def list_tasks(self, step: int | None) -> Iterator[TaskResult]:
        """Yield the tasks of a step, of all steps if None."""
        for task in self.tasks:
            if step in (None, task.step):
                yield task

    def explain(self, key: int | str = 1) -> Finding:
        """Return a finding with its causes; its dumps are read again. Raises DumpError."""
        return self._require_backend().explain(self, self.finding(key))

    def close(self) -> None:
        """Delete what is stored of a result that was not given a folder."""
        if self.backend is not None:
            self.backend.close()

    def __repr__(self) -> str:
        """Return the verdict and the first divergence on one line."""
        first = self.first_divergence
        where = f": {first.place}: {first.title}" if first is not None else ""
        counts = f"{len(self.findings)} findings, {len(self.tasks)} tasks"
        return f"<RunResult {self.verdict}, {counts}{where}>"


def format_place(ranks: tuple[int | None, ...], steps: tuple[int | None, ...]) -> str:
    """Return ranks and steps in words, without what has no number.

    >>> format_place((0, 1, 2), (0,)), format_place((None,), (3,))
    ('ranks 0 to 2, step 0', 'step 3')
    """
    words = []
    for label, numbers in (("rank", ranks), ("step", steps)):
        known_numbers = [number for number in numbers if number is not None]
        if known_numbers:
            plural = "s" if len(known_numbers) > 1 else ""
            words.append(f"{label}{plural} {format_number_ranges(known_numbers)}")
    return ", ".join(words) or "the run"
