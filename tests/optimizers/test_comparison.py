"""Comparison of two recorded runs: the same rule or not, and the differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dumpdiff.optimizers.comparison import UpdateComparison, compare_updates
from dumpdiff.optimizers.update_analysis import UpdateAnalysis

pytestmark = pytest.mark.record

Analyze = Callable[..., UpdateAnalysis]


def compare_runs(analyze: Analyze, target: str, reference: str) -> UpdateComparison:
    """Compare two runs, given as framework/name."""
    return compare_updates(analyze(*target.split("/")), analyze(*reference.split("/")))


def test_adam_weight_decay_against_adamw_is_a_missing_bias_correction(analyze: Analyze) -> None:
    comparison = compare_runs(analyze, "mindspore/adam_weight_decay", "torch/adamw")
    assert (comparison.verdict, comparison.n_paired) == ("differ", 6)
    first, second = comparison.differences
    assert first.name == "bias-correction"
    assert first.summary == (
        "no bias correction (as MindSpore AdamWeightDecay) against bias correction (as AdamW): "
        "without it the steps are 3.16, 4.25, 4.95 times as long; losses agree at step 1, before "
        "any update, and diverge from step 2 on"
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
def test_the_same_rule_in_both_frameworks(analyze: Analyze, target: str, reference: str) -> None:
    comparison = compare_runs(analyze, target, reference)
    assert (comparison.verdict, comparison.differences) == ("agree", ())


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
        ("torch/adamw_master_decay", "torch/adamw_master_undecayed", ["weight-decay"]),
    ],
)
def test_differences_are_named(
    analyze: Analyze, target: str, reference: str, names: list[str]
) -> None:
    comparison = compare_runs(analyze, target, reference)
    assert (comparison.verdict, [difference.name for difference in comparison.differences]) == (
        "differ",
        names,
    )


def test_the_same_single_step_is_inconclusive(analyze: Analyze) -> None:
    assert (
        compare_runs(analyze, "torch/adamw_one_step", "torch/adamw_one_step").verdict
        == "inconclusive"
    )


def test_a_run_that_no_rule_explains_is_inconclusive(analyze: Analyze) -> None:
    assert compare_runs(analyze, "torch/rprop", "torch/sgd").verdict == "inconclusive"


def test_parameters_with_other_names_are_paired_by_their_initial_weights(analyze: Analyze) -> None:
    comparison = compare_runs(analyze, "mindspore/sgd", "torch/sgd")  # norm.gamma and norm.weight
    assert comparison.n_paired == 6
