"""Activation logs of torchtitan's tracer, written by the tracer itself, see fixtures/README.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import DumpError, readers

LOG = "rank_0_activations.log"


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("torchtitan")


def test_operators_with_statistics_places_and_producers(folder: Path) -> None:
    (part,) = readers.find_parts(folder / "clean")
    assert (part.format, part.rank, part.has_whole_tensors) == ("torchtitan", 0, False)
    trace = readers.read_part(part)
    op = trace.ops["name"].tolist().index("model.layers.0.input_layernorm/op_2_mul")
    assert trace.ops["kind"].iat[op] == "Aten.mul"
    assert trace.ops["source"].iat[op] == "pytorch_model.py:73"
    rows = trace.tensors[trace.tensors["op"] == op].set_index("slot")
    result = rows.loc["output.0"]
    assert (result["shape"], result["dtype"]) == ((2, 16, 32), "float32")
    assert (result["max"], result["norm"], result["l1"]) == (2.784745, 32.7497, 839.8766)
    producer = trace.tensors["op"].iat[int(rows.loc["input.0", "source_tensor"])]
    assert trace.ops["name"].iat[producer] == "model.layers.0.input_layernorm/op_1_mul"


def test_phases(folder: Path) -> None:
    counts = dumpdiff.read(folder / "clean").ops["phase"].value_counts()
    assert (counts["forward"], counts["backward"], counts["optimizer"]) == (90, 188, 226)


def test_another_form_of_the_model_agrees(folder: Path) -> None:
    assert dumpdiff.align(folder / "rewritten", folder / "clean").verdict == "aligned"


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.align(folder / "fault", folder / "clean")
    assert result.verdict == "diverged"
    assert result.first_divergence is not None
    assert result.first_divergence.target_ops == ("model.layers.1.self_attn/op_7_mul",)


def test_the_log_of_debug_mode_agrees_with_it(folder: Path, dump: Callable[[str], Path]) -> None:
    result = dumpdiff.align(folder / "fault", dump("debug_mode") / "clean")
    assert result.first_divergence is not None
    assert result.first_divergence.target_ops == ("model.layers.1.self_attn/op_7_mul",)
    assert "norms are L1 norms: one of the dumps has no others" in result.notes


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / LOG
    shutil.copy(folder / "clean" / LOG, log)
    text = log.read_text()
    log.write_text(text[: len(text) // 2])
    messages = [problem.message for problem in dumpdiff.read(log).problems]
    assert any("states 504 operators and holds" in message for message in messages)
    log.write_text(text.replace("  Shape: torch.Size([2, 16, 32])", "  Shape: two", 1))
    (problem,) = dumpdiff.read(log).problems
    assert problem.message.startswith("Shape is 'two, Dtype: torch.float32', expected torch.Size")
    assert (problem.line, problem.op) == (5, "model.embed_tokens/op_0_embedding")
    log.write_text("Total captured activations: 0\n")
    with pytest.raises(DumpError, match="holds no operator"):
        dumpdiff.read(log)
