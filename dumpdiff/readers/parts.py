"""What a dump folder holds, and which part of it to compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import DumpError


@dataclass(frozen=True)
class Part:
    """One step of one rank (of one compiled graph) in one format; ``path`` is what the format's reader opens."""

    format: str
    path: Path
    step: int | None = None
    rank: int | None = None
    process: int | None = (
        None  #: its number: without a process group the PyTorch recorders know no rank
    )
    graph: int | None = None
    whole: bool = False  #: whole tensors lie beside the statistics

    @property
    def anonymous(self) -> bool:
        """Whether no rank is known: a run of one process, which may be compared with any rank."""
        return self.rank is None

    @property
    def number(self) -> int | None:
        """What ``--rank`` asks for it by: the rank, else the number of the process."""
        return self.process if self.rank is None else self.rank

    def __str__(self) -> str:
        where = ("step", "rank", "process", "graph")
        said = [f"{key} {value}" for key in where if (value := getattr(self, key)) is not None]
        return f"{self.path} ({', '.join([self.format, *said, *(['whole tensors'] if self.whole else [])])})"


def choose(
    target: Sequence[Part],
    reference: Sequence[Part],
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
    roles: tuple[str, str] = ("target", "reference"),
) -> tuple[Part, Part]:
    """The two parts to compare: what was asked for, else the first common step, the first common rank, the first graph.

    A part without a step (or rank) matches any; ``rank`` may also be the number of a process that has none.
    Of several dumps of one step and rank, the one with whole tensors. Raises DumpError when the two dumps have no step
    or rank in common, when the graph is in neither, or when several dumps remain, listing what each has; it calls the
    two by their ``roles``.
    """
    sides = dict(zip(roles, (list(target), list(reference)), strict=True))
    for side, parts in sides.items():
        if not parts:
            raise DumpError(f"the {side} holds no dump")
    sides = _of_common_step(sides, step)
    sides = _of_common_rank(sides, rank)
    if graph is not None:
        sides = _of_graph(sides, graph)
    first, second = (_single(side, parts) for side, parts in sides.items())
    return first, second


_Sides = dict[str, list[Part]]


def _of_common_step(sides: _Sides, step: int | None) -> _Sides:
    has = {side: {part.step for part in parts} for side, parts in sides.items()}
    if step is None:
        known = [steps - {None} for steps in has.values() if None not in steps]
        common = set.intersection(*known) if known else set()
        if known and not common:
            raise DumpError(
                f"no step in common: {_listing('step', has)}; give dumps of the same step"
            )
        step = min((value for value in common if value is not None), default=None)
    elif not all(step in steps or None in steps for steps in has.values()):
        raise DumpError(f"step {step} is not in both dumps: {_listing('step', has)}")
    if step is None:
        return {side: _first_step(parts) for side, parts in sides.items()}
    return {
        side: [part for part in parts if part.step == step]
        or [part for part in parts if part.step is None]
        for side, parts in sides.items()
    }


def _first_step(parts: list[Part]) -> list[Part]:
    """Where the other side names no step: the parts without one, else those of the lowest."""
    lowest = min((part.step for part in parts if part.step is not None), default=None)
    return [part for part in parts if part.step is None] or [
        part for part in parts if part.step == lowest
    ]


def _of_common_rank(sides: _Sides, rank: int | None) -> _Sides:
    has = {side: {part.number for part in parts} for side, parts in sides.items()}
    if rank is not None:
        if not (rank == 0 or any(rank in ranks for ranks in has.values())):
            raise DumpError(f"rank {rank} is in neither dump: {_listing('rank', has)}")
        everything = [part for parts in sides.values() for part in parts]
        # A process is asked of the side that has it; the other keeps its default.
        a_process = rank in {part.process for part in everything} - {
            part.rank for part in everything
        }
        sides = {
            side: [part for part in parts if part.number == rank]
            or [part for part in parts if a_process or part.anonymous]
            for side, parts in sides.items()
        }
        if not all(sides.values()):
            raise DumpError(f"rank {rank} is not in both dumps: {_listing('rank', has)}")
        if not a_process:
            return sides
    named = {
        side: {part.rank for part in parts if not part.anonymous} for side, parts in sides.items()
    }
    known = [ranks for ranks in named.values() if ranks]
    common = set.intersection(*known) if known else set()
    if known and not common:
        raise DumpError(f"no rank in common: {_listing('rank', has)}; give dumps of the same rank")
    first = min((value for value in common if value is not None), default=None)
    return {
        side: [part for part in parts if part.rank == first] if named[side] else parts
        for side, parts in sides.items()
    }


def _of_graph(sides: _Sides, graph: int) -> _Sides:
    has = {side: {part.graph for part in parts} for side, parts in sides.items()}
    if not any(graph in graphs for graphs in has.values()):
        raise DumpError(f"graph {graph} is in neither dump: {_listing('graph', has)}")
    for side, graphs in has.items():
        if graph not in graphs and graphs != {None}:
            raise DumpError(f"graph {graph} is not in the {side}: {_listing('graph', has)}")
    return {
        side: [part for part in parts if part.graph == graph] if graph in has[side] else parts
        for side, parts in sides.items()
    }


def _single(side: str, parts: list[Part]) -> Part:
    """The first graph; of several dumps of it, the one with whole tensors."""
    lowest = min((part.graph for part in parts if part.graph is not None), default=None)
    parts = [part for part in parts if part.graph == lowest]
    preferred = [part for part in parts if part.whole] or parts
    if len(preferred) > 1:
        listed = ", ".join(str(part) for part in preferred[:6]) + (
            ", ..." if len(preferred) > 6 else ""
        )
        raise DumpError(
            f"the {side} holds {len(preferred)} dumps that may be meant; give the folder of one: {listed}"
        )
    return preferred[0]


def _listing(key: str, has: dict[str, set[int | None]]) -> str:
    return ", ".join(f"the {side} has {_numbers(key, values)}" for side, values in has.items())


def _numbers(key: str, values: Iterable[int | None]) -> str:
    numbers = sorted(value for value in values if value is not None)
    if not numbers:
        return f"no {key}"
    shown = ", ".join(map(str, numbers[:12])) + (", ..." if len(numbers) > 12 else "")
    return f"{key}{'s' if len(numbers) > 1 else ''} {shown}"
