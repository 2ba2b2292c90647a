"""Logs of PyTorch's DebugMode, recorded by PyTorch itself, see fixtures/README.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError, Trace, readers

LOG = "debug_mode.txt"


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("debug_mode")


def find_op(trace: Trace, kind: str, scope: str) -> int:
    """Return the first op of a kind in a module."""
    ops = trace.ops
    return int(np.flatnonzero((ops["kind"] == kind) & (ops["scope"] == scope))[0])


def test_operators_with_modules_phases_and_dataflow(folder: Path) -> None:
    trace = dumpdiff.read(folder / "clean")
    product = find_op(trace, "Aten.mm", "model.layers.1.self_attn.q_proj")
    rows = trace.tensors[trace.tensors["op"] == product].set_index("slot")
    assert rows.loc["output.0", "shape"] == (32, 32)
    assert rows.loc["output.0", "dtype"] == "float32"
    assert rows.loc["input.1", "parameter"] == "model.layers.1.self_attn.q_proj.given0"
    producer = trace.tensors["op"].iat[int(rows.loc["input.0", "source_tensor"])]
    assert trace.ops["scope"].iat[producer] == "model.layers.1.input_layernorm"
    counts = trace.ops["phase"].value_counts()
    assert (counts["forward"], counts["backward"]) == (160, 249)
    assert counts["optimizer"] == 300


def test_python_functions_and_stacks_change_no_operator(folder: Path) -> None:
    clean, detailed = dumpdiff.read(folder / "clean"), dumpdiff.read(folder / "checksums")
    for column in ("kind", "phase", "scope"):
        assert clean.ops[column].tolist() == detailed.ops[column].tolist(), column
    assert clean.ops["source"].tolist() == [""] * len(clean.ops)
    assert detailed.ops["source"].iat[find_op(detailed, "Aten.mm", "lm_head")] == (
        "pytorch_model.py:228"
    )


def test_scalar_arguments(folder: Path) -> None:
    trace = dumpdiff.read(folder / "fault")
    constants = trace.tensors[trace.tensors["constant"] & (trace.tensors["dtype"] == "float")]
    scale = 0.25 / np.sqrt(8)
    assert np.isclose(constants["norm"], scale).any()


def test_another_form_of_the_log_agrees(folder: Path) -> None:
    for target in ("checksums", "no_ids"):
        result = dumpdiff.align(folder / target, folder / "clean")
        assert result.verdict == "aligned", target
        assert "norms are L1 norms: one of the dumps has no others" in result.notes


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.align(folder / "fault", folder / "clean")
    assert result.verdict == "diverged"
    finding = result.first_divergence
    assert finding is not None
    assert finding.scope == "layers.1.attention"
    assert finding.target_ops == ("Aten.mul.81",)


def test_a_log_without_numbers_compares_nothing(folder: Path) -> None:
    trace = dumpdiff.read(folder / "no_numbers")
    assert trace.tensors["l1"].isna().all()
    (problem,) = trace.problems
    assert "log_tensor_hashes" in problem.message
    result = dumpdiff.align(folder / "no_numbers", folder / "clean")
    assert result.verdict == "inconclusive"


def test_a_log_without_ids_says_so(folder: Path) -> None:
    messages = [problem.message for problem in dumpdiff.read(folder / "no_ids").problems]
    assert any("record_ids=True" in message for message in messages)


def test_numbers_that_are_no_norms_are_not_used(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / LOG
    lines = (folder / "clean" / LOG).read_text().splitlines()
    line = next(line for line in lines if "aten::embedding" in line)
    changed = line.rpartition("'hash': ")[0] + "'hash': (1.0, 2.0, 3.0)}"
    log.write_text("\n".join([*lines[:2], changed]))
    trace = dumpdiff.read(log)
    (problem,) = [problem for problem in trace.problems if problem.weakens]
    assert "expected one L1 norm or checksum for each tensor" in problem.message
    assert problem.line == 3


def test_a_tensor_that_was_written_to_is_another_value(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text(
        "    aten::abs(t$0: f32[4])  ->  t$1: f32[4]  # {'input_hash': ((3.0,), {}), 'hash': 3.0}\n"
        "    aten::neg(t$1: f32[4])  ->  t$2: f32[4]  # {'input_hash': ((3.0,), {}), 'hash': 3.0}\n"
        "    aten::exp(t$1: f32[4])  ->  t$3: f32[4]  # {'input_hash': ((9.0,), {}), 'hash': 8.0}\n"
    )
    inputs = dumpdiff.read(tmp_path).tensors.set_index(["op", "slot"])["source_tensor"]
    assert inputs.loc[1, "input.0"] >= 0
    assert inputs.loc[2, "input.0"] < 0


def test_compiled_kernels_are_reported(folder: Path, tmp_path: Path) -> None:
    text = (folder / "clean" / LOG).read_text()
    (tmp_path / LOG).write_text(text + "\n    [triton] triton_poi_fused_0(in_ptr0=t: f32[4])\n")
    messages = [problem.message for problem in dumpdiff.read(tmp_path).problems]
    assert any("compiled kernel" in message for message in messages)


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / LOG
    text = (folder / "clean" / LOG).read_text()
    line = text.index("aten::add")
    for end in (": f32", ")  ->  t$", "[2, 16, 32]  # {'input"):
        log.write_text(text[: text.index(end, line) + len(end) - 1])
        (problem,) = dumpdiff.read(log).problems
        assert "was the line cut off?" in problem.message, end
    log.write_text("    aten::_local_scalar_dense(t$0: f32[])  ->  1.0")
    with pytest.raises(DumpError, match="holds no operator with a result"):
        dumpdiff.read(log)
    log.write_text("loss = aten::mm(x)")
    with pytest.raises(DumpError, match="not a dump"):
        readers.find_parts(log)
