"""The place of each rank in the layout of a run: 'tp 1, dp 0'."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..communication.collectives import TRANSFERS
from ..model.run_result import CollectiveState, TaskResult

_ORDER = ("tp", "sp", "cp", "ep", "dp", "pp")  #: in which the coordinates of a rank are listed


def find_coordinates(tasks: Sequence[TaskResult]) -> Mapping[str, str]:
    """Return the place of each rank in the groups whose kind and members are known."""
    places: defaultdict[int, dict[str, int]] = defaultdict(dict)
    members_by_name = _collect_members(tasks)
    for task in tasks:
        for collective in task.collectives:
            kind = collective.group_kind
            members = collective.members or members_by_name.get(collective.group, ())
            if (
                kind in _ORDER
                and task.rank is not None
                and task.rank in members
                and len(members) > 1
            ):
                places[task.rank].setdefault(kind, members.index(task.rank))
    coordinates = {}
    for rank, numbers in sorted(places.items()):
        words = [f"{kind} {numbers[kind]}" for kind in _ORDER if kind in numbers]
        coordinates[str(rank)] = ", ".join(words)
    return coordinates


def _collect_members(tasks: Sequence[TaskResult]) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks that name each group: its members where no list was recorded."""
    members: defaultdict[str, set[int]] = defaultdict(set)
    for task in tasks:
        for collective in task.collectives:
            if collective.group and task.rank is not None:
                members[collective.group].add(task.rank)
    return {group: tuple(sorted(ranks)) for group, ranks in members.items()}


def describe_group(collective: CollectiveState) -> str:
    """Return 'group tp', or 'all ranks'; '' if the kind is unknown."""
    if collective.kind in TRANSFERS:
        return ""
    if collective.group_kind == "world":
        return "all ranks"
    return f"group {collective.group_kind}" if collective.group_kind else ""
