"""Lost records of a real dump that nothing but the graph and the rest of the dump tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.rulebook import load_rules
from dumpdiff.verification import verify_trace

from .damage import find_file, link_dump

Dump = Callable[[str], Path]


@pytest.fixture
def damaged(dump: Dump, tmp_path: Path) -> Path:
    return link_dump(dump("ms_graph"), tmp_path)


def test_the_output_of_the_only_op_of_its_kind(damaged: Path) -> None:
    find_file(damaged, "WithLoss/Exp-op0", "output.0").unlink()
    (item,) = dumpdiff.verify(damaged).contradictions
    assert (item.kind, item.slot) == ("missing", "output.0")
    assert item.op.endswith("WithLoss/Exp-op0")
    assert item.computed == "the value was recorded where another op reads or writes it"


def test_the_input_of_the_only_op_of_its_kind(damaged: Path) -> None:
    find_file(damaged, "WithLoss/Exp-op0", "input.0").unlink()
    (item,) = dumpdiff.verify(damaged).contradictions
    assert (item.kind, item.slot) == ("missing", "input.0")


def test_a_parameter_that_others_of_its_like_have(damaged: Path) -> None:
    find_file(damaged, "n.n.layers.3.mlp.w3.weight", "output.0").unlink()
    (item,) = dumpdiff.verify(damaged).contradictions
    assert item.kind == "missing"
    assert item.op.endswith("MatMul-op0")
    assert item.recorded == "reads n.n.layers.3.mlp.w3.weight, which has no record of its own"
    assert "other parameters and inputs of the graph have one" in item.computed


def test_a_dump_without_parameters_has_lost_none(damaged: Path) -> None:
    trace = dumpdiff.read(damaged)
    kinds = trace.ops["kind"].to_numpy()[trace.tensors["op"].to_numpy()]
    for row in np.flatnonzero(kinds == "Parameter").tolist():
        (Path(trace.source.path) / trace.tensors["file"].iat[row]).unlink()
    assert dumpdiff.verify(damaged).contradictions == ()


@pytest.mark.parametrize(("factor", "n_contradictions"), [(1.0, 0), (1.3, 1)])
def test_a_new_weight_is_what_the_end_of_the_step_has_of_it(
    factor: float, n_contradictions: int
) -> None:
    """Adam's input 0 is dumped after the update; the parameter is, when the step ends."""
    weight = np.arange(6, dtype=np.float32)
    arrays = {"end.npy": weight, "after.npy": np.float32(factor) * weight}
    tensors = build_tensor_table(
        {
            "op": [0, 1],
            "slot": ["output.0", "output.0"],
            "slot_kind": ["output", "output"],
            "dtype": ["float32"] * 2,
            "size": [6, 6],
            "update_of": ["", "w"],
            "trusted": [False, True],
            "file": list(arrays),
            "content": [7, 7 if factor == 1.0 else 8],
        }
    )
    ops = build_op_table({"name": ["w", "Adam-op0"], "kind": ["Parameter", "Adam"]})
    source = Source("/dump", "mindspore", "", "mindspore")
    trace = Trace(source, ops, tensors, (), arrays.__getitem__)
    items = verify_trace(trace, load_rules()).contradictions
    assert [item.op for item in items] == ["Adam-op0"] * n_contradictions
    for item in items:
        assert item.message == (
            "Adam-op0 output.0: the file of the new value of w, but it differs from the file that "
            "holds it at the end of the step"
        )
