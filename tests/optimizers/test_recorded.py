"""PyTorch and MindSpore train three steps; rule and hyperparameters are found from the arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.optimizers.groups import AMBIGUOUS, EXPLAINED, UNEXPLAINED, ParameterGroup
from dumpdiff.optimizers.inputs import read_run
from dumpdiff.optimizers.summary import format_fit
from dumpdiff.optimizers.update_analysis import UpdateAnalysis

pytestmark = pytest.mark.record

Analyze = Callable[..., UpdateAnalysis]
ALL = ("first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "second.bias")
MATRICES = ("first.weight", "second.weight")
OTHERS = tuple(name for name in ALL if name not in MATRICES)
MUON_ODD = "Muon, no Nesterov momentum, decoupled decay"
UNSCALED_ADAFACTOR = "Adafactor, not scaled by the weights, first moment, decoupled decay"
NORM, DENSE = (
    ("norm.weight", "norm.bias"),
    tuple(name for name in ALL if not name.startswith("norm")),
)


def rename_for_mindspore(names: tuple[str, ...]) -> set[str]:
    """Return the names in MindSpore."""
    return {
        name.replace("norm.weight", "norm.gamma").replace("norm.bias", "norm.beta")
        for name in names
    }


def find_group(run: UpdateAnalysis, names: tuple[str, ...]) -> ParameterGroup:
    """Return the group with exactly these parameters."""
    expected = (set(names), rename_for_mindspore(names))
    (matching_group,) = [group for group in run.groups if set(group.parameters) in expected]
    return matching_group


@pytest.mark.parametrize(
    ("framework", "name", "names", "rule", "rate", "values"),
    [
        ("torch", "sgd", ALL, "SGD", 0.1, {}),
        ("torch", "sgd_momentum", ALL, "SGD with momentum", 0.1, {"momentum": 0.9}),
        (
            "torch",
            "sgd_dampened",
            ALL,
            "SGD with dampened momentum",
            0.1,
            {"momentum": 0.9, "dampening": 0.3},
        ),
        (
            "torch",
            "sgd_nesterov",
            ALL,
            "SGD with Nesterov momentum and L2 decay",
            0.1,
            {"momentum": 0.8, "decay": 0.01},
        ),
        ("torch", "adam", ALL, "Adam", 1e-3, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
        ("torch", "adam_l2", ALL, "Adam with L2 decay", 1e-3, {"decay": 0.02}),
        (
            "torch",
            "adamw",
            ALL,
            "AdamW",
            1e-3,
            {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01},
        ),
        ("torch", "adamw_fused", ALL, "AdamW", 1e-3, {"beta2": 0.95, "decay": 0.1}),
        (
            "torch",
            "adamw_odd",
            ALL,
            "AdamW",
            1e-3,
            {"beta1": 0.87, "beta2": 0.97, "epsilon": 3e-4, "decay": 0.1},
        ),
        ("torch", "adamw_groups", MATRICES, "AdamW", 3e-4, {"decay": 0.1}),
        ("torch", "adamw_groups", OTHERS, "Adam", 3e-4, {"decay": 0.0}),
        (
            "torch",
            "muon",
            MATRICES,
            "Muon, decoupled decay",
            0.02,
            {"momentum": 0.95, "decay": 0.1},
        ),
        ("torch", "muon", OTHERS, "AdamW", 1e-3, {"decay": 0.01}),
        ("torch", "amsgrad", ALL, "AMSGrad (Adam)", 1e-3, {"beta2": 0.999}),
        ("torch", "amsgrad_decay", ALL, "AMSGrad (AdamW)", 1e-3, {"beta2": 0.95, "decay": 0.1}),
        ("torch", "muon_odd", MATRICES, MUON_ODD, 5e-3, {"momentum": 0.9, "decay": 0.1}),
        ("torch", "muon_odd", OTHERS, "AdamW", 1e-3, {"decay": 0.01}),
        ("torch", "adafactor", ALL, "Adafactor", 1e-2, {"moment_exponent": 0.8}),
        (
            "torch",
            "adafactor_odd",
            ALL,
            "Adafactor, decoupled decay",
            5e-3,
            {"moment_exponent": 0.6, "decay": 0.1},
        ),
        ("torch", "adafactor_transformers", ALL, "Adafactor", 1e-2, {"step_limit": 1.0}),
        (
            "torch",
            "adafactor_transformers_odd",
            ALL,
            UNSCALED_ADAFACTOR,
            1e-3,
            {"moment_exponent": 0.8, "beta1": 0.9, "decay": 0.1},
        ),
        ("zero", "zero", ALL, "AdamW", 1e-3, {"beta1": 0.9, "beta2": 0.999, "decay": 0.01}),
        ("zero", "zero_odd", ALL, "AdamW", 3e-4, {"beta1": 0.8, "beta2": 0.95, "decay": 0.1}),
        ("mindspore", "adafactor", ALL, "Adafactor, first moment", 1e-2, {"beta1": 0.9}),
        (
            "mindspore",
            "adafactor_odd",
            ALL,
            UNSCALED_ADAFACTOR,
            1e-3,
            {"moment_exponent": 0.6, "beta1": 0.9, "decay": 0.05},
        ),
        ("torch", "nadam", ALL, "NAdam", 2e-3, {"beta1": 0.9, "momentum_decay": 0.004}),
        ("torch", "nadam_odd", ALL, "NAdam", 2e-3, {"beta1": 0.5, "beta2": 0.95}),
        ("torch", "radam", ALL, "RAdam", 1e-3, {"beta1": 0.9, "beta2": 0.999}),
        ("torch", "radam_odd", ALL, "RAdam", 1e-3, {"beta1": 0.8, "beta2": 0.99}),
        ("torch", "adamax", ALL, "Adamax", 2e-3, {"beta1": 0.9, "beta2": 0.999}),
        ("torch", "adamax_odd", ALL, "Adamax", 2e-3, {"beta1": 0.8, "beta2": 0.9}),
        ("torch", "rmsprop", ALL, "RMSprop", 1e-3, {"alpha": 0.99, "epsilon": 1e-8}),
        ("torch", "rmsprop_odd", ALL, "RMSprop", 1e-3, {"alpha": 0.9, "epsilon": 1e-6}),
        ("torch", "adagrad", ALL, "AdaGrad", 1e-2, {"accumulator": 0.0}),
        ("torch", "adagrad_odd", ALL, "AdaGrad", 1e-2, {"accumulator": 0.1}),
        ("torch", "lion", ALL, "Lion", 1e-4, {"beta1": 0.9, "lion_beta2": 0.99}),
        ("torch", "lion_decay", ALL, "Lion with decoupled decay", 1e-4, {"decay": 0.1}),
        ("mindspore", "sgd", ALL, "SGD", 0.1, {}),
        ("mindspore", "sgd_nesterov", ALL, "SGD with Nesterov momentum", 0.1, {"momentum": 0.9}),
        ("mindspore", "momentum", ALL, "SGD with momentum", 0.1, {"momentum": 0.9}),
        ("mindspore", "adam", ALL, "MindSpore nn.Adam", 1e-3, {"beta2": 0.999, "epsilon": 1e-8}),
        ("mindspore", "adam_epsilon", ALL, "MindSpore nn.Adam", 1e-3, {"epsilon": 1e-5}),
        (
            "mindspore",
            "adam_l2",
            MATRICES,
            "MindSpore nn.Adam with L2 decay",
            1e-3,
            {"decay": 0.02},
        ),
        ("mindspore", "adam_l2", OTHERS, "MindSpore nn.Adam", 1e-3, {}),
        (
            "mindspore",
            "adam_weight_decay",
            MATRICES,
            "MindSpore AdamWeightDecay",
            1e-3,
            {"decay": 0.01},
        ),
        (
            "mindspore",
            "adam_weight_decay",
            OTHERS,
            "MindSpore AdamWeightDecay without decay",
            1e-3,
            {},
        ),
        (
            "mindspore",
            "adam_weight_decay_default",
            DENSE,
            "MindSpore AdamWeightDecay",
            1e-3,
            {"epsilon": 1e-6},
        ),
        (
            "mindspore",
            "adam_weight_decay_default",
            NORM,
            "MindSpore AdamWeightDecay without decay",
            1e-3,
            {},
        ),
        ("mindspore", "experimental_adamw", ALL, "AdamW", 1e-3, {"decay": 0.1}),
        (
            "mindspore",
            "experimental_sgd",
            ALL,
            "SGD with momentum and L2 decay",
            0.1,
            {"decay": 0.01},
        ),
    ],
)
def test_rule_and_numbers(
    analyze: Analyze,
    framework: str,
    name: str,
    names: tuple[str, ...],
    rule: str,
    rate: float,
    values: dict[str, float],
) -> None:
    run = analyze(framework, name)
    group = find_group(run, names)
    assert (run.state, group.state) == (EXPLAINED, EXPLAINED)
    assert group.fit.rule.name == rule
    assert group.fit.rates == pytest.approx([rate] * run.n_steps, rel=2e-3)
    assert {key: group.fit.values[key] for key in values} == pytest.approx(
        values, rel=5e-3, abs=1e-9
    )


@pytest.mark.parametrize(
    ("framework", "name"),
    [("torch", "sgd_momentum"), ("torch", "adamw"), ("mindspore", "adam_weight_decay")],
)
def test_the_next_best_rule_has_a_far_larger_residual(
    analyze: Analyze, framework: str, name: str
) -> None:
    for group in analyze(framework, name).groups:
        assert group.runner_up is not None
        assert group.runner_up.rule.essence != group.fit.rule.essence
        assert group.runner_up.residual > 100 * group.fit.residual


def test_gradients_that_were_clipped_later_are_scaled_by_the_global_norm(analyze: Analyze) -> None:
    for framework, name, rule in (
        ("torch", "sgd_clipped", "SGD with momentum"),
        ("torch", "adamw_clipped", "AdamW"),
        ("mindspore", "adam_weight_decay_clipped", "MindSpore AdamWeightDecay without decay"),
    ):
        group = find_group(analyze(framework, name), ALL)
        assert (group.fit.rule.name, group.fit.scaling.kind) == (rule, "global norm")
        assert (
            "clip" in group.undetermined
        )  # every step was clipped, so that the limit is part of the learning rate


def test_a_known_learning_rate_shows_the_limit_and_the_loss_scale(
    analyze: Analyze, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 0.1")
    clipped = find_group(analyze("torch", "sgd_clipped", settings), ALL)
    assert clipped.fit.values["clip"] == pytest.approx(0.3, rel=1e-3)
    scaled = find_group(analyze("torch", "sgd_scaled", settings), ALL)
    assert (scaled.fit.rule.name, scaled.fit.scaling.kind) == ("SGD with momentum", "one factor")
    assert scaled.fit.values["factor"] == pytest.approx(1 / 1024, rel=1e-4)


def test_a_learning_rate_that_warms_up_is_solved_for_step_by_step(analyze: Analyze) -> None:
    group = find_group(analyze("torch", "adamw_warm_up"), ALL)
    assert group.fit.rule.name == "AdamW"
    assert group.fit.rates == pytest.approx([1e-4, 5e-4, 1e-3], rel=1e-3)


def test_a_resumed_run_needs_its_step_and_uses_the_moments_saved_with_the_weights(
    analyze: Analyze, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("step: 6")
    group = find_group(analyze("torch", "adamw_resumed", settings), ALL)
    assert (group.state, group.fit.rule.name) == (EXPLAINED, "AdamW")
    assert group.fit.rates == pytest.approx([1e-3] * 3, rel=1e-3)


def test_contradicted_settings_are_reported(analyze: Analyze, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 3e-4\nbetas: [0.9, 0.95]")
    run = analyze("torch", "adamw", settings)
    assert run.state == EXPLAINED
    assert run.contradicted_settings["learning_rate"] == pytest.approx((3e-4, 1e-3), rel=1e-3)
    assert run.contradicted_settings["beta2"] == pytest.approx((0.95, 0.999), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "has_master"), [("adamw_bfloat16", False), ("adamw_master", True)]
)
def test_a_master_copy_of_narrow_weights_is_detected(
    analyze: Analyze, name: str, has_master: bool
) -> None:
    run = analyze("torch", name)
    index = run.groups.index(find_group(run, ALL))
    assert (
        run.groups[index].fit.rule.name == "Adam"
    )  # a decay of 1e-5 of a weight is hidden by bfloat16
    assert run.groups[index].fit.rates == pytest.approx([1e-3] * 3, rel=0.02)
    assert run.master_copies[index].has_master is has_master


@pytest.mark.parametrize("name", ["adamw_bfloat16", "adamw_bfloat16_fast", "adamw_master"])
def test_a_decay_that_rounding_hides_is_undetermined(analyze: Analyze, name: str) -> None:
    """In bfloat16, 1 - learning rate * decay is 1: the decay leaves no trace."""
    group = find_group(analyze("torch", name), ALL)
    assert "decay" in group.undetermined
    assert "weight decay unknown" in format_fit(group.fit, group.undetermined)


def test_a_master_copy_shows_the_decay(analyze: Analyze) -> None:
    run = analyze("torch", "adamw_master_decay")
    group = find_group(run, ALL)
    assert (group.fit.rule.name, group.fit.values["decay"]) == ("AdamW", 0.1)
    assert "decay" not in group.undetermined
    shares = run.master_copies[run.groups.index(group)]
    assert shares.has_master is True
    assert shares.with_master > 0.99


def test_rounding_to_a_narrow_type_does_not_hide_that_gradients_were_clipped(
    analyze: Analyze,
) -> None:
    """Without clipping, the steps are explained within their rounding, but much worse."""
    group = find_group(analyze("torch", "adamw_master_clipped"), ALL)
    assert group.fit.scaling.kind == "global norm"
    assert group.fit.relative_to_tolerance < 0.1


def test_narrow_arithmetic_is_no_master_copy(analyze: Analyze) -> None:
    """Neither assumption explains the steps, because the moments are rounded too."""
    run = analyze("torch", "adamw_bfloat16_fast")
    (shares,) = run.master_copies.values()
    assert shares.largest < 0.94
    assert shares.has_master is None


def test_an_unknown_rule_is_unexplained(analyze: Analyze) -> None:
    run = analyze("torch", "rprop")
    assert (run.state, run.groups[0].state) == (UNEXPLAINED, UNEXPLAINED)
    assert run.groups[0].fit.residual > 0.1


def list_rule_names(group: ParameterGroup) -> set[str]:
    """Return the names of all rules that explain a group."""
    return {fit.rule.name for fit in (group.fit, *group.equivalent_fits)}


def test_one_step_cannot_tell_a_missing_correction_from_another_learning_rate(
    analyze: Analyze, tmp_path: Path
) -> None:
    run = analyze("torch", "adamw_one_step")
    assert run.state == AMBIGUOUS
    assert list_rule_names(run.groups[0]) == {
        "AdamW",
        "MindSpore AdamWeightDecay",
        "NAdam with decoupled decay",
        "Lion with decoupled decay",
    }
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 1e-3")
    run = analyze("torch", "adamw_one_step", settings)
    # the first step of both is the learning rate times the sign of the gradient
    assert list_rule_names(run.groups[0]) == {"AdamW", "Lion with decoupled decay"}
    assert {"beta1", "beta2"} <= set(run.groups[0].undetermined)


def test_losses_of_the_two_frameworks_agree_at_step_1_and_diverge_at_step_2(
    recording: Callable[[str], Path],
) -> None:
    mindspore = np.load(recording("mindspore") / "adam_weight_decay" / "losses.npy")
    torch = np.load(recording("torch") / "adamw" / "losses.npy")
    assert mindspore[0] == pytest.approx(torch[0], rel=1e-6)
    assert abs(mindspore[1] - torch[1]) > 1e-3 * torch[1]


def test_a_dump_of_three_steps_has_two_updates(recording: Callable[[str], Path]) -> None:
    run = read_run(str(recording("msprobe")))
    group = find_group(run, ALL)
    assert (run.state, run.n_steps, group.fit.rule.name) == (EXPLAINED, 2, "AdamW")
    assert (group.fit.rates[0], group.fit.values["decay"]) == pytest.approx((1e-3, 0.1), rel=5e-3)
