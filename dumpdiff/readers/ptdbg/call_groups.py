"""From the lines of a ptdbg_ascend dump to calls: which records belong to one call, and which repeat one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..stack_frames import NOWHERE, Site
from .lines import Call, Damage, Record, StackLine, parse_name


@dataclass(frozen=True)
class CallGroups:
    """Calls in order (the op's id is the row), and the records of tensors in order with the call of each."""

    calls: list[Call]
    names: list[str]  #: of calls; '#2' for the second that a name stands for
    sites: list[Site]  #: of calls
    forward: list[int]  #: the forward call of each gradient call, -1 if unknown
    records: list[Record]
    ops: list[int]  #: the call of each record
    slots: list[str]
    roles: list[str]
    ambiguous: frozenset[str]  #: names of several different records, which have one tensor file


def group_lines(lines: Iterable[Record | StackLine], damage: Damage) -> CallGroups:
    """The calls that the lines make up; lines that name no call are counted in ``damage``.

    A name with a call index is used once, so the n-th record of it is of the n-th process that wrote the file: call
    '#n', dropped if it holds nothing but what the first holds. Names without index (2022) are shared by all calls of an
    API: there a slot that comes again starts the next call.
    """
    calls: list[Call] = []
    numbers: list[int] = []  #: of calls: n of '#n'
    ids: dict[tuple[str, int], int] = {}
    sites: dict[int, Site] = {}
    seen: dict[str, list[Record]] = {}
    current: dict[str, int] = {}
    rows: list[tuple[int, str, str, Record]] = []

    def op_of(call: Call, number: int) -> int:
        op = ids.setdefault((call.name, number), len(calls))
        if op == len(calls):
            calls.append(call)
            numbers.append(number)
        return op

    for line in lines:
        parsed = parse_name(line.name)
        if parsed is None:
            damage.add(line.line, f"no call is named by {line.name[:80]!r}, skipped")
            continue
        call, role, position = parsed
        if type(line) is StackLine:
            sites.setdefault(op_of(call, current.get(call.name, 1)), line.site)
        elif type(line) is Record:
            repeated = seen.setdefault(line.name, [])
            repeated.append(line)
            number = len(repeated)
            if not call.is_indexed:
                number = current[call.name] = max(number, current.get(call.name, 1))
            rows.append((op_of(call, number), role + (position or ".0"), role, line))

    shared = {name: several for name, several in seen.items() if len(several) > 1}
    different = {
        name
        for name, (first, *others) in shared.items()
        if any(_differ(first, other) for other in others)
    }
    kept = {
        op
        for op, (call, number) in enumerate(zip(calls, numbers, strict=True))
        if number == 1 or not call.is_indexed
    }
    kept.update(
        op
        for op, _, _, record in rows
        if record.name in shared and _differ(shared[record.name][0], record)
    )
    new_ids = {op: index for index, op in enumerate(sorted(kept))}
    rows = [row for row in rows if row[0] in new_ids]
    return CallGroups(
        calls=[calls[op] for op in new_ids],
        names=[calls[op].name + (f"#{numbers[op]}" if numbers[op] > 1 else "") for op in new_ids],
        sites=[sites.get(op, NOWHERE) for op in new_ids],
        forward=[new_ids.get(ids.get((calls[op].forward, numbers[op]), -1), -1) for op in new_ids],
        records=[row[3] for row in rows],
        ops=[new_ids[row[0]] for row in rows],
        slots=[row[1] for row in rows],
        roles=[row[2] for row in rows],
        ambiguous=frozenset(different),
    )


def _differ(one: Record, other: Record) -> bool:
    return one[2:] != other[2:]
