"""Convert a pair of recordings to the four forms in which dumps are kept, from most to least data.

    tensors          npy, graph                x  msprobe, whole tensors
    tensors-bare     npy, no graph             x  ptdbg_ascend .pkl with npy, calls only
    statistics       statistic.csv, graph      x  msprobe, statistics
    statistics-bare  statistic.csv, no graph   x  ptdbg_ascend .pkl, calls only

The recording itself is the first form. The others are derived from it and equal what the same run
would have written. Files are linked, not copied.
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
    """How to derive the two sides of a pair from the recordings, each with ``make(recording,
    folder)``; None keeps the recording.
    """

    target: Callable[[Path, Path], None] | None
    reference: Callable[[Path, Path], None] | None
    whole: bool


def drop_graph(recording: Path, folder: Path) -> None:
    """Write a MindSpore dump with only its npy files."""
    left_out = shutil.ignore_patterns("graphs", "execution_order")
    shutil.copytree(recording, folder, ignore=left_out, copy_function=os.link)


def convert_to_statistic_csv(recording: Path, folder: Path) -> None:
    """Write a MindSpore dump with ``saved_data: statistic`` and the default columns."""
    make_statistic_csv.convert(recording, folder, make_statistic_csv.DEFAULT.split(","))


def convert_to_bare_statistic_csv(recording: Path, folder: Path) -> None:
    """Write a MindSpore dump with only its statistic.csv."""
    npy_folder = folder.with_name(f"{folder.name}.npy")
    shutil.rmtree(npy_folder, ignore_errors=True)
    drop_graph(recording, npy_folder)
    convert_to_statistic_csv(npy_folder, folder)
    shutil.rmtree(npy_folder)


def convert_to_msprobe_statistics(recording: Path, folder: Path) -> None:
    """Write an msprobe dump with ``task: statistics``: the numbers that msprobe wrote with the
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


def convert_to_ptdbg_tensors(recording: Path, folder: Path) -> None:
    """Write a ptdbg_ascend 6.0 dump in mode api_stack, with npy files."""
    _write_ptdbg(recording, folder, with_tensors=True)


def convert_to_ptdbg_summary(recording: Path, folder: Path) -> None:
    """Write a ptdbg_ascend 6.0 dump in mode api_stack, summary only."""
    _write_ptdbg(recording, folder, with_tensors=False)


FORMS: Mapping[str, Form] = {
    "tensors": Form(None, None, True),
    "tensors-bare": Form(drop_graph, convert_to_ptdbg_tensors, True),
    "statistics": Form(convert_to_statistic_csv, convert_to_msprobe_statistics, False),
    "statistics-bare": Form(convert_to_bare_statistic_csv, convert_to_ptdbg_summary, False),
}


def make_form(make: Callable[[Path, Path], None] | None, recording: Path) -> Path:
    """Return a recording in another form; it is written once, next to the recording."""
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


def make_pair(form: Form, target: Path, reference: Path) -> tuple[Path, Path]:
    """Return both recordings of a pair in a form."""
    return (
        make_form(get_target_maker(form, target), target),
        make_form(get_reference_maker(form, reference), reference),
    )


def get_target_maker(form: Form, recording: Path) -> Callable[[Path, Path], None] | None:
    """Return what derives the target; PyNative's dump is msprobe's, like the reference."""
    is_eager = any(recording.glob("step*"))
    return get_reference_maker(form, recording) if is_eager else form.target


def get_reference_maker(form: Form, recording: Path) -> Callable[[Path, Path], None] | None:
    """Return what derives the reference, msprobe's dump or that of dumpdiff.record."""
    if any(recording.glob("step*/rank*/manifest.json")):
        return _MANIFEST_MAKERS.get(form.reference)
    return form.reference


def drop_tensors(recording: Path, folder: Path) -> None:
    """Write a recording of ``dumpdiff.record`` without whole tensors: statistics and sketches."""
    _copy_manifest(recording, folder, {"file"})


def drop_sketches(recording: Path, folder: Path) -> None:
    """Write a recording of ``dumpdiff.record`` with statistics only."""
    _copy_manifest(recording, folder, {"file", "sketch"})


def _copy_manifest(recording: Path, folder: Path, removed_keys: set[str]) -> None:
    for file in recording.rglob("manifest.json"):
        document = json.loads(file.read_text())
        for tensor in document["tensors"]:
            for key in removed_keys & tensor.keys():
                del tensor[key]
        copy = folder / file.relative_to(recording)
        copy.parent.mkdir(parents=True)
        copy.write_text(json.dumps(document))
        os.link(file.with_name("sketches.npy"), copy.with_name("sketches.npy"))


#: What makes the form of msprobe -> what makes that of a recording of dumpdiff.record. Here
#: "statistics" has sketches, too, and "statistics-bare" has not.
_MANIFEST_MAKERS: Mapping[
    Callable[[Path, Path], None] | None, Callable[[Path, Path], None] | None
] = {
    convert_to_msprobe_statistics: drop_tensors,
    convert_to_ptdbg_summary: drop_sketches,
}


def map_names(form: Form, recording: Path, recorded: Trace) -> Names:
    """Return the recorded name of each op name of the target in a form; {} if ops keep their names.

    Without a graph, MindSpore's ops have the names of their files.
    """
    make = get_target_maker(form, recording)
    if make not in (drop_graph, convert_to_bare_statistic_csv):
        return {}
    npy_trace = read(make_form(drop_graph, recording))
    recorded_names = dict(
        zip(
            recorded.tensors["file"],
            recorded.ops["name"].to_numpy()[recorded.tensors["op"]],
            strict=True,
        )
    )
    form_names = zip(
        npy_trace.tensors["file"],
        npy_trace.ops["name"].to_numpy()[npy_trace.tensors["op"]],
        strict=True,
    )
    return {name: recorded_names[file] for file, name in form_names if file in recorded_names}


#: Calls that ptdbg_ascend does not wrap.
_UNWRAPPED_CALLS = {
    f"Tensor.{name}"
    for name in ("view", "contiguous", "__neg__", "to", "float", "half", "bfloat16", "type")
}
_FRAME = re.compile(r"File (.+), line (\d+), in (.+?), ?\n ?(.*)", re.DOTALL)


def _remove_file_name(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "data_name"}


def _write_ptdbg(recording: Path, folder: Path, *, with_tensors: bool) -> None:
    """Write the calls in order, each with its inputs, outputs and stack.

    Modules are not recorded in this mode.
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
        if (
            level != "op"
            or kind in _UNWRAPPED_CALLS
            or not name.endswith((".forward", ".backward"))
        ):
            continue
        for row, slot in _name_slots(trace, rows_of.get(op, []), forward=name.endswith("forward")):
            lines.append(_format_record(trace, row, f"{name}.{slot}"))
            if with_tensors and trace.tensors["file"].iat[row]:
                np.save(tensors / f"{name}.{slot}.npy", _read_tensor(trace, row))
        if name in stacks:
            lines.append(json.dumps([f"{name}.stack_info", stacks[name]]))
    (rank / "api_stack_dump.pkl").write_text("".join(f"{line}\n" for line in lines))


def _name_slots(trace: Trace, rows: list[int], *, forward: bool) -> list[tuple[int, str]]:
    """Name slots as ptdbg does.

    Keyword arguments follow the positional ones; a single output has no number.
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
    """Return one record: [name, step, hash, dtype, shape, [max, min, mean, norm]].

    "Nan" means that a statistic is not computed.
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
    """Return the frames of each call, innermost first, as [file, line, function, code]."""
    (file,) = recording.rglob("stack.json")
    stacks = {}
    for calls, frames in json.loads(file.read_text()).values():
        parts = [match.groups() for frame in frames if (match := _FRAME.match(frame))]
        stacks.update({call: [list(part) for part in parts] for call in calls})
    return stacks
