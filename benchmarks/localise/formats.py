"""One pair of recordings in the four forms in which such dumps are found, from the most that is
kept to the least.

    tensors          npy, graph                x  msprobe, whole tensors
    tensors-bare     npy, no graph             x  ptdbg_ascend .pkl with npy, calls only
    statistics       statistic.csv, graph      x  msprobe, statistics
    statistics-bare  statistic.csv, no graph   x  ptdbg_ascend .pkl, calls only

What was recorded is the first form; the others are made of it, as the same run would have left
them. Files are linked, not copied.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dumpdiff import read
from dumpdiff.model.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))

import make_statistic_csv

Names = Mapping[str, str]  #: name of an op in a form -> its name as recorded


@dataclass(frozen=True)
class Form:
    """How the two sides of a pair are made of the recordings, each as ``make(recording,
    folder)``.
    """

    target: Callable[[Path, Path], None] | None
    reference: Callable[[Path, Path], None] | None
    whole: bool


def without_graph(recording: Path, folder: Path) -> None:
    """A MindSpore dump of which only the npy files were kept."""
    left_out = shutil.ignore_patterns("graphs", "execution_order")
    shutil.copytree(recording, folder, ignore=left_out, copy_function=os.link)


def statistic_csv(recording: Path, folder: Path) -> None:
    """A MindSpore dump with ``saved_data: statistic``, the columns that are written by default."""
    make_statistic_csv.convert(recording, folder, make_statistic_csv.DEFAULT.split(","))


def statistic_csv_without_graph(recording: Path, folder: Path) -> None:
    """The same, and only statistic.csv was kept."""
    bare = folder.with_name(f"{folder.name}.npy")
    shutil.rmtree(bare, ignore_errors=True)
    without_graph(recording, bare)
    statistic_csv(bare, folder)
    shutil.rmtree(bare)


def msprobe_statistics(recording: Path, folder: Path) -> None:
    """An msprobe dump with ``task: statistics``: the numbers that msprobe wrote beside the
    tensors.
    """
    for file in recording.rglob("*.json"):
        copy = folder / file.relative_to(recording)
        if file.name == "dump.json":
            content = json.loads(file.read_text(), object_hook=_remove_file_name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(json.dumps({**content, "task": "statistics", "dump_data_dir": None}))
        elif file.parent != recording:
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, copy)


def ptdbg_tensors(recording: Path, folder: Path) -> None:
    """A ptdbg_ascend 6.0 dump in mode api_stack, with npy files."""
    _write_ptdbg(recording, folder, with_tensors=True)


def ptdbg_summary(recording: Path, folder: Path) -> None:
    """A ptdbg_ascend 6.0 dump in mode api_stack, summary only."""
    _write_ptdbg(recording, folder, with_tensors=False)


FORMS: Mapping[str, Form] = {
    "tensors": Form(None, None, True),
    "tensors-bare": Form(without_graph, ptdbg_tensors, True),
    "statistics": Form(statistic_csv, msprobe_statistics, False),
    "statistics-bare": Form(statistic_csv_without_graph, ptdbg_summary, False),
}


def make_form(make: Callable[[Path, Path], None] | None, recording: Path) -> Path:
    """A recording in another form, made once beside it."""
    if make is None:
        return recording
    folder = recording.with_name(f"{recording.name}.{make.__name__}")
    if not folder.exists():
        unfinished = recording.with_name(f"{folder.name}.part{os.getpid()}")
        make(recording, unfinished)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(unfinished)
    return folder


def map_names(make: Callable[[Path, Path], None] | None, recording: Path, recorded: Trace) -> Names:
    """How the ops of a recording are called in the form that ``make`` gives it; {} where they keep
    their names.

    Without a graph MindSpore's ops have the names of their files.
    """
    if make not in (without_graph, statistic_csv_without_graph):
        return {}
    bare = read(make_form(without_graph, recording))
    recorded_names = dict(
        zip(
            recorded.tensors["file"],
            recorded.ops["name"].to_numpy()[recorded.tensors["op"]],
            strict=True,
        )
    )
    form_names = zip(
        bare.tensors["file"], bare.ops["name"].to_numpy()[bare.tensors["op"]], strict=True
    )
    return {name: recorded_names[file] for file, name in form_names if file in recorded_names}


#: Calls that ptdbg_ascend does not wrap.
_UNSEEN = {
    f"Tensor.{name}"
    for name in ("view", "contiguous", "__neg__", "to", "float", "half", "bfloat16", "type")
}
_FRAME = re.compile(r"File (.+), line (\d+), in (.+?), ?\n ?(.*)", re.DOTALL)


def _remove_file_name(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "data_name"}


def _write_ptdbg(recording: Path, folder: Path, *, with_tensors: bool) -> None:
    """Calls in order, of each its inputs, outputs and stack; modules are not recorded in this
    mode.
    """
    trace = read(recording)
    rank = folder / "ptdbg_dump_v6.0" / "step0" / "rank0"
    tensors = rank / "api_stack_dump"
    (tensors if with_tensors else rank).mkdir(parents=True)
    stacks = _read_stacks(recording)
    rows_of: dict[int, list[int]] = {}
    for row, op in enumerate(trace.tensors["op"].tolist()):
        rows_of.setdefault(op, []).append(row)
    lines = []
    for op, (name, kind, level) in enumerate(
        zip(*(trace.ops[c] for c in ("name", "kind", "level")), strict=True)
    ):
        if level != "op" or kind in _UNSEEN or not name.endswith((".forward", ".backward")):
            continue
        for row, slot in _name_slots(trace, rows_of.get(op, []), forward=name.endswith("forward")):
            lines.append(_format_record(trace, row, f"{name}.{slot}"))
            if with_tensors and trace.tensors["file"].iat[row]:
                np.save(tensors / f"{name}.{slot}.npy", _read_tensor(trace, row))
        if name in stacks:
            lines.append(json.dumps([f"{name}.stack_info", stacks[name]]))
    (rank / "api_stack_dump.pkl").write_text("".join(f"{line}\n" for line in lines))


def _name_slots(trace: Trace, rows: list[int], *, forward: bool) -> list[tuple[int, str]]:
    """Slots as ptdbg counts them: keyword arguments go on after the positional ones, a single
    output has no number.
    """
    slots = trace.tensors["slot"].tolist()
    outputs = sum(slots[row].startswith("output") for row in rows)
    positions = [
        int(slots[row].split(".")[1]) for row in rows if re.match(r"input\.\d", slots[row])
    ]
    following = max(positions, default=-1)
    named_slots = []
    for row in rows:
        slot = slots[row]
        if slot.startswith("input.") and not slot[6].isdigit():
            following += 1
            slot = f"input.{following}"
        elif forward and outputs == 1 and slot == "output.0":
            slot = "output"
        named_slots.append((row, slot))
    return named_slots


def _format_record(trace: Trace, row: int, name: str) -> str:
    """One record: [name, step, hash, dtype, shape, [max, min, mean, norm]]; "Nan" is 'not
    computed'.
    """
    dtype, shape, constant, *numbers = (
        trace.tensors[column].iat[row]
        for column in ("dtype", "shape", "constant", "max", "min", "mean", "norm")
    )
    if constant:
        value = {"int": int, "bool": bool}.get(dtype, float)(numbers[0])
        return json.dumps([name, 0, [], f"<class '{dtype}'>", "[]", [value] * 4])
    if dtype == "bool" or not trace.tensors["size"].iat[row]:
        statistics: list[Any] = [[], [], [], "Nan"]
    else:
        statistics = [float(number) for number in numbers]
        if "float" not in dtype:
            statistics[2] = float(np.mean(trace.array(row), dtype=np.float64))
        if "float" not in dtype or not shape:
            statistics[3] = "Nan"
    return json.dumps([name, 0, [], f"torch.{dtype}", list(shape), statistics])


def _read_tensor(trace: Trace, row: int) -> np.ndarray:
    return np.asarray(trace.array(row)).reshape(trace.tensors["shape"].iat[row])


def _read_stacks(recording: Path) -> dict[str, list[list[str]]]:
    """Call -> its frames, innermost first, as [file, line, function, code]."""
    (file,) = recording.rglob("stack.json")
    stacks = {}
    for calls, frames in json.loads(file.read_text()).values():
        parts = [match.groups() for frame in frames if (match := _FRAME.match(frame))]
        stacks.update({call: [list(part) for part in parts] for call in calls})
    return stacks
