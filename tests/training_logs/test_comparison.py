"""Two runs against the migration standard: verdicts, onset of the divergence, band and notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.training_logs import (
    Check,
    Curves,
    LogComparison,
    compare,
    megatron,
    mindformers,
    read_log,
    trainer,
)

from .log_lines import format_megatron_log, format_mindformers_log

LOGS = Path(__file__).parents[1] / "samples" / "logs"
STEPS = 1200


@pytest.fixture
def loss() -> np.ndarray:
    random = np.random.default_rng(7)
    return 2 + 6 * np.exp(-np.arange(STEPS) / 300) + random.normal(0, 0.02, STEPS)


def draw_noise(scale: float, seed: int = 1, count: int = STEPS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, count)


def read_mindformers_curves(loss: np.ndarray, **kwargs: Any) -> Curves:
    curves = mindformers.parse(format_mindformers_log(loss, **kwargs), "ms.log")
    assert curves is not None
    return curves


def read_megatron_curves(loss: np.ndarray, **kwargs: Any) -> Curves:
    curves = megatron.parse(format_megatron_log(loss, **kwargs), "pt.log")
    assert curves is not None
    return curves


def find_check(comparison: LogComparison, name: str) -> Check:
    return next(check for check in comparison.checks if check.name == name)


def test_runs_that_differ_by_noise_agree(loss: np.ndarray) -> None:
    comparison = compare(
        read_mindformers_curves(loss + draw_noise(1e-4)), read_megatron_curves(loss)
    )
    assert (comparison.verdict, comparison.onset, comparison.divergence_step) == (
        "agree",
        "never",
        None,
    )
    assert comparison.fluctuation.is_unbiased
    assert comparison.to_stage().headline.startswith(
        "1200 steps within the migration standard, first loss (step 1)"
    )


def test_a_first_loss_off_by_one_percent_differs_at_step_1(loss: np.ndarray) -> None:
    comparison = compare(read_mindformers_curves(loss * 1.01), read_megatron_curves(loss))
    assert (comparison.verdict, comparison.onset) == ("differ", "step 1")
    assert "first loss (step 1)" in comparison.to_stage().headline


@pytest.mark.parametrize(
    ("first", "verdict"),
    [(8.004, "agree"), (8.039, "agree"), (8.05, "differ")],
    ids=["within 0.005", "within 0.5 percent", "neither"],
)
def test_the_first_loss_must_meet_the_absolute_or_the_relative_limit(
    first: float, verdict: str
) -> None:
    assert (
        find_check(
            compare(
                read_mindformers_curves(np.array([first])), read_megatron_curves(np.array([8.0]))
            ),
            "first loss",
        ).verdict
        == verdict
    )


def test_three_decimals_are_inconclusive_at_the_limit() -> None:
    first_loss = find_check(
        compare(
            read_mindformers_curves(np.array([0.505]), digits=3),
            read_megatron_curves(np.array([0.5])),
        ),
        "first loss",
    )
    assert first_loss.verdict == "inconclusive"
    assert "the printed digits leave" in first_loss.summary


def test_an_optimizer_that_differs_is_reported_at_step_2(loss: np.ndarray) -> None:
    drift = np.minimum(np.arange(STEPS) * 2e-3, 0.3)
    comparison = compare(read_mindformers_curves(loss + drift), read_megatron_curves(loss))
    assert (comparison.verdict, comparison.onset) == ("differ", "step 2")
    assert find_check(comparison, "first loss").verdict == "agree"


def test_a_later_divergence_is_found_at_its_step(loss: np.ndarray) -> None:
    target = loss + draw_noise(1e-4)
    target[700:] += 0.1
    comparison = compare(read_mindformers_curves(target), read_megatron_curves(loss))
    assert (comparison.verdict, comparison.onset, comparison.divergence_step) == (
        "differ",
        "later",
        701,
    )
    assert comparison.to_stage().headline.endswith("the losses diverge permanently from step 701")
    assert not comparison.fluctuation.is_unbiased


def test_too_few_steps_are_inconclusive_unless_fewer_are_required(loss: np.ndarray) -> None:
    short_runs = read_mindformers_curves(loss[:10]), read_megatron_curves(loss[:10])
    assert compare(*short_runs).verdict == "inconclusive"
    assert compare(*short_runs, least_steps=10).verdict == "agree"


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "agree"), (1.2, "differ")])
def test_the_global_norm_may_be_off_by_ten_percent_on_average(
    loss: np.ndarray, factor: float, verdict: str
) -> None:
    comparison = compare(
        read_mindformers_curves(loss, norm=2.0 * factor), read_megatron_curves(loss, norm=2.0)
    )
    assert find_check(comparison, "global norm").verdict == verdict
    assert comparison.verdict == verdict


def test_a_norm_of_few_digits_does_not_differ_by_its_rounding(loss: np.ndarray) -> None:
    assert (
        find_check(
            compare(
                read_mindformers_curves(loss, norm=0.0024), read_megatron_curves(loss, norm=0.0024)
            ),
            "global norm",
        ).verdict
        == "inconclusive"
    )


def test_a_norm_that_one_side_does_not_print_is_inconclusive(loss: np.ndarray) -> None:
    assert (
        find_check(
            compare(read_mindformers_curves(loss, norm=None), read_megatron_curves(loss)),
            "global norm",
        ).verdict
        == "inconclusive"
    )


def test_learning_rates_are_compared_by_the_step_that_used_them(loss: np.ndarray) -> None:
    rates = np.minimum(np.arange(STEPS) / 100, 1) * 1e-3
    assert (
        find_check(
            compare(read_mindformers_curves(loss, lr=rates), read_megatron_curves(loss, lr=rates)),
            "learning rate",
        ).verdict
        == "agree"
    )


def test_a_schedule_one_step_late_differs(loss: np.ndarray) -> None:
    rates = np.minimum(np.arange(STEPS) / 100, 1) * 1e-3
    late = np.concatenate([[0.0], rates[:-1]])
    rate = find_check(
        compare(read_mindformers_curves(loss, lr=late), read_megatron_curves(loss, lr=rates)),
        "learning rate",
    )
    assert rate.verdict == "differ"
    assert rate.summary == (
        "learning rates are shifted by one step: the reference has at step n what the target has at"
        " step n + 1 (learning rates diverge at step 2: 0 against 1e-05)"
    )


def test_a_shift_of_the_rate_is_open_if_the_format_does_not_define_its_step() -> None:
    state, terminal = read_log(LOGS / "trainer_state.json"), read_log(LOGS / "trainer_terminal.log")
    assert find_check(compare(state, terminal), "learning rate").verdict == "agree"
    shifted = replace(terminal, rate=np.append(terminal.rate[1:], 0.0))
    check = find_check(compare(state, shifted), "learning rate")
    assert check.verdict == "inconclusive"
    assert check.summary.startswith("learning rates are shifted by one step: ")


def test_a_run_with_a_learning_rate_of_0_is_recognized(loss: np.ndarray) -> None:
    comparison = compare(read_mindformers_curves(loss, lr=0.0), read_megatron_curves(loss, lr=0.0))
    assert (
        "the learning rate is 0: weights never change, so only forward and backward are compared"
        in comparison.notes
    )


def test_a_warmup_from_0_leaves_step_2_without_an_update(loss: np.ndarray) -> None:
    rates = np.minimum(np.arange(STEPS) / 100, 1) * 1e-3
    unshifted = replace(read_megatron_curves(loss), rate_of="used", rate=rates)
    notes = compare(read_mindformers_curves(loss, lr=rates), unshifted).notes
    assert (
        "step 1 used a learning rate of 0: the loss of step 2 does not test the optimizer" in notes
    )


def test_a_nan_of_one_side_differs() -> None:
    comparison = compare(
        read_log(LOGS / "megatron_0.12_nan.log"), read_log(LOGS / "megatron_0.12.log")
    )
    assert find_check(comparison, "nonfinite").summary == (
        "only the target has a loss or norm that is not finite at step 2 and 2 more steps"
    )


def test_a_skipped_update_of_one_side_differs(loss: np.ndarray) -> None:
    target = read_mindformers_curves(loss)
    skipped = target.skipped.copy()
    skipped[4] = True
    comparison = compare(replace(target, skipped=skipped), read_megatron_curves(loss))
    assert (
        find_check(comparison, "skipped").summary
        == "only the target has a skipped update at step 5"
    )


def test_only_spikes_of_one_side_are_reported(loss: np.ndarray) -> None:
    reference, target = loss.copy(), loss.copy()
    reference[300] += 3
    target[300] += 3
    target[900] += 2
    assert compare(read_mindformers_curves(target), read_megatron_curves(reference)).spikes == (
        ("target", 901),
    )


def test_the_spread_of_the_reference_runs_is_allowed(loss: np.ndarray) -> None:
    distant_run = read_mindformers_curves(loss + draw_noise(0.05, 2))
    assert (
        find_check(compare(distant_run, read_megatron_curves(loss)), "mean loss").verdict
        == "differ"
    )
    comparison = compare(
        distant_run,
        read_megatron_curves(loss),
        [
            read_megatron_curves(loss + draw_noise(0.05, 3)),
            read_megatron_curves(loss + draw_noise(0.05, 4)),
        ],
    )
    assert comparison.band is not None
    assert comparison.band.contains_target
    assert find_check(comparison, "mean loss").verdict == "agree"
    assert find_check(comparison, "mean loss").summary.endswith(
        "within what runs of the reference differ by"
    )


def test_a_target_outside_the_band_still_differs(loss: np.ndarray) -> None:
    target = loss + draw_noise(0.01, 2)
    target[800:] += 0.2
    comparison = compare(
        read_mindformers_curves(target),
        read_megatron_curves(loss),
        [read_megatron_curves(loss + draw_noise(0.01, 3))],
    )
    assert comparison.band is not None
    assert not comparison.band.contains_target
    assert comparison.verdict == "differ"


def test_means_over_intervals_are_compared_with_means(loss: np.ndarray) -> None:
    means = loss.reshape(-1, 10).mean(axis=1)
    lines = [format_megatron_log([value], begin=10 * (i + 1)) for i, value in enumerate(means)]
    thinned = megatron.parse("".join(lines), "pt.log")
    assert thinned is not None
    assert (thinned.interval, thinned.averaged) == (10, True)
    comparison = compare(read_mindformers_curves(loss), thinned, least_steps=100)
    assert comparison.steps.tolist() == list(range(10, STEPS + 1, 10))
    np.testing.assert_allclose(comparison.target_loss, comparison.reference_loss, atol=2e-6)


def test_runs_without_a_common_step_are_refused(loss: np.ndarray) -> None:
    with pytest.raises(DumpError, match="have no step with a loss in common"):
        compare(read_mindformers_curves(loss[:5]), read_megatron_curves(loss[:5], begin=100))


def test_two_versions_of_one_run_agree_after_the_mean_is_undone() -> None:
    comparison = compare(
        read_log(LOGS / "megatron_0.17.log"), read_log(LOGS / "megatron_0.12.log"), least_steps=6
    )
    assert comparison.verdict == "agree"
    assert np.abs(comparison.target_loss - comparison.reference_loss).max() < 3e-6


def test_a_run_that_is_nan_from_the_beginning_differs() -> None:
    comparison = compare(
        read_megatron_curves(np.full(8, np.nan)), read_megatron_curves(np.full(8, 8.0))
    )
    assert (comparison.verdict, comparison.onset) == ("differ", "step 1")
    assert comparison.to_stage().headline == "first loss (step 1) nan against 8"


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        (1, "by 1 step: the target has at step n what the reference has at step n + 1"),
        (-2, "by 2 steps: the reference has at step n what the target has at step n + 2"),
    ],
)
def test_losses_of_other_steps_are_reported_as_a_shift(shift: int, message: str) -> None:
    losses = 8 + draw_noise(0.2, count=60)
    target, reference = losses[max(shift, 0) :], losses[max(-shift, 0) :]
    comparison = compare(read_megatron_curves(target), read_megatron_curves(reference))
    assert comparison.to_stage().headline.startswith(f"the losses are shifted {message}")


def test_a_learning_rate_that_is_one_step_late_is_reported_as_that() -> None:
    rates = 1e-5 * np.linspace(0, 1, 31)
    sides = []
    for printed_rates in (rates[:-1], rates[1:]):
        history = [
            {"step": step, "loss": 5.0, "learning_rate": rate}
            for step, rate in enumerate(printed_rates, 1)
        ]
        curves = trainer.parse(json.dumps({"log_history": history}), "trainer_state.json")
        assert curves is not None
        sides.append(curves)
    check = find_check(compare(*sides), "learning rate")
    assert check.verdict == "inconclusive"
    assert check.summary.startswith(
        "learning rates are shifted by one step: the reference has at step n what the target has"
    )


def test_a_drift_within_the_standard_is_in_the_headline(loss: np.ndarray) -> None:
    ramp = 0.003 * np.clip((np.arange(STEPS) - 600) / 600, 0, 1)
    target = loss * (1 + draw_noise(5e-4) + ramp)
    comparison = compare(read_megatron_curves(target), read_megatron_curves(loss))
    assert (comparison.verdict, comparison.onset) == ("inconclusive", "later")
    assert comparison.drift is not None
    assert comparison.drift.kind == "drift"
    assert 540 <= comparison.drift.step <= 660
    assert comparison.drift.share == pytest.approx(0.003, rel=0.2)
    assert comparison.to_stage().headline.startswith("the losses drift apart from step ")


def test_another_level_within_the_standard_is_in_the_headline(loss: np.ndarray) -> None:
    target = loss * (1 + draw_noise(5e-4) + 0.003 * (np.arange(STEPS) >= 600))
    comparison = compare(read_megatron_curves(target), read_megatron_curves(loss))
    headline = comparison.to_stage().headline
    assert headline.startswith("the losses differ by +0.3 % from step 601 on"), headline


def test_a_drift_over_the_last_hundred_steps_is_found(loss: np.ndarray) -> None:
    ramp = 0.005 * np.clip((np.arange(STEPS) - 1100) / 100, 0, 1)
    target = loss * (1 + draw_noise(5e-4) + ramp)
    drift = compare(read_megatron_curves(target), read_megatron_curves(loss)).drift
    assert drift is not None
    assert 1060 <= drift.step <= 1140


@pytest.mark.parametrize("seed", range(5))
def test_noise_around_zero_is_no_drift(loss: np.ndarray, seed: int) -> None:
    target = loss * (1 + draw_noise(1e-3, seed))
    comparison = compare(read_megatron_curves(target), read_megatron_curves(loss))
    assert comparison.drift is None
    assert comparison.verdict == "agree"
