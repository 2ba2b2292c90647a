"""Gradient norms of real trainings with one fault each: every form shows where the fault is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.gradient_norms import NormComparison, compare, read_norms

from . import triage_cases

pytestmark = pytest.mark.record

PAGE = Path(__file__).parents[2] / "docs" / "norms.md"

#: Squares without names in the order of each framework; whole gradients; a dump of step 1.
FORMS = ("local_norms.log", "steps", "dump")
NAMED = FORMS[1:]


@pytest.fixture
def compared(triage_run: Callable[..., Path]) -> Callable[[str, str, str], NormComparison]:
    """``compared("backward", "dump", "steps")``: MindSpore's dump against PyTorch's gradients."""

    def compare_case(case: str, target: str, reference: str) -> NormComparison:
        ms, pt = triage_cases.train_pair(triage_run, case)
        return compare(read_norms(ms / target), read_norms(pt / reference))

    return compare_case


Compared = Callable[[str, str, str], NormComparison]


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("reference", FORMS)
def test_equal_trainings_agree_in_all_forms(
    compared: Compared, target: str, reference: str
) -> None:
    comparison = compared("none", target, reference)
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == (
        "agree",
        21,
        (1.0, 1.0),
    )


@pytest.mark.parametrize("case", ["optimizer", "schedule"])
def test_what_comes_after_the_gradients_does_not_show(compared: Compared, case: str) -> None:
    assert compared(case, "local_norms.log", "local_norms.log").verdict == "agree"


@pytest.mark.parametrize("form", FORMS)
def test_an_embedding_of_another_precision_shows_in_its_norm_alone(
    compared: Compared, form: str
) -> None:
    comparison = compared("precision", form, form)
    assert (comparison.verdict, comparison.pattern_kind, len(comparison.select_rows("differ"))) == (
        "differ",
        "precision",
        1,
    )


@pytest.mark.parametrize("form", NAMED)
def test_the_layer_where_the_backward_pass_diverges_is_named(compared: Compared, form: str) -> None:
    comparison = compared("backward", form, form)
    (layer,) = (pattern for pattern in comparison.patterns if pattern.kind == "layer")
    assert (comparison.verdict, layer.layer) == ("differ", 1)


def test_a_cut_backward_pass_leaves_a_weight_without_a_gradient(compared: Compared) -> None:
    comparison = compared("backward", "steps", "steps")
    assert (
        comparison.patterns[0].summary
        == "no gradient on the target for layers.1.mlp.gate_proj.weight"
    )


@pytest.mark.parametrize("case", ["setting", "weights", "batch", "label-shift", "forward"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_wrong_before_the_backward_pass_makes_all_norms_differ(
    compared: Compared, case: str, form: str
) -> None:
    comparison = compared(case, form, form)
    assert comparison.verdict == "differ"
    assert len(comparison.select_rows("agree")) < 0.2 * len(comparison.rows)
    assert "layer" not in {pattern.kind for pattern in comparison.patterns}
    if form == "dump":  # which says that all of it is float32
        assert comparison.pattern_kind == "everything"


def test_the_example_of_the_page_is_what_the_command_prints(compared: Compared) -> None:
    comparison = compared("backward", "steps", "local_norms.log")
    page = PAGE.read_text(encoding="utf-8")
    assert f"norms differ: {comparison.to_stage().headline}\n" in page
    assert len(comparison.patterns) == 2
    for pattern in comparison.patterns:
        assert f"\n  {pattern.summary}. Likely: {pattern.cause}\n" in page
