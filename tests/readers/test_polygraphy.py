"""``RunResults`` of Polygraphy, saved by Polygraphy itself, see fixtures/README.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError, readers

FILE = "outputs.json"


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("polygraphy")


def test_each_iteration_is_a_step(folder: Path) -> None:
    parts = readers.find_parts(folder / "clean")
    assert [(part.step, part.graph) for part in parts] == [(0, None), (1, None)]
    first, second = (readers.read_part(part) for part in parts)
    assert not np.array_equal(first.array(0), second.array(0))


def test_values_have_the_names_of_the_network(folder: Path) -> None:
    (part, _) = readers.find_parts(folder / "clean")
    trace = readers.read_part(part)
    ops = trace.ops.reset_index().set_index("name")
    softmax = ops.loc["/layers.1/attention/Softmax_output_0"]
    assert (softmax["kind"], softmax["scope"]) == ("Softmax", "layers.1.attention")
    probabilities = trace.array(int(softmax["index"]))
    assert probabilities.shape == (8, 8)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


def test_several_runners_are_several_graphs(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "clean" / FILE).read_text())
    document["lst"] += json.loads((folder / "optimized" / FILE).read_text())["lst"]
    (tmp_path / FILE).write_text(json.dumps(document))
    places = [(part.step, part.graph) for part in readers.find_parts(tmp_path)]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_an_optimized_network_agrees(folder: Path) -> None:
    assert dumpdiff.align(folder / "optimized", folder / "clean", step=0).verdict == "aligned"


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.align(folder / "fault", folder / "clean", step=0)
    assert result.verdict == "diverged"
    finding = result.first_divergence
    assert finding is not None
    assert finding.target_ops == ("/layers.1/attention/Mul_output_0",)
    assert finding.causes[0].name == "constant-factor"


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / FILE
    text = (folder / "clean" / FILE).read_text()
    file.write_text(text[: len(text) // 2])
    with pytest.raises(DumpError, match="broken JSON"):
        dumpdiff.read(file)
    document = json.loads(text)
    outputs = document["lst"][0][1][0]["outputs"]
    names = list(outputs)
    outputs[names[0]]["values"]["array"] = "no base64"
    outputs[names[1]]["values"]["polygraphy_class"] = "Tensor"
    outputs[names[2]]["values"]["array"] = outputs[names[2]]["values"]["array"][:400]
    file.write_text(json.dumps(document))
    messages = [problem.message for problem in dumpdiff.read(file).problems]
    assert messages[0] == f"{names[0]}: broken base64; left out"
    assert "expected an array of NumPy, found 'Tensor'" in messages[1]
    assert "cut short" in messages[2]
    file.write_text('{"lst": [["runner", []]]}')
    with pytest.raises(DumpError, match="found none"):
        dumpdiff.read(file)
