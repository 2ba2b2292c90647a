"""The manifest format: a hand-written one, its schema, and what is done with wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from dumpdiff import DumpError, readers
from dumpdiff.model.trace import Trace

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/manifest.schema.json").read_text())

#: y = x w, as somebody's own script would write it
DOCUMENT: dict[str, Any] = {
    "dumpdiff_manifest": 1,
    "framework": "pytorch",
    "step": 3,
    "rank": 1,
    "stacks": [["model.py:7 forward: return x @ self.w"]],
    "tensors": [
        {"dtype": "torch.float32", "shape": [2, 2], "file": "x.npy"},
        {"dtype": "float32", "shape": [2, 2], "max": 1.0, "min": 0.0, "parameter": "w"},
        {"dtype": "float32", "shape": [2, 2], "file": "y.npz", "key": "y"},
        {"dtype": "float", "shape": [], "value": 0.5},
    ],
    "calls": [
        {"name": "mm", "kind": "Aten.mm", "module": "layer", "parent": 2, "source": "model.py:7",
         "stack": 0, "inputs": [0, 1, None, 3], "outputs": {"result": 2}},
        {"name": "relu", "kind": "Aten.relu", "inputs": [2], "outputs": [0]},
        {"name": "layer", "kind": "Module.Layer", "level": "module", "inputs": [0], "outputs": [2]},
    ],
}  # fmt: skip


def read(folder: Path, document: dict[str, Any] | str) -> Trace:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / "manifest.json").write_text(text)
    np.save(folder / "x.npy", np.eye(2, dtype=np.float32))
    np.savez(folder / "y.npz", y=np.full((2, 2), 2, dtype=np.float32))
    (part,) = readers.find_parts(folder)
    return readers.read_part(part)


def change(**changes: Any) -> dict[str, Any]:
    """Return the document with one more call, or other keys."""
    return {**DOCUMENT, **changes}


def test_the_document_follows_the_published_schema() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(DOCUMENT)


def test_calls_are_ops_and_their_slots_are_tensors(tmp_path: Path) -> None:
    trace = read(tmp_path, DOCUMENT)
    assert (trace.source.format, trace.source.framework) == ("manifest", "pytorch")
    assert (trace.source.step, trace.source.rank) == (3, 1)
    assert trace.ops["name"].tolist() == ["mm", "relu", "layer"]
    assert trace.ops["parent"].tolist() == [2, -1, -1]
    assert trace.ops["stack"].iat[0] == "model.py:7 forward: return x @ self.w"
    slots = ["input.0", "input.1", "input.3", "output.result"]
    assert trace.tensors["slot"].tolist()[:4] == slots
    assert trace.tensors["parameter"].tolist()[:2] == ["", "w"]
    assert trace.tensors["constant"].tolist()[:4] == [False, False, True, False]
    assert not trace.problems


def test_an_input_reads_the_output_that_is_the_same_tensor(tmp_path: Path) -> None:
    trace = read(tmp_path, DOCUMENT)
    assert trace.tensors["source_tensor"].tolist() == [-1, -1, -1, -1, 3, -1, 5, -1]
    assert list(trace.graph.edges) == [(0, 1), (1, 2)]


def test_whole_tensors_are_read_from_files_of_one_and_of_several(tmp_path: Path) -> None:
    trace = read(tmp_path, DOCUMENT)
    assert trace.array(0).tolist() == [[1, 0], [0, 1]]
    assert trace.array(3).tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"inputs": [99]}, "calls[3].inputs is 99, expected the number of one of 4 tensors"),
        ({"phase": "sideways"}, "calls[3].phase is 'sideways', expected one of forward"),
        ({"parent": -4}, "calls[3].parent is -4, expected the number of one of 4 calls"),
    ],
)
def test_a_wrong_value_is_left_out_and_reported(
    tmp_path: Path, call: dict[str, Any], message: str
) -> None:
    trace = read(tmp_path, change(calls=[*DOCUMENT["calls"], {"name": "wrong", **call}]))
    (problem,) = trace.problems
    assert problem.message.startswith(message)
    assert problem.weakens
    assert len(trace.ops) == 4


def test_a_recording_that_was_interrupted_says_so(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, change(complete=False)).problems
    assert problem.weakens
    assert "did not end" in problem.message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (json.dumps(DOCUMENT)[:-20], "broken JSON"),
        (json.dumps(change(dumpdiff_manifest=2)), "has dumpdiff_manifest 2, expected 1"),
        (json.dumps(change(calls=[])), "holds no calls"),
        (json.dumps(change(calls={})), 'expected a list "calls"'),
        ('{"dumpdiff_manifest": 1, "calls": ' + "[" * 100_000, "broken JSON"),
    ],
)
def test_a_document_that_cannot_be_used_is_one_error(
    tmp_path: Path, document: str, message: str
) -> None:
    with pytest.raises(DumpError, match=message):
        read(tmp_path, document)


def test_a_file_outside_the_folder_is_not_opened(tmp_path: Path) -> None:
    tensors = [{"file": "../secret.npy"}, *DOCUMENT["tensors"][1:]]
    np.save(tmp_path / "secret.npy", np.zeros(4))
    folder = tmp_path / "dump"
    folder.mkdir()
    trace = read(folder, change(tensors=tensors))
    with pytest.raises(DumpError, match="outside the dump folder"):
        trace.array(0)


def test_sketches_of_another_version_are_not_used(tmp_path: Path) -> None:
    np.save(tmp_path / "sketches.npy", np.zeros((4, 192), dtype=np.float32))
    document = change(sketches="sketches.npy", sketch={"version": 2})
    (problem,) = read(tmp_path, document).problems
    assert problem.message == "sketches of version 2, expected 1; not used"
