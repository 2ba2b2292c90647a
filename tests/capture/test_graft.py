"""Live isolation: with the value of the reference in place of the first fault, the next shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.capture.graft import load_whole_tensor
from dumpdiff.graph import build_flow
from dumpdiff.model.errors import DumpError
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table

SCRIPTS = Path(__file__).parent / "training"
#: Canonical scope of a block.
BLOCK = re.compile(r"layers[.](\d)")


def record(script: str, folder: Path, faults: Sequence[int], code: str = "") -> Path:
    """The dump of a run with these faults, and with the pasted code."""
    folder.mkdir()
    (folder / "faults.json").write_text(json.dumps(list(faults)))
    if code:
        (folder / "graft_modules.py").write_text(code)
    subprocess.run(
        [sys.executable, SCRIPTS / script, folder], check=True, capture_output=True, timeout=300
    )
    return folder / "dump"


def list_blocks(result: Result) -> list[tuple[int, int]]:
    """(rank, number of the block) of each finding of the forward pass."""
    return [
        (finding.rank, int(match[1]))
        for finding in result.findings
        if finding.phase == "forward" and (match := BLOCK.search(finding.scope))
    ]


def isolate(script: str, faults: Sequence[int], folder: Path) -> tuple[list[int], int]:
    """The blocks that were found, in this order, and the number of dumps of the target."""
    reference = record(script, folder / "reference", [])
    grafts, blocks, code = folder / "graft", [], ""
    for number in range(1, len(faults) + 2):
        target = record(script, folder / f"round{number}", faults, code)
        result = dumpdiff.align(target, reference, output=folder / f"result{number}")
        found = [(rank, block) for rank, block in list_blocks(result) if block not in blocks]
        if not found:
            return blocks, number
        rank, block = found[0]
        blocks.append(block)
        code = dumpdiff.graft(folder / f"result{number}", rank, folder=grafts)
    return blocks, len(faults) + 1


@pytest.mark.record
@pytest.mark.parametrize(
    ("script", "faults"),
    [("run_pytorch_faults.py", [0, 2, 4]), ("run_mindspore_faults.py", [1, 4])],
)
def test_every_fault_is_found_in_as_many_rounds_plus_one(
    script: str, faults: list[int], tmp_path: Path
) -> None:
    blocks, n_rounds = isolate(script, faults, tmp_path)
    assert blocks == faults
    assert n_rounds <= len(faults) + 1


def test_a_value_is_loaded_in_the_order_of_its_axes() -> None:
    """The same numbers are recorded before and after a transposition."""
    before = np.random.default_rng(1).standard_normal((3, 5, 4))
    arrays = [before, before.transpose(0, 2, 1), before.reshape(15, 4)]
    tensors = build_tensor_table(
        {
            "op": [0, 0, 0],
            "slot": ["input.0", "output.0", "output.1"],
            "slot_kind": ["input", "output", "output"],
            "shape": [array.shape for array in arrays],
            "dtype": ["float64"] * 3,
            "size": [before.size] * 3,
            "max": [before.max()] * 3,
            "min": [before.min()] * 3,
            "mean": [before.mean()] * 3,
            "norm": [np.linalg.norm(before)] * 3,
            "file": ["0", "1", "2"],
        }
    )
    ops = build_op_table({"name": ["Tensor.transpose.0.forward"], "kind": ["Tensor.transpose"]})
    source = Source("/d", "msprobe", "", "pytorch")
    flow = build_flow(Trace(source, ops, tensors, load=lambda file: arrays[int(file)]))
    (value,) = set(flow.tensor_class.tolist())
    for shape, expected in (
        ((3, 5, 4), before),
        ((3, 4, 5), arrays[1]),
        ((3, 5, 2, 2), before.reshape(3, 5, 2, 2)),
    ):
        loaded = load_whole_tensor(flow, value, shape)
        assert loaded is not None
        assert np.array_equal(loaded, expected)
    assert load_whole_tensor(flow, value, (4, 5, 3)) is None


@pytest.mark.record
def test_a_finding_inside_a_grafted_module_is_refused(tmp_path: Path) -> None:
    """The module still differs inside: its output is another module's business no longer."""
    reference = record("run_pytorch_faults.py", tmp_path / "reference", [])
    target = record("run_pytorch_faults.py", tmp_path / "target", [2])
    dumpdiff.align(target, reference, output=tmp_path / "result")
    dumpdiff.graft(tmp_path / "result", 1, folder=tmp_path / "graft")
    with pytest.raises(DumpError, match=r"is in blocks\.2, whose output is replaced already"):
        dumpdiff.graft(tmp_path / "result", 1, folder=tmp_path / "graft")
    assert len(list((tmp_path / "graft").iterdir())) == 1


def test_graph_mode_has_no_module_to_graft_into(
    dump: Callable[[str], Path], tmp_path: Path
) -> None:
    dumpdiff.align(dump("demo_mindspore"), dump("demo_pytorch"), output=tmp_path / "result")
    with pytest.raises(DumpError, match="has no module calls; a graft needs a target in PyTorch"):
        dumpdiff.graft(tmp_path / "result", folder=tmp_path / "graft")
    assert not (tmp_path / "graft").exists()
