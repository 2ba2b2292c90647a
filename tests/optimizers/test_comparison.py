"""Two recorded runs: the same rule or not, and what is different."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dumpdiff.optimizers.comparison import UpdateComparison, compare_updates
from dumpdiff.optimizers.update_analysis import UpdateAnalysis

pytestmark = pytest.mark.record

Ran = Callable[..., UpdateAnalysis]


def both(moved: Ran, target: str, reference: str) -> UpdateComparison:
    """Two runs by framework/name."""
    return compare_updates(moved(*target.split("/")), moved(*reference.split("/")))


def test_adam_weight_decay_against_adamw_is_a_missing_bias_correction(moved: Ran) -> None:
    found = both(moved, "mindspore/adam_weight_decay", "torch/adamw")
    assert (found.verdict, found.n_paired) == ("differ", 6)
    first, second = found.differences
    assert first.name == "bias-correction"
    assert first.text == (
        "no bias correction (as MindSpore AdamWeightDecay) against bias correction (as AdamW): without it the steps "
        "are 3.16, 4.25, 4.95 times as long; losses agree at step 1, before any update, and part from step 2 on"
    )
    assert len(first.parameters) == 6
    assert (second.name, second.target, second.reference) == (
        "weight-decay",
        "no weight decay",
        "weight decay 0.01",
    )
    assert set(second.parameters) == {"first.bias", "second.bias", "norm.gamma", "norm.beta"}


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("mindspore/sgd", "torch/sgd"),
        ("mindspore/momentum", "torch/sgd_momentum"),
        ("torch/adamw", "torch/adamw"),
    ],
)
def test_the_same_rule_in_both_frameworks(moved: Ran, target: str, reference: str) -> None:
    found = both(moved, target, reference)
    assert (found.verdict, found.differences) == ("agree", ())


@pytest.mark.parametrize(
    ("target", "reference", "names"),
    [
        ("mindspore/sgd", "torch/adam", ["rule"]),
        ("mindspore/experimental_adamw", "torch/adamw", ["weight-decay"]),
        ("mindspore/adam", "torch/adam", ["epsilon-place"]),
        ("mindspore/sgd_nesterov", "torch/sgd_momentum", ["momentum-kind"]),
        ("torch/sgd_clipped", "torch/sgd_momentum", ["learning-rate", "gradient-scaling"]),
        ("torch/adamw_groups", "torch/adamw", ["learning-rate", "weight-decay", "weight-decay"]),
        ("torch/adamw_fused", "torch/adamw", ["weight-decay", "beta2"]),
        ("torch/adamw_master", "torch/adamw_bfloat16", ["master-weights"]),
    ],
)
def test_what_is_different(moved: Ran, target: str, reference: str, names: list[str]) -> None:
    found = both(moved, target, reference)
    assert (found.verdict, [difference.name for difference in found.differences]) == (
        "differ",
        names,
    )


def test_the_same_single_step_is_not_the_same_rule_for_sure(moved: Ran) -> None:
    assert both(moved, "torch/adamw_one_step", "torch/adamw_one_step").verdict == "inconclusive"


def test_a_run_that_no_rule_explains_is_not_compared(moved: Ran) -> None:
    assert both(moved, "torch/rprop", "torch/sgd").verdict == "inconclusive"


def test_parameters_of_other_names_are_paired_by_what_they_held(moved: Ran) -> None:
    found = both(moved, "mindspore/sgd", "torch/sgd")  # norm.gamma and norm.weight
    assert found.n_paired == 6
