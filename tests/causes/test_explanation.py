"""Explanations that are no hypothesis: what is said of a record that contradicts all others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff import Result, align

SOFTMAX = "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def damaged_result(dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A dump with one output 1.3 times as large against itself."""
    torch = pytest.importorskip("torch")
    clean = dump("demo_pytorch")
    damaged = tmp_path_factory.mktemp("damaged") / "dump"
    shutil.copytree(clean, damaged)
    (file,) = damaged.rglob(f"{SOFTMAX}.output.0.pt")
    torch.save(torch.load(file) * 1.3, file)
    return align(damaged, clean)


def test_an_isolated_difference_blames_no_operator(damaged_result: Result) -> None:
    assert damaged_result.verdict == "inconclusive"
    (finding,) = damaged_result.findings
    assert (finding.kind, finding.target_ops) == ("isolated", (SOFTMAX,))
    assert finding.metrics["error"] == pytest.approx(0.3, rel=1e-3)
    assert finding.causes == ()
    assert finding.unexplained.endswith(
        "; what was computed from this value agrees, so no operator of the model is at fault"
    )


def test_the_side_whose_record_does_not_follow_from_its_inputs_is_named(
    damaged_result: Result,
) -> None:
    (finding,) = damaged_result.findings
    assert finding.side == "target"
    assert finding.unexplained.startswith("the target's record does not follow from its inputs; ")
    assert finding.evidence[-1] == (
        "last op recomputed in float64 from its own inputs: the reference differs by 4.4e-8, "
        "the target differs by 2.3e-1"
    )


def test_a_weight_in_the_place_of_another_has_its_own_name(dump: Callable[[str], Path]) -> None:
    """The target has its numbers under two names."""
    folder = dump("pt_variants")
    result = align(folder / "attention_stale", folder / "attention_written")
    cause = result.findings[0].causes[0]
    assert cause.name == "weight-swapped"
    assert "module.query in its place; the reference has module.key" in cause.text
