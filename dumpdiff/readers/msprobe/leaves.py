"""Names that ``msprobe compare`` gives to the tensors of a dump.json, for its mapping files.

Read in mindstudio-probe 26.2, core/compare/acc_compare.py and utils.py. A leaf has the name of its
tensor file, or without a file the name of its entry and its place in the entry. From 26.0 on
msprobe renumbers the backward calls of the reference before it compares names, in the order of the
file. The target's names are looked up in a mapping unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...model.trace import Trace
from .dump_json import read_dump

FIRST_RENUMBERING = (26, 0)  #: first version of msprobe that renumbers backward calls

#: Key of an entry -> how msprobe calls the place of its tensors.
_PLACES = {
    "input_args": "input",
    "input_kwargs": "input",
    "input": "input",
    "output": "output",
    "parameters": "parameters",
}
_MAX_DEPTH = 16  #: levels of nested lists and objects in an argument


def list_leaf_names(trace: Trace) -> list[str]:
    """Return, for each tensor of an msprobe trace, its name in ``msprobe compare``."""
    names, kinds = trace.ops["name"].tolist(), trace.ops["kind"].tolist()
    columns = (trace.tensors[column].tolist() for column in ("op", "slot", "slot_kind", "file"))
    leaf_names = []
    for op, slot, slot_kind, file in zip(*columns, strict=True):
        if file:
            leaf_names.append(_get_file_stem(file))
        else:
            is_gradient = kinds[op] == "parameters_grad"
            leaf_names.append(f"{names[op]}.{_format_place(slot, slot_kind, is_gradient)}")
    return leaf_names


def read_entry_leaves(dump: Path) -> dict[str, tuple[str, ...]]:
    """Return every entry of a dump.json, in order, with the names of its leaves.

    Leaves that are not tensors are included. Raises DumpError if the file cannot be read.
    """
    _, entries, _ = read_dump(dump)
    return {entry: tuple(_list_leaves(entry, content)) for entry, content in entries.items()}


def list_lookup_names(entries: Iterable[str], version: tuple[int, ...]) -> dict[str, str]:
    """Return, for each entry of the reference, the name by which msprobe looks it up.

    >>> list_lookup_names(["Torch.add.7.backward", "Torch.add.6.backward"], (26, 2))
    {'Torch.add.7.backward': 'Torch.add.0.backward', 'Torch.add.6.backward': 'Torch.add.1.backward'}
    """
    call_numbers: Counter[str] = Counter()
    lookup_names = {}
    for entry in entries:
        front, _, last = entry.rpartition(".")
        stem, _, second_last = front.rpartition(".")
        lookup_names[entry] = entry
        if "backward" in (second_last, last) and version >= FIRST_RENUMBERING:
            number = str(call_numbers[stem])
            call_numbers[stem] += 1
            ending = [number if part.isdecimal() else part for part in (second_last, last)]
            lookup_names[entry] = ".".join([stem, *ending])
    return lookup_names


def _format_place(slot: str, slot_kind: str, is_gradient: bool) -> str:
    name = slot.partition(".")[2]
    if is_gradient:  # gradients of parameters have only the name of the parameter
        return name
    return f"parameters.{name}" if slot_kind == "parameter" else slot


def _get_file_stem(file: str) -> str:
    return file.rpartition("/")[2].rpartition(".")[0]


def _list_leaves(entry: str, content: Any) -> Iterator[str]:
    if not isinstance(content, dict):
        return
    if "parameters_grad" in entry.split(".")[-2:]:
        for parameter, value in content.items():
            gradient = value
            if isinstance(value, list) and value:
                gradient = value[0]
            yield from _list_nested_leaves(f"{entry}.{parameter}", gradient)
        return
    for key, place in _PLACES.items():
        if key in content:
            yield from _list_nested_leaves(f"{entry}.{place}", content[key])


def _list_nested_leaves(name: str, value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the leaves in a value. Empty lists and objects have none; None is a leaf."""
    if value is None:
        yield name
        return
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        yield _get_leaf_name(name, value.get("data_name"))
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    if depth < _MAX_DEPTH:
        for key, item in items:
            yield from _list_nested_leaves(f"{name}.{key}", item, depth + 1)


def _get_leaf_name(name: str, file: Any) -> str:
    """Return the stem of the file that holds the values of a leaf, ``name`` if there is none."""
    has_file = isinstance(file, str) and file not in ("", "-1")
    return _get_file_stem(file) if has_file else name
