"""One collective or transfer, with all ranks that take part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import AnyArray
from .step import Step
from .violations import Violation

# why an exchange is not checked
NO_RECORD = "an input or output is not recorded on every rank"
STATISTICS_ONLY = "only statistics, which do not tell the order of elements"
INCOMPLETE = "asynchronous: recorded before it was complete"


@dataclass
class Tally:
    """What is counted for one invariant."""

    checked: int = 0
    violations: list[Violation] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Member:
    """One rank in one exchange."""

    rank: int
    op: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    root: int
    is_asynchronous: bool
    reduction: str


@dataclass(frozen=True)
class Exchange:
    """All ranks of one collective or transfer, in the order of the group."""

    members: tuple[Member, ...]
    group: int  #: number among the groups of the step

    @property
    def kinds(self) -> frozenset[str]:
        """What the ranks call: one kind, or the two ends of a transfer."""
        return frozenset(member.kind for member in self.members)


def list_exchanges(step: Step) -> Iterator[Exchange]:
    """Yield every exchange of the step."""
    table = step.exchanges.table
    names = (
        "exchange", "group", "rank", "op", "kind", "inputs", "outputs", "root", "asynchronous",
        "reduction",
    )  # fmt: skip
    members_of: defaultdict[int, list[Member]] = defaultdict(list)
    group_of: dict[int, int] = {}
    for number, group, *facts in zip(*(table[name].tolist() for name in names), strict=True):
        members_of[number].append(Member(*facts))
        group_of[number] = group
    for number, members in members_of.items():
        order = step.exchanges.groups[group_of[number]].members
        members.sort(key=lambda member: order.index(member.rank))
        yield Exchange(tuple(members), group_of[number])


def is_incomplete(step: Step, member: Member) -> bool:
    """Return whether an asynchronous call was recorded before its output was there."""
    if not member.is_asynchronous or not member.outputs:
        return False
    keys = step.keys[member.rank]
    op_rows = np.flatnonzero(
        (step.traces[member.rank].tensors["op"] == member.op).to_numpy()
        & (step.traces[member.rank].tensors["slot_kind"] == "input").to_numpy()
    )
    inputs = set(keys[op_rows].tolist())
    return any(keys[tensor] in inputs for tensor in member.outputs)


def load_all(step: Step, rank: int, tensors: tuple[int, ...]) -> AnyArray | None:
    """Return the elements of tensors one after the other, None if one has no file."""
    arrays = [step.load(rank, tensor) for tensor in tensors]
    if not arrays or any(array is None for array in arrays):
        return None
    joined: AnyArray = np.concatenate([array.reshape(-1) for array in arrays if array is not None])
    return joined


def explain_missing_arrays(slots: Iterable[tuple[int, ...]]) -> str:
    """Return why not all tensors can be loaded: those of each slot, none where it has no record."""
    return STATISTICS_ONLY if all(slots) else NO_RECORD


def add_violation(
    tally: Tally,
    step: Step,
    exchange: Exchange,
    invariant: str,
    wrong: Sequence[Member],
    recorded: str,
    expected: str,
    slot: str = "output.0",
) -> None:
    """Add to the tally what some members of an exchange contradict."""
    first = wrong[0]
    op = step.traces[first.rank].ops.iloc[first.op]
    ranks = tuple(sorted(member.rank for member in wrong))
    group = str(step.exchanges.groups[exchange.group])
    tally.violations.append(
        Violation(
            invariant, step.number, ranks, op["name"], slot, op["scope"], recorded, expected, group
        )
    )
