"""Cut the narrowed dump out of a recording of whole tensors: exactly the ops that were asked for.

A recording repeats itself to the last bit, so the files of the asked ops are what a second run
with the printed configuration would have written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from dumpdiff import read
from dumpdiff.readers.manifest.document import read_manifest

#: The file of a recording that holds the sketches of all its tensors: no whole tensor.
_SKETCHES = "sketches.npy"


def cut_recording(recording: Path, ops: Sequence[str], folder: Path) -> int:
    """Write the dump of only these ops; return the bytes of its whole tensors."""
    if any(recording.glob("step*/rank*/manifest.json")):
        return _cut_recorder(recording, set(ops), folder)
    if any(recording.glob("step*")):
        return _cut_msprobe(recording, set(ops), folder)
    return _cut_mindspore(recording, set(ops), folder)


def count_bytes(recording: Path) -> int:
    """Return the bytes of all whole tensors of a recording."""
    return sum(
        file.stat().st_size
        for file in recording.rglob("*")
        if file.suffix in (".npy", ".pt") and file.name != _SKETCHES
    )


def _cut_mindspore(recording: Path, ops: set[str], folder: Path) -> int:
    """Keep the graphs, which MindSpore always writes, and the files of the ops."""
    trace = read(recording)
    names = trace.ops["name"].str.replace(r"#\d+$", "", regex=True)
    is_kept = names.isin(ops).to_numpy()[trace.tensors["op"].to_numpy()]
    kept_files = set(trace.tensors["file"].to_numpy()[is_kept]) - {""}
    kept_names = {Path(file).name for file in kept_files}

    def leave_out(_: str, names: list[str]) -> set[str]:
        return {name for name in names if name.endswith(".npy") and name not in kept_names}

    shutil.copytree(recording, folder, ignore=leave_out, copy_function=os.link)
    return count_bytes(folder)


def _cut_recorder(recording: Path, ops: set[str], folder: Path) -> int:
    """Keep all statistics, as ``record --like`` does, and the files of the calls."""
    for file in recording.rglob("manifest.json"):
        calls = read_manifest(file).calls
        kept_tensors = {number for call in calls if call.name in ops for *_, number in call.slots}
        document = json.loads(file.read_text())
        copy = folder / file.relative_to(recording)
        (copy.parent / "tensors").mkdir(parents=True)
        for number, tensor in enumerate(document["tensors"]):
            name = tensor.get("file", "")
            if number not in kept_tensors:
                tensor.pop("file", None)
            elif name and not (copy.parent / name).exists():
                os.link(file.parent / name, copy.parent / name)
        copy.write_text(json.dumps(document))
        os.link(file.with_name(_SKETCHES), copy.with_name(_SKETCHES))
    return count_bytes(folder)


def _cut_msprobe(recording: Path, ops: set[str], folder: Path) -> int:
    """Keep the records and the files of the calls in ``list``.

    With a module's backward call come the gradients of its parameters.
    """
    backward_modules = {name.rpartition(".backward.")[0] for name in ops} - {""}
    for file in recording.rglob("*.json"):
        copy = folder / file.relative_to(recording)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.name != "dump.json":
            os.link(file, copy)
            continue
        content = json.loads(file.read_text())
        content["data"] = {
            name: entry
            for name, entry in content["data"].items()
            if name in ops or name.partition(".parameters_grad")[0] in backward_modules
        }
        copy.write_text(json.dumps(content))
        tensors = copy.parent / "dump_tensor_data"
        tensors.mkdir()
        for name in _list_files(content["data"]):
            os.link(file.parent / "dump_tensor_data" / name, tensors / name)
    return count_bytes(folder)


def _list_files(entry: object) -> list[str]:
    """Return the names of all files that records refer to."""
    if isinstance(entry, dict):
        names = [str(entry["data_name"])] if entry.get("data_name") else []
        for value in entry.values():
            names += _list_files(value)
        return names
    if isinstance(entry, list):
        return [name for value in entry for name in _list_files(value)]
    return []
