"""A tensor whose size is unknown, or that has no elements, is not compared by its size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dumpdiff
from dumpdiff import readers
from dumpdiff.model.trace import Trace

Dump = Callable[[str], Path]
MISSING = object()


def iterate_tensors(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of tensors in an entry of a dump.json."""
    if isinstance(value, dict) and "shape" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from iterate_tensors(item)


@pytest.fixture
def changed_dump(dump: Dump, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """``changed_dump(change)``: a copy of pt_gpt2 whose entries were changed."""

    def copy_and_change(change: Callable[[dict[str, Any]], None]) -> Path:
        folder = shutil.copytree(dump("pt_gpt2"), tmp_path / "dump")
        (file,) = folder.rglob("dump.json")
        document = json.loads(file.read_text())
        change(document["data"])
        file.write_text(json.dumps(document))
        return folder

    return copy_and_change


@pytest.mark.parametrize(
    "shape",
    [[-1, 16], [None, 16], None, "?", 5, [2.0, 16], [2**40, 2**40], [1] * 40, [[2]], MISSING],
    ids=str,
)
def test_the_shape_of_one_tensor_is_unknown(
    dump: Dump, changed_dump: Callable[..., Path], shape: object
) -> None:
    def change(entries: dict[str, Any]) -> None:
        name = next(name for name in entries if name.startswith("Functional.linear"))
        tensor = next(iterate_tensors(entries[name]))
        tensor["shape"] = shape
        if shape is MISSING:
            del tensor["shape"]

    folder = changed_dump(change)
    sizes = dumpdiff.read(folder).tensors["size"]
    assert (sizes == -1).sum() == 1
    for sides in ((folder, dump("pt_gpt2")), (dump("pt_gpt2"), folder)):
        assert dumpdiff.align(*sides).verdict == "aligned"


def test_records_without_tensors(dump: Dump, changed_dump: Callable[..., Path]) -> None:
    def change(entries: dict[str, Any]) -> None:
        for name in list(entries)[::7]:
            entries[name] = {}

    assert dumpdiff.align(changed_dump(change), dump("pt_gpt2")).verdict in (
        "aligned",
        "inconclusive",
    )


@pytest.mark.parametrize("shape", [None, (0,), ()], ids=str)
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_many_tensors_of_unknown_or_no_size(
    dump: Dump, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...] | None, share: float
) -> None:
    """Every consumer of sizes: tolerances, joins, causes, drawings."""
    read_part = readers.read_part
    random = np.random.default_rng(0)

    def read_and_forget(part: readers.Part) -> Trace:
        trace = read_part(part)
        tensors = trace.tensors
        shapes = tensors["shape"].tolist()
        for row in np.flatnonzero(random.random(len(tensors)) < share).tolist():
            shapes[row] = shape
        column = np.fromiter(shapes, dtype=object, count=len(shapes))
        tensors["shape"] = pd.Series(column, dtype=object)
        tensors["size"] = [-1 if item is None else int(np.prod(item)) for item in shapes]
        return trace

    monkeypatch.setattr(readers, "read_part", read_and_forget)
    result = dumpdiff.align(dump("pt_gpt2"), dump("pt_gpt2_no_bias"))
    assert result.verdict in ("diverged", "inconclusive", "aligned")
    assert "<html" in result.to_html()
