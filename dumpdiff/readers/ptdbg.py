"""ptdbg_ascend dumps: PyTorch API and module calls, one JSON list a line in a file called ``.pkl``.

Every era from the prototypes of 2022 to 6.0 is read by what its lines look like; version folders are not believed.
The tools that wrote 8 items a line (troubleshooter's API dump) are read too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ..dtypes import normalise
from ..errors import DumpError
from ..trace import Problem, Source, Trace, op_table, tensor_table
from . import calls
from .files import head, is_pickle, is_plain_name, load_tensor, number_in, text_files
from .frames import NOWHERE, Site
from .parts import Part
from .ptdbg_lines import Call, Damage, Record, StackLine, is_dump, parse_name, records

FORMAT = "ptdbg"

_API = re.compile(r"(Tensor|Torch|Functional|VF|NPU|Distributed|Aten|NN|Mint|Ops)[._](.+)")
_MODULE = re.compile(r"(?:(?P<scope>.+)[._])?(?P<type>[A-Za-z]\w*)")
_ERAS = {
    8: "troubleshooter's API dump: 8 items a line with MD5 and norm",
    5: "overflow dump: 5 items a line, no statistics",
    4: "prototype of 2022: 4 items a line, whole tensors in the line",
}

_normalise = lru_cache(maxsize=None)(normalise)


def find(path: Path) -> list[Part]:
    """Every ptdbg_ascend file at or below ``path``; step and rank come from folders called ``stepN`` and ``rankR``."""
    return [
        Part(FORMAT, file, number_in(file, "step"), number_in(file, "rank"), whole=bool(_tensor_folders(file)))
        for file in text_files(path)
        if is_dump(head(file))
    ]


def read(part: Part) -> Trace:
    """The trace of one file. Raises DumpError if it is a real pickle or holds no readable record."""
    path = part.path
    if is_pickle(path):
        raise DumpError(f"{path}: real pickle; not read (a ptdbg_ascend .pkl is text: JSON lines that start with '[')")
    damage = Damage(path.name)
    table = _Table(damage)
    try:
        for record in records(path, damage):
            table.add(record)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
    if not table.rows:
        raise DumpError(f"{path}: no record of a tensor in it; expected JSON lines of ptdbg_ascend")
    return table.trace(part)


#: One tensor of a call: op, slot, role, record.
Row = tuple[int, str, str, Record]


class _Table:
    """Collects records into calls: which lines belong to one call, and which repeat one."""

    def __init__(self, damage: Damage) -> None:
        self.damage = damage
        self.rows: list[Row] = []
        self.calls: list[Call] = []  #: by op
        self.ops: dict[tuple[str, int], int] = {}  #: (name of the call, which repetition) -> op
        self.sites: dict[int, Site] = {}
        self._seen: dict[str, list[Record]] = {}  #: record name -> repetitions
        self._current: dict[str, int] = {}  #: call without index -> which repetition is being read

    def add(self, record: Record | StackLine) -> None:
        """Take one line."""
        parsed = parse_name(record.name)
        if parsed is None:
            self.damage.add(record.line, f"no call is named by {record.name[:80]!r}, skipped")
            return
        call, io, position = parsed
        if isinstance(record, StackLine):
            self.sites.setdefault(self._op(call, self._current.get(call.name, 1)), record.site)
            return
        repeated = self._seen.setdefault(record.name, [])
        repeated.append(record)
        repetition = len(repeated)
        if not call.indexed:  # calls of one API share a name: a slot that comes again starts the next call
            repetition = self._current[call.name] = max(repetition, self._current.get(call.name, 1))
        self.rows.append((self._op(call, repetition), io + (position or ".0"), io, record))

    def _op(self, call: Call, repetition: int) -> int:
        op = self.ops.setdefault((call.name, repetition), len(self.calls))
        if op == len(self.calls):
            self.calls.append(call)
        return op

    def _drop_equal_repetitions(self) -> tuple[list[int], list[Row]]:
        """Ops and rows without the calls that repeat, record by record, what an earlier line says."""
        differing = {op for (_, repetition), op in self.ops.items() if repetition == 1}
        for op, _, _, record in self.rows:
            call, first = self.calls[op], self._seen[record.name][0]
            if op not in differing and (not call.indexed or record[2:] != first[2:]):
                differing.add(op)
        kept = [op for op in range(len(self.calls)) if op in differing]
        return kept, [row for row in self.rows if row[0] in differing]

    def trace(self, part: Part) -> Trace:
        """Everything taken so far, as a trace."""
        kept, rows = self._drop_equal_repetitions()
        ids = {op: row for row, op in enumerate(kept)}
        repetition = {op: number for (_, number), op in self.ops.items()}
        made = [self.calls[op] for op in kept]
        kinds, levels, scopes = zip(*(_classify(call.api) for call in made), strict=True)
        forward = [
            ids.get(self.ops.get((_forward_name(call.name), repetition[op]), -1), -1) if call.backward else -1
            for op, call in zip(kept, made, strict=True)
        ]
        sites = [self.sites.get(op, NOWHERE) for op in kept]
        phases, recomputed = calls.passes(kinds, [call.backward for call in made], forward, sites)
        numbered = ((call.name, repetition[op]) for op, call in zip(kept, made, strict=True))
        ops = op_table(
            {
                "name": [f"{name}#{number}" if number > 1 else name for name, number in numbered],
                "kind": kinds,
                "phase": phases,
                "level": levels,
                "scope": scopes,
                "forward": forward,
                "recomputed": recomputed,
                "source": [site.source for site in sites],
                "stack": [site.stack for site in sites],
            }
        )

        files, missing = self._files(part.path, rows)
        dtypes = [_normalise(record.dtype) for *_, record in rows]
        shapes = [calls.shape_of(record.shape) for *_, record in rows]
        sizes = [calls.size_of(shape) for shape in shapes]
        columns: dict[str, Any] = {
            "op": [ids[op] for op, *_ in rows],
            "slot": [slot for _, slot, _, _ in rows],
            "role": [role for _, _, role, _ in rows],
            "dtype": dtypes,
            "shape": shapes,
            "size": sizes,
            "hash": [record.hash for *_, record in rows],
            "constant": [record.dtype.startswith("<class") for *_, record in rows],
            "file": files,
            **calls.statistics(_columns([record.statistics for *_, record in rows]), dtypes, sizes),
        }
        if exchanged := calls.swapped(ops, table := tensor_table(columns)):
            where = ops["forward"].to_numpy()[table["op"].to_numpy()] >= 0
            columns["slot"], columns["role"] = calls.exchange(columns["slot"], columns["role"], where)
            table = tensor_table(columns)
        table["trusted"] = calls.trusted(ops, table, inputs_before=False, gradients_complete=False, modules=False)
        framework = "pytorch" if any(record.dtype.startswith("torch.") for *_, record in rows) else "mindspore"
        source = Source(
            path=str(part.path.parent),
            format=FORMAT,
            era=_era(rows, made, exchanged),
            framework=framework,
            step=part.step,
            rank=part.rank,
            low_precision_statistics=True,
            details={"file": part.path.name, "task": _task(rows, files)},
        )
        return Trace(source, ops, table, (*self.damage.problems(), *missing), partial(load_tensor, part.path.parent))

    def _files(self, path: Path, rows: list[Row]) -> tuple[list[str], list[Problem]]:
        """The file of every row ('' if none) and problems; none at all where two processes wrote one dump."""
        folders = _tensor_folders(path)
        if not folders:
            return [""] * len(rows), []
        repeated = sum(any(other[2:] != first[2:] for other in others) for first, *others in self._seen.values())
        if repeated and all(call.indexed for call in self.calls):
            text = "names with different records: several processes wrote this dump, its tensor files were not used"
            return [""] * len(rows), [Problem(path.name, text, None, repeated)]
        where = {name: folder for folder, names in folders.items() for name in names}
        files, absent = [], 0
        for _, _, _, record in rows:
            unique = len(self._seen[record.name]) == 1  # prototypes overwrite the file of an earlier call
            known = unique and is_plain_name(record.name) and where.get(f"{record.name}.npy")
            absent += unique and not known and not record.dtype.startswith("<class")
            files.append(f"{known}/{record.name}.npy" if known else "")
        text = "the record's tensor file is missing, its statistics were used"
        return files, [Problem(path.name, text, None, absent)] if absent else []


def _tensor_folders(path: Path) -> Mapping[str, set[str]]:
    """Folders beside the file that hold its tensors: the one of its own name, else any with npy files of call names."""
    own = path.parent / path.stem
    candidates = [own] if own.is_dir() else sorted(entry for entry in path.parent.iterdir() if entry.is_dir())
    found = {}
    for folder in candidates:
        names = {name for name in os.listdir(folder) if name.endswith(".npy")}
        if names and parse_name(next(iter(names)).removesuffix(".npy")):
            found[folder.name] = names
    return found


def _columns(rows: list[list[Any]]) -> Iterable[list[Any]]:
    """Four columns of the rows [max, min, mean, norm], [max, min, mean] and []."""
    return (list(column) for column in zip(*((*row, None, None, None, None)[:4] for row in rows), strict=True))


def _forward_name(call: str) -> str:
    return call[: -len("backward")] + "forward"


def _classify(api: str) -> tuple[str, str, str]:
    """Kind, level and scope of a name without index: ``Functional_linear``, ``layers.0.wq.Linear``, ``MyBlock``."""
    api = re.sub(r"^\d+_", "", api)
    if match := _API.fullmatch(api):
        return f"{match[1]}.{match[2]}", "op", ""
    match = _MODULE.fullmatch(api.removeprefix("Module_").removeprefix("Module."))
    if match is None:
        return "Module", "module", api
    return f"Module.{match['type']}", "module", match["scope"] or ""


def _era(rows: list[Row], made: list[Call], exchanged: bool) -> str:
    """What tells this generation apart, in words."""
    items = Counter(record.items for *_, record in rows).most_common(1)[0][0]
    if items != 6:
        said = _ERAS[items]
    elif any(call.name[:1].isdigit() for call in made):
        said = "prototype of early 2023: calls are numbered through"
    else:
        norm = any(len(record.statistics) == 4 for *_, record in rows)
        checksums = any(record.hash for *_, record in rows)
        separator = "." if any(call.name.endswith((".forward", ".backward")) for call in made) else "_"
        generation = "6.0" if separator == "." else "4.0.T2 to 5.0" if norm or checksums else "1.0 to 4.0.T1"
        content = "CRC-32" if checksums else "max, min, mean, norm" if norm else "max, min, mean"
        said = f"{generation} ('{separator}' in names; {content})"
    return said + ("; backward input and output were exchanged" if exchanged else "")


def _task(rows: list[Row], files: list[str]) -> str:
    if any(files):
        return "tensor"
    return "md5" if any(record.hash and not record.statistics for *_, record in rows) else "statistics"
