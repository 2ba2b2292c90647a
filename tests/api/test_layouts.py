"""Runs of other layouts: real recordings of one model on one, two and four ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.model.result import Result

Dumps = Callable[[str], Path]


def align(dump: Dumps, target: str, reference: str) -> Result:
    result = dumpdiff.align(dump(target), dump(reference))
    assert isinstance(result, Result)
    return result


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("parallel_pt_tp2", "parallel_pt_tp1"),
        ("parallel_pt_tp1", "parallel_pt_tp2"),
        ("parallel_pt_tp2_dp2", "parallel_pt_tp1"),
        ("parallel_pt_tp2_dp2", "parallel_pt_tp2"),
        ("parallel_ms_tp2", "parallel_pt_tp1"),
    ],
)
def test_correct_runs_of_other_layouts_are_aligned(
    dump: Dumps, target: str, reference: str
) -> None:
    result = align(dump, target, reference)
    assert result.verdict == "aligned"
    assert result.findings == ()
    for side in ("target", "reference"):
        forward = result.coverage[side]["forward"]
        assert forward["compared"] + forward["reconverged"] >= 0.95 * forward["ops"]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_another_epsilon_on_one_rank(dump: Dumps, is_swapped: bool) -> None:
    pair = ["parallel_pt_tp2_norm_eps", "parallel_pt_tp1"]
    result = align(dump, *(reversed(pair) if is_swapped else pair))
    assert result.verdict == "diverged"
    assert "Tensor.__add__.8.forward" in result.findings[0].title


def test_sums_that_are_missing_are_found(dump: Dumps) -> None:
    result = align(dump, "parallel_pt_tp2_not_reduced", "parallel_pt_tp1")
    assert result.findings[0].scope == "layers.0"
    assert "Functional.linear.3.forward" in result.findings[0].reference_ops


def test_the_layout_is_part_of_the_result(dump: Dumps) -> None:
    result = align(dump, "parallel_pt_tp2", "parallel_pt_tp1")
    layout = {name: relation for name, relation, _ in result.details["layouts"]["target"]}
    assert layout["decoder.layers.#.mlp.linear_fc1.weight"] == "2 shards"
    assert layout["decoder.layers.#.mlp.linear_fc2: Functional.linear output.0"] == "sum of 2 ranks"
    assert "decoder.layers.#.input_layernorm.weight" not in layout
    assert "the 2 ranks of the target were merged to one run" in result.notes
