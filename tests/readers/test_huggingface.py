"""Debug trees of Hugging Face, recorded by the tool itself, see fixtures/README.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError, readers

TREE = "LlamaForCausalLM_debug_tree_FULL_TENSORS.json"


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("huggingface")


def test_a_tree_is_one_part_although_it_has_two_files(folder: Path) -> None:
    (part,) = readers.find_parts(folder / "files")
    assert (part.format, part.path.name, part.has_whole_tensors) == ("huggingface", TREE, True)
    (part,) = readers.find_parts(folder / "printed")
    assert not part.has_whole_tensors
    (part,) = readers.find_parts(folder / "printed" / TREE.replace("FULL_TENSORS", "SUMMARY"))
    assert len(dumpdiff.read(part.path).ops) == 84


def test_calls_tensors_and_modules(folder: Path) -> None:
    trace = dumpdiff.read(folder / "files")
    ops = trace.ops.set_index("name")
    q_proj = ops.loc["LlamaForCausalLM.model.layers.3.self_attn.q_proj"]
    assert (q_proj["scope"], q_proj["level"]) == ("model.layers.3.self_attn.q_proj", "op")
    assert ops.loc["LlamaForCausalLM.model.layers.3", "level"] == "module"
    row = int(np.flatnonzero(trace.tensors["op"] == ops.index.get_loc(q_proj.name))[0])
    tensor = trace.tensors.loc[row]
    assert (tensor["slot"], tensor["dtype"], tensor["shape"]) == ("input.0", "float32", (1, 12, 16))
    assert trace.array(row).shape == (1, 12, 16)


def test_printed_statistics_are_those_of_the_files(folder: Path) -> None:
    whole, printed = dumpdiff.read(folder / "files"), dumpdiff.read(folder / "printed")
    rows = np.flatnonzero(printed.tensors["norm"].notna())
    assert len(rows) > 100
    for row in rows.tolist():
        array = whole.array(row).astype(float)
        assert printed.tensors["max"].iat[row] == pytest.approx(array.max(), rel=1e-4)
        assert printed.tensors["norm"].iat[row] == pytest.approx(np.linalg.norm(array), rel=2e-4)


def test_a_clean_twin_agrees_and_printed_values_agree_with_files(folder: Path) -> None:
    for target in ("files", "printed"):
        result = dumpdiff.align(folder / target, folder / "files")
        assert result.verdict == "aligned", target


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.align(folder / "fault", folder / "files")
    assert result.verdict == "diverged"
    assert result.first_divergence is not None
    name = "LlamaForCausalLM.model.layers.1.input_layernorm"
    assert result.first_divergence.target_ops == (name,)
    assert result.first_divergence.causes[0].name == "epsilon"


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "files", copy)
    tree = copy / TREE
    text = tree.read_text()
    (copy / "LlamaForCausalLM.lm_head_outputs.safetensors").unlink()
    (problem,) = dumpdiff.read(copy).problems
    assert "'LlamaForCausalLM.lm_head_outputs.safetensors' is missing" in problem.message
    tree.write_text(text.replace("./LlamaForCausalLM.lm_head_inputs", "./../secret"))
    assert any("secret" in problem.message for problem in dumpdiff.read(copy).problems)
    tree.write_text(text[: len(text) // 2])
    with pytest.raises(DumpError, match="broken JSON"):
        dumpdiff.read(copy)
    tree.write_text(json.dumps({"module_path": "Net", "inputs": None, "children": []}))
    with pytest.raises(DumpError, match="holds no call with tensors"):
        dumpdiff.read(copy)
