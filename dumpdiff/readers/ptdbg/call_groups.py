"""Group the lines of a ptdbg_ascend dump (0.1 to 6.0) into calls, and find repeated calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..stack_frames import NOWHERE, Site
from .lines import Call, Damage, Record, StackLine, parse_name

_MAX_SHOWN_NAME = 80  #: characters of an unknown name in a message


@dataclass(frozen=True)
class CallGroups:
    """Calls in order (a call's index is its op id), and the records of tensors with their calls."""

    calls: list[Call]
    names: list[str]  #: names of the calls; '#2' for the second call of one name
    sites: list[Site]  #: call sites of the calls
    forward: list[int]  #: the forward call of each gradient call, -1 if unknown
    records: list[Record]
    ops: list[int]  #: the call of each record
    slots: list[str]
    slot_kinds: list[str]
    ambiguous: frozenset[str]  #: names of several different records, which share one tensor file


def group_lines(lines: Iterable[Record | StackLine], damage: Damage) -> CallGroups:
    """Group the lines into calls; lines whose name is not that of a call are counted in ``damage``.

    A process uses a name with a call index once, so the n-th record of such a name is from the n-th
    process that wrote the file. It belongs to call '#n', which is dropped if it equals the first
    call. Names without an index (2022) are shared by all calls of an API; a slot that is repeated
    starts the next call.
    """
    collector = _CallCollector()
    for line in lines:
        parsed_name = parse_name(line.name)
        if parsed_name is None:
            shown_name = line.name[:_MAX_SHOWN_NAME]
            description = f"{shown_name!r} is not the name of a call, skipped"
            damage.add(line.line, description, is_foreign=True)
            continue
        call, slot_kind, position = parsed_name
        if type(line) is StackLine:
            collector.add_site(call, line.site)
        elif type(line) is Record:
            collector.add_record(call, slot_kind, slot_kind + (position or ".0"), line)
    return collector.build_groups()


class _CallCollector:
    """The calls and records of the lines read so far."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._numbers: list[int] = []  # n of '#n', for each call
        self._ids: dict[tuple[str, int], int] = {}  # (name, n) -> call
        self._sites: dict[int, Site] = {}
        self._records_of: dict[str, list[Record]] = {}  # name of a record -> records
        self._current_number: dict[str, int] = {}  # n of the latest call, of names without an index
        self._rows: list[tuple[int, str, str, Record]] = []  # call, slot, slot_kind, record

    def add_site(self, call: Call, site: Site) -> None:
        """Add the call site of a call, unless it has one."""
        op = self._add_call(call, self._current_number.get(call.name, 1))
        self._sites.setdefault(op, site)

    def add_record(self, call: Call, slot_kind: str, slot: str, record: Record) -> None:
        """Add the record of a tensor."""
        repeated_records = self._records_of.setdefault(record.name, [])
        repeated_records.append(record)
        number = len(repeated_records)
        if not call.is_indexed:
            number = max(number, self._current_number.get(call.name, 1))
            self._current_number[call.name] = number
        self._rows.append((self._add_call(call, number), slot, slot_kind, record))

    def _add_call(self, call: Call, number: int) -> int:
        op = self._ids.setdefault((call.name, number), len(self._calls))
        if op == len(self._calls):
            self._calls.append(call)
            self._numbers.append(number)
        return op

    def build_groups(self) -> CallGroups:
        """Return the calls that are not mere repetitions, with their records."""
        new_ids = {op: index for index, op in enumerate(sorted(self._select_calls()))}
        rows = [row for row in self._rows if row[0] in new_ids]
        return CallGroups(
            calls=[self._calls[op] for op in new_ids],
            names=[self._format_name(op) for op in new_ids],
            sites=[self._sites.get(op, NOWHERE) for op in new_ids],
            forward=[new_ids.get(self._find_forward(op), -1) for op in new_ids],
            records=[record for _, _, _, record in rows],
            ops=[new_ids[op] for op, _, _, _ in rows],
            slots=[slot for _, slot, _, _ in rows],
            slot_kinds=[slot_kind for _, _, slot_kind, _ in rows],
            ambiguous=self._find_ambiguous_names(),
        )

    def _find_ambiguous_names(self) -> frozenset[str]:
        """Return the names of records that were repeated with another content."""
        ambiguous_names = set()
        for name, (first_record, *repeated_records) in self._records_of.items():
            if any(_differ(first_record, record) for record in repeated_records):
                ambiguous_names.add(name)
        return frozenset(ambiguous_names)

    def _select_calls(self) -> set[int]:
        """Return the calls to keep: all but those that only repeat the first call of their name."""
        selected = set()
        for op, (call, number) in enumerate(zip(self._calls, self._numbers, strict=True)):
            if number == 1 or not call.is_indexed:
                selected.add(op)
        for op, _, _, record in self._rows:
            if _differ(self._records_of[record.name][0], record):
                selected.add(op)
        return selected

    def _format_name(self, op: int) -> str:
        name, number = self._calls[op].name, self._numbers[op]
        return f"{name}#{number}" if number > 1 else name

    def _find_forward(self, op: int) -> int:
        return self._ids.get((self._calls[op].forward, self._numbers[op]), -1)


def _differ(record: Record, other: Record) -> bool:
    """Whether two records of one name differ in content; line and name do not count."""
    return record[2:] != other[2:]
