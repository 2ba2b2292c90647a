"""Dumps of SGLang's dumper, written by its own code, see fixtures/README.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError, readers


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("sglang")


def test_module_calls_have_what_they_were_given_and_returned(folder: Path) -> None:
    trace = dumpdiff.read(folder / "clean")
    ops = trace.ops.reset_index().set_index("name")
    q_proj = ops.loc["model.layers.1.self_attn.q_proj"]
    assert (q_proj["kind"], q_proj["level"]) == ("Module.q_proj", "op")
    assert ops.loc["model.layers.1", "level"] == "module"
    backward = ops.loc["model.layers.1.self_attn.q_proj.backward"]
    assert (backward["phase"], backward["forward"]) == ("backward", q_proj["index"])
    tensors = trace.tensors.reset_index().set_index(["op", "slot"])
    weight = tensors.loc[q_proj["index"], "parameter.weight"]
    assert weight["parameter"] == "model.layers.1.self_attn.q_proj.weight"
    gradient = tensors.loc[backward["index"], "output.weight"]
    assert gradient["gradient_of"] == "model.layers.1.self_attn.q_proj.weight"
    arrays = [
        trace.array(int(tensors.loc[place, "index"]))
        for place in (
            (q_proj["index"], "input.0"),
            (q_proj["index"], "parameter.weight"),
            (q_proj["index"], "output.0"),
        )
    ]
    given, weights, returned = arrays
    np.testing.assert_allclose(given @ weights.T, returned, rtol=1e-5, atol=1e-6)


def test_values_of_a_script_on_two_steps(folder: Path) -> None:
    parts = readers.find_parts(folder / "values")
    assert [(part.step, part.rank) for part in parts] == [(0, 0), (1, 0)]
    trace = readers.read_part(parts[0])
    assert trace.ops["scope"].tolist()[:4] == [
        "layers.0.hidden",
        "layers.1.hidden",
        "parts.sum",
        "parts.mean",
    ]
    assert trace.ops["forward"].tolist()[4:] == [1, 0]
    (problem,) = trace.problems
    assert problem.message == "holds no tensor, but another value; left out"
    total, mean = trace.array(2), trace.array(3)
    assert total / 32 == pytest.approx(float(mean))


def test_files_of_older_versions(folder: Path, tmp_path: Path) -> None:
    """Before 0.5.9 the tags were others; 0.4 wrote no rank."""
    for file in (folder / "values").iterdir():
        if file.name.startswith("step=0"):
            name = file.name.replace("step=0___rank=0", "forward_pass_id=7")
            shutil.copy(file, tmp_path / name)
    (part,) = readers.find_parts(tmp_path)
    assert (part.step, part.rank) == (7, None)
    assert len(readers.read_part(part).ops) == 6


def test_another_form_of_the_model_agrees(folder: Path) -> None:
    assert dumpdiff.align(folder / "rewritten", folder / "clean").verdict == "aligned"


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.align(folder / "fault", folder / "clean")
    assert result.verdict == "diverged"
    finding = result.first_divergence
    assert finding is not None
    assert finding.target_ops == ("model.layers.1.self_attn.o_proj",)
    assert finding.slots == (("input.0", "input.0"),)


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    for file in sorted((folder / "values").iterdir()):
        if file.name.startswith("step=1"):
            shutil.copy(file, tmp_path)
    files = sorted(tmp_path.iterdir())
    files[0].write_bytes(files[0].read_bytes()[:200])
    broken = [problem for problem in dumpdiff.read(tmp_path).problems if problem.weakens]
    assert [problem.file for problem in broken] == [files[0].name]
    assert "damaged torch file" in broken[0].message
    for file in files[1:]:
        file.write_bytes(b"PK\x03\x04")
    with pytest.raises(DumpError, match="holds no tensor that can be read"):
        dumpdiff.read(tmp_path)
