"""A copy of a dump in which one record after the other is damaged and put back.

Files of a copy are links to the original. A damaged file is replaced, never written into.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kinds import Statistics
from records import Record

from dumpdiff.readers.mindspore.file_names import parse_file_name, read_mapping

_CSV_COLUMNS = {
    "max": "Max Value",
    "min": "Min Value",
    "mean": "Avg Value",
    "norm": "L2Norm Value",
}
_JSON_KEYS = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}


class DumpCopy:
    """A dump made of links, with files that can be replaced and restored."""

    def __init__(self, original: Path, folder: Path) -> None:
        shutil.copytree(original, folder, copy_function=os.link)
        self.original = original
        self.folder = folder
        self._replaced: set[Path] = set()

    def read(self, file: Path) -> bytes:
        """Return the original content of a file, by its path in the dump."""
        return (self.original / file).read_bytes()

    def replace(self, file: Path, content: bytes | None) -> None:
        """Give a file another content; None deletes it."""
        self._replaced.add(file)
        copy = self.folder / file
        copy.unlink()
        if content is not None:
            copy.write_bytes(content)

    def restore(self) -> None:
        """Undo all replacements."""
        for file in self._replaced:
            copy = self.folder / file
            copy.unlink(missing_ok=True)
            os.link(self.original / file, copy)
        self._replaced.clear()


class TensorFiles:
    """Records that are files: npy of MindSpore, pt of msprobe."""

    def __init__(self, copy: DumpCopy) -> None:
        self._copy = copy

    def read_values(self, record: Record) -> np.ndarray:
        """Return the recorded tensor."""
        content = io.BytesIO(self._copy.read(Path(record.file)))
        if record.file.endswith(".npy"):
            return np.load(content)
        import torch

        return torch.load(content).detach().numpy()

    def write_values(self, record: Record, values: np.ndarray) -> None:
        """Replace the tensor by one of the same dtype and shape.

        Statistics that are recorded elsewhere stay as they are.
        """
        content = io.BytesIO()
        if record.file.endswith(".npy"):
            np.save(content, values)
        else:
            import torch

            torch.save(torch.from_numpy(values), content)
        self._copy.replace(Path(record.file), content.getvalue())

    def truncate(self, record: Record) -> None:
        """Cut off the second half of the file."""
        content = self._copy.read(Path(record.file))
        self._copy.replace(Path(record.file), content[: len(content) // 2])

    def delete(self, record: Record) -> None:
        """Remove the file; what refers to it stays."""
        self._copy.replace(Path(record.file), None)


class StatisticRows:
    """Records that are rows of MindSpore's statistic.csv, found by the names of the npy files."""

    def __init__(self, copy: DumpCopy, recording: Path) -> None:
        self._copy = copy
        self._recording = recording
        self._texts: dict[Path, list[str]] = {}
        self._rows: dict[Path, dict[tuple[str, ...], int]] = {}

    def read_numbers(self, record: Record) -> Statistics:
        """Return the statistics of a row."""
        cells, positions = self._read_row(record)
        numbers = {
            name: float(cells[positions[column]]) if column in positions else None
            for name, column in _CSV_COLUMNS.items()
        }
        return Statistics(**numbers)

    def write_numbers(self, record: Record, numbers: Statistics) -> None:
        """Replace the statistics of a row, as the recorder prints them: 6 significant digits."""
        cells, positions = self._read_row(record)
        for name, column in _CSV_COLUMNS.items():
            if column in positions:
                cells[positions[column]] = f"{getattr(numbers, name):g}"
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self._replace_line(record, line.getvalue())

    def truncate(self, record: Record) -> None:
        """End the file in the middle of the row."""
        file, number = self._find(record)
        lines = self._current_lines(file)
        line = lines[number]
        self._copy.replace(file, "".join([*lines[:number], line[: len(line) // 2]]).encode())

    def delete(self, record: Record) -> None:
        """Remove the row."""
        self._replace_line(record, "")

    def _replace_line(self, record: Record, line: str) -> None:
        file, number = self._find(record)
        lines = self._current_lines(file)
        lines[number] = line
        self._copy.replace(file, "".join(lines).encode())

    def _current_lines(self, file: Path) -> list[str]:
        return (self._copy.folder / file).read_text().splitlines(keepends=True)

    def _read_row(self, record: Record) -> tuple[list[str], dict[str, int]]:
        file, number = self._find(record)
        lines = self._texts[file]
        header, cells = csv.reader([lines[0], lines[number]])
        return cells, {name: position for position, name in enumerate(header)}

    def _find(self, record: Record) -> tuple[Path, int]:
        """Return the csv file, relative to the dump, and the number of the line in it."""
        npy_file = Path(record.file)
        file = npy_file.parent / "statistic.csv"
        if file not in self._texts:
            lines = self._copy.read(file).decode().splitlines(keepends=True)
            rows = list(csv.reader(lines))
            at = [rows[0].index(name) for name in ("Op Name", "Timestamp", "IO", "Slot")]
            self._texts[file] = lines
            self._rows[file] = {
                tuple(row[position] for position in at): number for number, row in enumerate(rows)
            }
        mapping = read_mapping(self._recording / npy_file.parent)
        name = parse_file_name(mapping.get(npy_file.name, npy_file.name))
        assert name is not None, npy_file.name
        return file, self._rows[file][name.name, str(name.time), name.io, str(name.slot)]


class JsonEntries:
    """Records that are tensors of an entry of msprobe's dump.json, found by their file names."""

    def __init__(self, copy: DumpCopy, recording: Path) -> None:
        self._copy = copy
        (dump,) = recording.rglob("dump.json")
        self._file = dump.relative_to(recording)
        self._places: dict[str, tuple[Any, ...]] = {}
        self._index(json.loads(dump.read_text())["data"], ())

    def read_numbers(self, record: Record) -> Statistics:
        """Return the statistics of a tensor."""
        leaf = _follow(self._load(self._copy.original), self._find(record))
        return Statistics(**{name: leaf[key] for name, key in _JSON_KEYS.items()})

    def write_numbers(self, record: Record, numbers: Statistics) -> None:
        """Replace the statistics of a tensor; those of integers stay integers."""

        def write(data: dict[str, Any]) -> None:
            leaf = _follow(data, self._find(record))
            for name, key in _JSON_KEYS.items():
                number = getattr(numbers, name)
                if isinstance(leaf[key], int) and np.isfinite(number):
                    number = round(number)
                leaf[key] = number

        self._change(write)

    def truncate(self, record: Record) -> None:
        """End the file in the middle of the entry."""
        entry = self._find(record)[0]
        content = self._copy.read(self._file)
        begin = content.index(json.dumps(entry).encode() + b":")
        self._copy.replace(self._file, content[: begin + len(entry) + 100])

    def delete(self, record: Record) -> None:
        """Remove the entry of the call."""
        self._change(lambda data: data.pop(self._find(record)[0]))

    def _change(self, change: Callable[[dict[str, Any]], object]) -> None:
        content = json.loads((self._copy.folder / self._file).read_text())
        change(content["data"])
        self._copy.replace(self._file, json.dumps(content).encode())

    def _load(self, folder: Path) -> dict[str, Any]:
        return json.loads((folder / self._file).read_text())["data"]

    def _find(self, record: Record) -> tuple[Any, ...]:
        return self._places[Path(record.file).name]

    def _index(self, node: Any, place: tuple[Any, ...]) -> None:
        children: Any = ()
        if isinstance(node, dict):
            if "data_name" in node:
                self._places[node["data_name"]] = place
            children = node.items()
        elif isinstance(node, list):
            children = enumerate(node)
        for key, child in children:
            self._index(child, (*place, key))


StatisticsEditor = StatisticRows | JsonEntries
Editor = TensorFiles | StatisticsEditor


def _follow(node: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        node = node[key]
    return node
