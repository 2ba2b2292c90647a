"""What is kept of the entries of msprobe's dump.json: a small part of what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..call_records import is_communication
from .names import Call, parse_name, parse_saved_name
from .tensors import Leaves

Json = dict[str, Any]


@dataclass
class Entries:
    """The calls of a dump in order, and what their entries hold."""

    calls: dict[str, Call] = field(default_factory=dict)  #: by name
    leaves: Leaves = field(default_factory=Leaves)  #: tensors and numbers of the calls
    communications: dict[str, Json] = field(default_factory=dict)  #: entries of such calls
    recompute_flags: dict[str, bool] = field(default_factory=dict)  #: where they are recorded
    unknown_names: list[str] = field(default_factory=list)  #: of what is no call
    has_recompute_flag: bool = False
    may_be_swapped: bool = False  #: inputs and outputs of backward calls, only by 1.0

    def reorder_calls(self, names: list[str]) -> Entries:
        """Return the same with the calls in another order."""
        new_ids = {name: index for index, name in enumerate(names)}
        leaves = self.leaves.reorder_ops([new_ids[name] for name in self.calls])
        return replace(self, calls={name: self.calls[name] for name in names}, leaves=leaves)


def collect_entries(header: Json, blocks: Iterable[Json]) -> Entries:
    """Return what is kept of entries, which come some at a time.

    Raises ValueError if a call has two entries.
    """
    entries = Entries()
    is_debug = header.get("level") == "debug"
    parse = parse_saved_name if is_debug else parse_name
    for block in blocks:
        if is_debug:
            saved = {name: {"output": value} for name, value in block.items() if value is not None}
            _add_block(entries, saved, parse)
        else:
            _add_block(entries, block, parse)
    return entries


def _add_block(entries: Entries, block: Json, parse: Callable[[str], Call | None]) -> None:
    """Add some entries to what is kept."""
    first_op = len(entries.calls)
    call_entries: list[tuple[Json, Call]] = []
    for name, entry in block.items():
        if not isinstance(entry, dict):
            entries.unknown_names.append(name)
            continue
        flag = entry.get("is_recompute")
        entries.has_recompute_flag |= "is_recompute" in entry
        call = parse(name)
        if call is None:
            entries.unknown_names.append(name)
            continue
        if name in entries.calls:
            raise ValueError(f"two entries of {name}")
        call = _name_rounded_division(call, entry)
        entries.calls[name] = call
        call_entries.append((entry, call))
        entries.may_be_swapped |= "grad_input" in entry
        if isinstance(flag, bool):
            entries.recompute_flags[name] = flag
        if is_communication(call.kind):
            entries.communications[name] = entry
    entries.leaves.add_entries(first_op, call_entries)


def _name_rounded_division(call: Call, entry: Json) -> Call:
    """Return a call of ``div`` with ``rounding_mode`` as one of the function that it is.

    The mode is a string, which is no tensor and no number of the trace.
    """
    keywords = entry.get("input_kwargs")
    mode = keywords.get("rounding_mode") if isinstance(keywords, dict) else None
    value = mode.get("value") if isinstance(mode, dict) else None
    if value not in ("floor", "trunc"):
        return call
    family = call.kind.rpartition(".")[0]
    return call._replace(kind=f"{family}.{value}_divide")
