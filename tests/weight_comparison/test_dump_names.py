"""Unnamed parameters of a dump get names of a checkpoint, if only one name matches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff import Trace, checkpoints
from dumpdiff.rulebook import load_rules
from dumpdiff.weight_comparison.dump_names import add_parameter_names

from .conftest import save_weights


@pytest.fixture(scope="module")
def weights(trace: Callable[[str], Trace]) -> dict[str, np.ndarray]:
    """The first model's weights, as its MindSpore dump names and holds them."""
    dump = trace("ms_graph")
    named = dump.tensors[
        (dump.tensors["parameter"] != "") & (dump.tensors["file"] != "") & dump.tensors["trusted"]
    ]
    return {
        name: np.array(dump.array(row))
        for name, row in zip(named["parameter"], named.index, strict=True)
    }


@pytest.mark.parametrize("name", ["v6.0_api_stack", "v6.0_api_stack_summary"])
def test_unnamed_weights_get_their_names(
    trace: Callable[[str], Trace], weights: dict[str, np.ndarray], tmp_path: Path, name: str
) -> None:
    """With whole tensors and with statistics: every matrix that a linear reads."""
    before = trace(name)
    after = add_parameter_names(
        before, checkpoints.open(save_weights(tmp_path / "w.safetensors", weights))
    )

    linear = after.ops.index[
        after.ops["kind"].str.endswith("linear") & (after.ops["phase"] == "forward")
    ]
    read = after.tensors[after.tensors["op"].isin(linear) & (after.tensors["slot"] == "input.1")]
    assert len(read) == 29  # 4 layers of q, k, v, o, gate, up, down, and the head
    assert (read["parameter"] != "").all()
    assert read["parameter"].nunique() == 29
    assert not (before.tensors["parameter"] != "").any()
    for row, parameter in read["parameter"].items():
        assert read["norm"][row] == pytest.approx(np.linalg.norm(weights[parameter]), rel=1e-5)


def test_one_tensor_under_two_names_gives_no_name(
    trace: Callable[[str], Trace], weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    parameter = next(name for name in weights if name.endswith("wq.weight"))
    file = save_weights(
        tmp_path / "w.safetensors", {**weights, "another.weight": weights[parameter]}
    )
    assigned_names = set(
        add_parameter_names(trace("v6.0_api_stack"), checkpoints.open(file)).tensors["parameter"]
    )
    assert not assigned_names & {parameter, "another.weight"}
    assert parameter.replace("wq", "wk") in assigned_names


def test_rules_match_the_assigned_names(
    trace: Callable[[str], Trace], weights: dict, tmp_path: Path
) -> None:
    after = add_parameter_names(
        trace("v6.0_api_stack"), checkpoints.open(save_weights(tmp_path / "w.safetensors", weights))
    )
    rules = load_rules()
    canonical_names = {rules.resolve_parameter(name) for name in after.tensors["parameter"] if name}
    assert {"layers.3.attention.q.weight", "head.weight"} <= canonical_names
