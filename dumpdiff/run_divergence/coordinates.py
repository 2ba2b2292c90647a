"""The place of each rank in the layout of a run: 'tp 1, dp 0'."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..model.run_result import CollectiveState, TaskResult

#: Parts of the names of groups -> the kind of the group.
_KINDS = {
    "tp": "tp",
    "tensor": "tp",
    "mp": "tp",
    "dp": "dp",
    "data": "dp",
    "pp": "pp",
    "pipeline": "pp",
    "ep": "ep",
    "expert": "ep",
    "cp": "cp",
    "context": "cp",
    "sp": "sp",
    "sequence": "sp",
}
_ORDER = ("tp", "sp", "cp", "ep", "dp", "pp")  #: in which the coordinates of a rank are listed


def get_group_kind(group: str) -> str:
    """Return the kind of a group from its name, '' if it does not say.

    >>> get_group_kind("tp-0-1"), get_group_kind("hccl_world_group")
    ('tp', '')
    """
    words = re.split(r"[^a-z]+", group.lower())
    kinds = {_KINDS[word] for word in words if word in _KINDS}
    return kinds.pop() if len(kinds) == 1 else ""


def find_coordinates(tasks: Sequence[TaskResult]) -> Mapping[str, str]:
    """Return the place of each rank in the groups whose kind and members are known."""
    places: defaultdict[int, dict[str, int]] = defaultdict(dict)
    members_by_name = _collect_members(tasks)
    for task in tasks:
        for collective in task.collectives:
            kind = get_group_kind(collective.group)
            members = collective.members or members_by_name.get(collective.group, ())
            if kind and task.rank is not None and task.rank in members and len(members) > 1:
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
    """Return the kind of a collective's group, else its name."""
    return get_group_kind(collective.group) or collective.group
