"""The parts of a dump (its steps, ranks and graphs), and the choice of the two parts to compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import DumpError

_MAX_LISTED_PARTS = 6  #: in an error message
_MAX_LISTED_NUMBERS = 12  #: steps, ranks or graphs in an error message


@dataclass(frozen=True)
class Part:
    """One step of one rank (of one compiled graph) in one format."""

    format: str
    path: Path  #: what the format's reader opens
    step: int | None = None
    rank: int | None = None
    #: id of the process; the PyTorch recorders do not know the rank without a process group
    process: int | None = None
    graph: int | None = None
    has_whole_tensors: bool = False  #: the dump has whole tensors, not only statistics

    @property
    def is_unranked(self) -> bool:
        """Whether no rank is known: a run of one process, which may be compared with any rank."""
        return self.rank is None

    @property
    def rank_or_process(self) -> int | None:
        """The number that selects the part with ``--rank``: its rank, else its process id."""
        return self.process if self.rank is None else self.rank

    def __str__(self) -> str:
        labels = [self.format]
        for key in ("step", "rank", "process", "graph"):
            number = getattr(self, key)
            if number is not None:
                labels.append(f"{key} {number}")
        if self.has_whole_tensors:
            labels.append("whole tensors")
        return f"{self.path} ({', '.join(labels)})"


def choose_parts(
    target: Sequence[Part],
    reference: Sequence[Part],
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
    side_names: tuple[str, str] = ("target", "reference"),
) -> tuple[Part, Part]:
    """Choose the two parts to compare: the requested ones, or by default the first common step and
    rank and the first graph.

    A part without a step (or rank) matches any, and so does the only rank of a dump if the other
    has one rank, too; ``rank`` may also be the id of a process without a rank. Of several dumps of
    one step and rank, the one with whole tensors is chosen. Raises DumpError if the two dumps have
    no step or rank in common, if the graph is in neither, or if several dumps remain; the message
    lists what each side has and calls the sides by their ``side_names``.
    """
    sides = dict(zip(side_names, (list(target), list(reference)), strict=True))
    for side, parts in sides.items():
        if not parts:
            raise DumpError(f"the {side} holds no dump")
    sides = _select_step(sides, step)
    sides = _select_rank(sides, rank)
    if graph is not None:
        sides = _select_graph(sides, graph)
    first, second = (_select_single_part(side, parts) for side, parts in sides.items())
    return first, second


def describe_unread_parts(parts: Sequence[Part], chosen_part: Part) -> str:
    """Return what else a dump holds: 'step 0 of 3 and rank 0 of 8'; '' if that is all."""
    places = []
    for attribute, label in (("step", "step"), ("rank_or_process", "rank"), ("graph", "graph")):
        numbers = {getattr(part, attribute) for part in parts} - {None}
        if len(numbers) > 1:
            places.append(f"{label} {getattr(chosen_part, attribute)} of {len(numbers)}")
    if not places and len(parts) > 1:
        places.append(f"one of {len(parts)} dumps")
    return " and ".join(places)


_Sides = dict[str, list[Part]]
_Numbers = dict[str, set[int | None]]  # side -> the steps, ranks or graphs that it has


def _select_step(sides: _Sides, step: int | None) -> _Sides:
    steps = _collect_numbers(sides, "step")
    if step is None:
        step = _find_common_step(steps)
    elif not all(step in side_steps or None in side_steps for side_steps in steps.values()):
        raise DumpError(f"step {step} is not in both dumps: {_format_sides('step', steps)}")
    selected = {}
    for side, parts in sides.items():
        selected[side] = _filter_parts(parts, "step", _choose_side_step(steps[side], step))
    return selected


def _choose_side_step(side_steps: set[int | None], step: int | None) -> int | None:
    """Return ``step`` if the side has it, else None (no number), else the lowest step."""
    if step is not None and step in side_steps:
        return step
    if None in side_steps:
        return None
    return _find_minimum(side_steps)


def _find_common_step(steps: _Numbers) -> int | None:
    """Return the first step of both sides, None if a side without step numbers leaves it open."""
    numbered_sides = [
        side_steps - {None} for side_steps in steps.values() if None not in side_steps
    ]
    if not numbered_sides:
        return None
    return _find_minimum(_intersect_steps(steps, numbered_sides))


def find_common_steps(target: Sequence[Part], reference: Sequence[Part]) -> Sequence[int | None]:
    """Return all steps of both sides, in order; (None,) if a side without numbers leaves it open.

    Raises DumpError if both have numbers and none in common.
    """
    steps = _collect_numbers({"target": list(target), "reference": list(reference)}, "step")
    if any(None in side_steps for side_steps in steps.values()):
        return (None,)
    common_steps = _intersect_steps(steps, list(steps.values()))
    return sorted(step for step in common_steps if step is not None)


def _intersect_steps(steps: _Numbers, numbered_sides: Sequence[set[int | None]]) -> set[int | None]:
    """Return the steps of all numbered sides. Raises DumpError if there is none."""
    common_steps = set.intersection(*numbered_sides)
    if not common_steps:
        raise DumpError(
            f"no step in common: {_format_sides('step', steps)}; give dumps of the same step"
        )
    return common_steps


def _select_rank(sides: _Sides, rank: int | None) -> _Sides:
    numbers = _collect_numbers(sides, "rank_or_process")
    if rank is not None:
        sides, is_process = _select_rank_or_process(sides, rank, numbers)
        if not is_process:
            return sides
    ranks = {side: numbers - {None} for side, numbers in _collect_numbers(sides, "rank").items()}
    ranked_sides = [side_ranks for side_ranks in ranks.values() if side_ranks]
    if not ranked_sides:
        return sides
    common_ranks = set.intersection(*ranked_sides)
    if not common_ranks and all(len(side_ranks) == 1 for side_ranks in ranks.values()):
        return sides  # a folder of one rank each: these two are meant
    if not common_ranks:
        raise DumpError(
            f"no rank in common: {_format_sides('rank', numbers)}; give dumps of the same rank"
        )
    first_rank = _find_minimum(common_ranks)
    selected = dict(sides)
    for side, side_ranks in ranks.items():
        if side_ranks:
            selected[side] = _filter_parts(sides[side], "rank", first_rank)
    return selected


def _select_rank_or_process(sides: _Sides, rank: int, numbers: _Numbers) -> tuple[_Sides, bool]:
    """Select the parts of a rank or process, and return whether ``rank`` is the id of a process.

    Only one side may have that process; the other side then keeps all its parts.
    """
    if rank != 0 and not any(rank in side_numbers for side_numbers in numbers.values()):
        raise DumpError(f"rank {rank} is in neither dump: {_format_sides('rank', numbers)}")
    ranks = set().union(*_collect_numbers(sides, "rank").values())
    processes = set().union(*_collect_numbers(sides, "process").values())
    is_process = rank in processes and rank not in ranks
    selected = {}
    for side, parts in sides.items():
        if rank in numbers[side]:
            selected[side] = _filter_parts(parts, "rank_or_process", rank)
        elif is_process:
            selected[side] = parts
        else:
            selected[side] = _filter_parts(parts, "rank", None)
    if not all(selected.values()):
        raise DumpError(f"rank {rank} is not in both dumps: {_format_sides('rank', numbers)}")
    return selected, is_process


def _select_graph(sides: _Sides, graph: int) -> _Sides:
    graphs = _collect_numbers(sides, "graph")
    if not any(graph in side_graphs for side_graphs in graphs.values()):
        raise DumpError(f"graph {graph} is in neither dump: {_format_sides('graph', graphs)}")
    selected = dict(sides)
    for side, side_graphs in graphs.items():
        if graph in side_graphs:
            selected[side] = _filter_parts(sides[side], "graph", graph)
        elif side_graphs != {None}:
            raise DumpError(f"graph {graph} is not in the {side}: {_format_sides('graph', graphs)}")
    return selected


def _select_single_part(side: str, parts: list[Part]) -> Part:
    """Return the part of the first graph; of several dumps of it, the one with whole tensors."""
    first_graph = _find_minimum(part.graph for part in parts)
    graph_parts = _filter_parts(parts, "graph", first_graph)
    tensor_parts = [part for part in graph_parts if part.has_whole_tensors]
    candidates = tensor_parts or graph_parts
    if len(candidates) > 1:
        listed_parts = [str(part) for part in candidates[:_MAX_LISTED_PARTS]]
        if len(candidates) > _MAX_LISTED_PARTS:
            listed_parts.append("...")
        raise DumpError(
            f"the {side} holds {len(candidates)} matching dumps; give the folder of one: "
            + ", ".join(listed_parts)
        )
    return candidates[0]


def _collect_numbers(sides: _Sides, attribute: str) -> _Numbers:
    """Return the values of an attribute of the parts of each side, such as its steps."""
    return {side: {getattr(part, attribute) for part in parts} for side, parts in sides.items()}


def _filter_parts(parts: list[Part], attribute: str, number: int | None) -> list[Part]:
    return [part for part in parts if getattr(part, attribute) == number]


def _find_minimum(numbers: Iterable[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _format_sides(key: str, numbers: _Numbers) -> str:
    return ", ".join(
        f"the {side} has {_format_numbers(key, side_numbers)}"
        for side, side_numbers in numbers.items()
    )


def _format_numbers(key: str, values: Iterable[int | None]) -> str:
    numbers = sorted(value for value in values if value is not None)
    if not numbers:
        return f"no {key}"
    words = list(map(str, numbers[:_MAX_LISTED_NUMBERS]))
    if len(numbers) > _MAX_LISTED_NUMBERS:
        words.append("...")
    label = key
    if len(numbers) > 1:
        label = f"{key}s"
    return f"{label} {', '.join(words)}"
