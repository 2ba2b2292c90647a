"""PyTorch and MindSpore really train three steps: the rule and its numbers are named right, from arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.optimizers.groups import AMBIGUOUS, EXPLAINED, UNEXPLAINED, ParameterGroup
from dumpdiff.optimizers.inputs import read_run
from dumpdiff.optimizers.update_analysis import UpdateAnalysis

pytestmark = pytest.mark.record

Ran = Callable[..., UpdateAnalysis]
ALL = ("first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "second.bias")
MATRICES = ("first.weight", "second.weight")
OTHERS = tuple(name for name in ALL if name not in MATRICES)
NORM, DENSE = (
    ("norm.weight", "norm.bias"),
    tuple(name for name in ALL if not name.startswith("norm")),
)


def theirs(names: tuple[str, ...]) -> set[str]:
    """As MindSpore calls them."""
    return {
        name.replace("norm.weight", "norm.gamma").replace("norm.bias", "norm.beta")
        for name in names
    }


def group(run: UpdateAnalysis, names: tuple[str, ...]) -> ParameterGroup:
    """The group that has just these parameters."""
    (found,) = (one for one in run.groups if set(one.parameters) in (set(names), theirs(names)))
    return found


@pytest.mark.parametrize(
    ("framework", "name", "names", "rule", "rate", "numbers"),
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
    moved: Ran,
    framework: str,
    name: str,
    names: tuple[str, ...],
    rule: str,
    rate: float,
    numbers: dict[str, float],
) -> None:
    run = moved(framework, name)
    found = group(run, names)
    assert (run.state, found.state) == (EXPLAINED, EXPLAINED)
    assert found.fit.rule.name == rule
    assert found.fit.rates == pytest.approx([rate] * 3, rel=2e-3)
    assert {key: found.fit.values[key] for key in numbers} == pytest.approx(
        numbers, rel=5e-3, abs=1e-9
    )


@pytest.mark.parametrize(
    ("framework", "name"),
    [("torch", "sgd_momentum"), ("torch", "adamw"), ("mindspore", "adam_weight_decay")],
)
def test_the_next_best_rule_leaves_far_more(moved: Ran, framework: str, name: str) -> None:
    for found in moved(framework, name).groups:
        assert found.runner_up is not None
        assert found.runner_up.rule.essence != found.fit.rule.essence
        assert found.runner_up.residual > 100 * found.fit.residual


def test_gradients_that_were_clipped_later_are_scaled_by_the_global_norm(moved: Ran) -> None:
    for framework, name, rule in (
        ("torch", "sgd_clipped", "SGD with momentum"),
        ("torch", "adamw_clipped", "AdamW"),
        ("mindspore", "adam_weight_decay_clipped", "MindSpore AdamWeightDecay without decay"),
    ):
        found = group(moved(framework, name), ALL)
        assert (found.fit.rule.name, found.fit.scaling.kind) == (rule, "global norm")
        assert (
            "clip" in found.undetermined
        )  # every step was clipped, so that the limit is part of the learning rate


def test_a_known_learning_rate_shows_the_limit_and_the_loss_scale(
    moved: Ran, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 0.1")
    clipped = group(moved("torch", "sgd_clipped", settings), ALL)
    assert clipped.fit.values["clip"] == pytest.approx(0.3, rel=1e-3)
    scaled = group(moved("torch", "sgd_scaled", settings), ALL)
    assert (scaled.fit.rule.name, scaled.fit.scaling.kind) == ("SGD with momentum", "one factor")
    assert scaled.fit.values["factor"] == pytest.approx(1 / 1024, rel=1e-4)


def test_a_learning_rate_that_warms_up_is_solved_for_step_by_step(moved: Ran) -> None:
    found = group(moved("torch", "adamw_warm_up"), ALL)
    assert found.fit.rule.name == "AdamW"
    assert found.fit.rates == pytest.approx([1e-4, 5e-4, 1e-3], rel=1e-3)


def test_a_resumed_run_needs_its_step_and_uses_the_moments_saved_with_the_weights(
    moved: Ran, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("step: 6")
    found = group(moved("torch", "adamw_resumed", settings), ALL)
    assert (found.state, found.fit.rule.name) == (EXPLAINED, "AdamW")
    assert found.fit.rates == pytest.approx([1e-3] * 3, rel=1e-3)


def test_settings_that_are_not_what_happened_are_told(moved: Ran, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 3e-4\nbetas: [0.9, 0.95]")
    run = moved("torch", "adamw", settings)
    assert run.state == EXPLAINED
    assert run.contradicted_settings["learning_rate"] == pytest.approx((3e-4, 1e-3), rel=1e-3)
    assert run.contradicted_settings["beta2"] == pytest.approx((0.95, 0.999), rel=1e-3)


@pytest.mark.parametrize(("name", "master"), [("adamw_bfloat16", False), ("adamw_master", True)])
def test_narrow_weights_and_whether_a_wider_copy_stands_behind(
    moved: Ran, name: str, master: bool
) -> None:
    run = moved("torch", name)
    at = run.groups.index(group(run, ALL))
    assert (
        run.groups[at].fit.rule.name == "Adam"
    )  # a decay of 1e-5 of a weight is nothing in bfloat16
    assert run.groups[at].fit.rates == pytest.approx([1e-3] * 3, rel=0.02)
    assert run.master_copies[at].has_master is master


def test_what_no_rule_makes_is_not_explained(moved: Ran) -> None:
    run = moved("torch", "rprop")
    assert (run.state, run.groups[0].state) == (UNEXPLAINED, UNEXPLAINED)
    assert run.groups[0].fit.residual > 0.1


def test_one_step_does_not_tell_a_missing_correction_from_another_learning_rate(
    moved: Ran, tmp_path: Path
) -> None:
    run = moved("torch", "adamw_one_step")
    assert run.state == AMBIGUOUS
    names = {fit.rule.name for fit in (run.groups[0].fit, *run.groups[0].equivalent_fits)}
    assert names == {"AdamW", "MindSpore AdamWeightDecay"}
    settings = tmp_path / "settings.yaml"
    settings.write_text("lr: 1e-3")
    known = moved("torch", "adamw_one_step", settings)
    assert (known.state, known.groups[0].fit.rule.name) == (EXPLAINED, "AdamW")
    assert {"beta1", "beta2"} <= set(known.groups[0].undetermined)


def test_losses_of_the_two_frameworks_agree_at_step_1_and_part_at_step_2(
    recording: Callable[[str], Path],
) -> None:
    ours, others = (np.load(recording(framework) / name / "losses.npy")
                    for framework, name in (("mindspore", "adam_weight_decay"), ("torch", "adamw")))  # fmt: skip
    assert ours[0] == pytest.approx(others[0], rel=1e-6)
    assert abs(ours[1] - others[1]) > 1e-3 * others[1]


def test_a_dump_of_three_steps_has_two_updates(recording: Callable[[str], Path]) -> None:
    run = read_run(str(recording("msprobe")))
    found = group(run, ALL)
    assert (run.state, run.n_steps, found.fit.rule.name) == (EXPLAINED, 2, "AdamW")
    assert (found.fit.rates[0], found.fit.values["decay"]) == pytest.approx((1e-3, 0.1), rel=5e-3)
