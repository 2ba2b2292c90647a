"""What ``msprobe compare`` calls the tensors of a dump.json: the names that a mapping file for it must hold.

Read in mindstudio-probe 26.2, core/compare/acc_compare.py and utils.py: a leaf is called like its file, else by its
entry and its place in it. From 26.0 on the reference's backward calls are numbered anew before names are compared, in
the order in which they stand in the file; the target's names are looked up in a mapping as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...model.trace import Trace
from .dump_json import read_dump

FIRST_RENUMBERING = (26, 0)  #: version of msprobe that numbers backward calls by their order

_PLACES = {
    "input_args": "input", "input_kwargs": "input", "input": "input", "output": "output", "parameters": "parameters",
}  # fmt: skip
_DEEPEST = 16


def leaf_names(trace: Trace) -> list[str]:
    """Per tensor of an msprobe trace the name that ``msprobe compare`` knows it by."""
    names, kinds = trace.ops["name"].tolist(), trace.ops["kind"].tolist()
    columns = (trace.tensors[column].tolist() for column in ("op", "slot", "role", "file"))
    return [
        _of_file(file)
        if file
        else f"{names[op]}.{_place(slot, role, kinds[op] == 'parameters_grad')}"
        for op, slot, role, file in zip(*columns, strict=True)
    ]


def entries_of(dump: Path) -> dict[str, tuple[str, ...]]:
    """Every entry of a dump.json, in order, and the names of its leaves; those that are no tensors are among them.

    Raises DumpError if the file cannot be read.
    """
    _, data, _ = read_dump(dump)
    return {entry: tuple(_leaves(entry, content)) for entry, content in data.items()}


def sought_names(entries: Iterable[str], version: tuple[int, ...]) -> dict[str, str]:
    """Entry of the reference -> the name that msprobe of that version finds it by.

    >>> sought_names(["Torch.matmul.7.backward", "Torch.matmul.6.backward"], (26, 2))
    {'Torch.matmul.7.backward': 'Torch.matmul.0.backward', 'Torch.matmul.6.backward': 'Torch.matmul.1.backward'}
    """
    number: Counter[str] = Counter()
    found = {}
    for entry in entries:
        stem, _, end = entry.rpartition(".")
        stem, _, before = stem.rpartition(".")
        found[entry] = entry
        if "backward" in (before, end) and version >= FIRST_RENUMBERING:
            call = str(number[stem])
            number[stem] += 1
            found[entry] = ".".join(
                [stem, *(call if part.isdigit() else part for part in (before, end))]
            )
    return found


def _place(slot: str, role: str, gradient: bool) -> str:
    name = slot.partition(".")[2]
    if gradient:  # of parameters: named by the parameter alone
        return name
    return f"parameters.{name}" if role == "parameter" else slot


def _of_file(file: str) -> str:
    return file.rpartition("/")[2].rpartition(".")[0]


def _leaves(entry: str, content: Any) -> Iterator[str]:
    if not isinstance(content, dict):
        return
    if "parameters_grad" in entry.split(".")[-2:]:
        for parameter, value in content.items():
            yield from _below(
                f"{entry}.{parameter}", value[0] if isinstance(value, list) and value else value
            )
        return
    for key, place in _PLACES.items():
        if key in content:
            yield from _below(f"{entry}.{place}", content[key])


def _below(name: str, value: Any, depth: int = 0) -> Iterator[str]:
    """The leaves below a value; empty lists and objects have none, and None is one."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        file = value.get("data_name")
        yield _of_file(file) if isinstance(file, str) and file not in ("", "-1") else name
    elif value is None:
        yield name
    elif isinstance(value, (dict, list)) and depth < _DEEPEST:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _below(f"{name}.{key}", item, depth + 1)
