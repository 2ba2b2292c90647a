"""One step of another update rule, or with another clipping, is named; on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.model.result import Result

Align = Callable[[str], Result]


@pytest.fixture(params=[False, True], ids=["target", "reference"])
def align(dump: Callable[[str], Path], request: pytest.FixtureRequest) -> Align:
    """``align("sgd")``: that run against AdamW with clipped norms, in both directions."""

    def align_run(name: str) -> Result:
        folders = [dump("pt_rules") / name, dump("pt_rules") / "adamw"]
        return dumpdiff.align(*(folders[::-1] if request.param else folders))

    return align_run


@pytest.mark.parametrize(
    ("run", "cause", "sentence"),
    [
        ("adam_l2", "update-rule", "Adam with L2 decay"),
        ("sgd", "update-rule", "SGD with L2 decay"),
        ("adagrad", "update-rule", "a sum of squared gradients"),
        ("beta1", "beta", "beta1 = 0.8"),
        ("elements", "clip", "every element clipped to 0.02"),
        ("largest", "norm-order", "the largest magnitude (order infinity)"),
        ("lost", "gradient-norm", "Module.norm.LayerNorm.parameters_grad.0"),
        ("skipped", "update-missing", "first.bias"),
    ],
)
def test_the_difference_is_named(align: Align, run: str, cause: str, sentence: str) -> None:
    result = align(run)
    assert result.verdict == "diverged"
    finding = result.findings[0]
    assert finding.phase == "optimizer"
    assert finding.causes[0].name == cause
    assert sentence in finding.causes[0].text


def test_a_rule_is_named_for_both_sides(align: Align) -> None:
    """Which of two sound rules was meant is unknown, so no side is called wrong."""
    finding = align("sgd").findings[0]
    assert "that of AdamW" in finding.causes[0].text
    assert finding.side == "unknown"


def test_a_moment_outlives_the_step(align: Align) -> None:
    """The first step is the same with any beta1, so everything computed from the moments agrees."""
    findings = align("beta1").findings
    assert [finding.kind for finding in findings] == ["introduced"]
    assert "lerp" in findings[0].title


def test_a_parameter_that_one_optimizer_leaves_out_is_a_finding(align: Align) -> None:
    """Nothing of its update can be paired, which is no agreement."""
    (finding,) = align("skipped").findings
    assert finding.kind == "missing"
    assert "does not update 1 of 6 parameters: first.bias" in finding.title
    assert len(finding.target_ops) * len(finding.reference_ops) > 0
