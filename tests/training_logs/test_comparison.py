"""Two runs against the migration standard: what agrees, what does not, from where, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.training_logs import Check, Curves, LogComparison, compare, read_log
from dumpdiff.training_logs import megatron as megatron_format
from dumpdiff.training_logs import mindformers as mindformers_format

from .written import megatron, mindformers

LOGS = Path(__file__).parents[1] / "samples" / "logs"
STEPS = 1200


@pytest.fixture
def loss() -> np.ndarray:
    random = np.random.default_rng(7)
    return 2 + 6 * np.exp(-np.arange(STEPS) / 300) + random.normal(0, 0.02, STEPS)


def noise(scale: float, seed: int = 1, count: int = STEPS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, count)


def ms(loss: np.ndarray, **kwargs: Any) -> Curves:
    curves = mindformers_format.parse(mindformers(loss, **kwargs), "ms.log")
    assert curves is not None
    return curves


def pt(loss: np.ndarray, **kwargs: Any) -> Curves:
    curves = megatron_format.parse(megatron(loss, **kwargs), "pt.log")
    assert curves is not None
    return curves


def check(comparison: LogComparison, name: str) -> Check:
    return next(check for check in comparison.checks if check.name == name)


def test_runs_that_agree_but_for_noise(loss: np.ndarray) -> None:
    comparison = compare(ms(loss + noise(1e-4)), pt(loss))
    assert (comparison.verdict, comparison.begins, comparison.departure) == ("agree", "never", None)
    assert comparison.wander.around_zero
    assert comparison.stage().headline.startswith(
        "1200 steps within the migration standard, first loss (step 1)"
    )


def test_a_first_loss_off_by_one_percent_is_forward(loss: np.ndarray) -> None:
    comparison = compare(ms(loss * 1.01), pt(loss))
    assert (comparison.verdict, comparison.begins) == ("differ", "step 1")
    assert "first loss (step 1)" in comparison.stage().headline


@pytest.mark.parametrize(
    ("first", "verdict"),
    [(8.004, "agree"), (8.039, "agree"), (8.05, "differ")],
    ids=["within 0.005", "within 0.5 percent", "neither"],
)
def test_the_first_loss_may_be_off_absolutely_or_relatively(first: float, verdict: str) -> None:
    assert (
        check(compare(ms(np.array([first])), pt(np.array([8.0]))), "first loss").verdict == verdict
    )


def test_three_decimals_cannot_decide_at_the_limit() -> None:
    near = check(compare(ms(np.array([0.505]), digits=3), pt(np.array([0.5]))), "first loss")
    assert near.verdict == "unclear"
    assert "the printed digits leave" in near.said


def test_an_optimizer_that_differs_shows_at_step_2(loss: np.ndarray) -> None:
    drift = np.minimum(np.arange(STEPS) * 2e-3, 0.3)
    comparison = compare(ms(loss + drift), pt(loss))
    assert (comparison.verdict, comparison.begins) == ("differ", "step 2")
    assert check(comparison, "first loss").verdict == "agree"


def test_a_later_departure_is_found_at_its_step(loss: np.ndarray) -> None:
    target = loss + noise(1e-4)
    target[700:] += 0.1
    comparison = compare(ms(target), pt(loss))
    assert (comparison.verdict, comparison.begins, comparison.departure) == ("differ", "later", 701)
    assert comparison.stage().headline.endswith("they part for good from step 701")
    assert not comparison.wander.around_zero


def test_too_few_steps_cannot_be_told_unless_fewer_are_asked_for(loss: np.ndarray) -> None:
    few = ms(loss[:10]), pt(loss[:10])
    assert compare(*few).verdict == "unclear"
    assert compare(*few, least_steps=10).verdict == "agree"


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "agree"), (1.2, "differ")])
def test_the_global_norm_may_be_off_by_ten_percent_on_average(
    loss: np.ndarray, factor: float, verdict: str
) -> None:
    comparison = compare(ms(loss, norm=2.0 * factor), pt(loss, norm=2.0))
    assert check(comparison, "global norm").verdict == verdict
    assert comparison.verdict == verdict


def test_a_norm_of_few_digits_does_not_differ_by_its_rounding(loss: np.ndarray) -> None:
    assert (
        check(compare(ms(loss, norm=0.0024), pt(loss, norm=0.0024)), "global norm").verdict
        == "unclear"
    )


def test_a_norm_that_one_side_does_not_print_cannot_be_told(loss: np.ndarray) -> None:
    assert check(compare(ms(loss, norm=None), pt(loss)), "global norm").verdict == "unclear"


def test_learning_rates_are_compared_by_the_step_that_used_them(loss: np.ndarray) -> None:
    rates = np.minimum(np.arange(STEPS) / 100, 1) * 1e-3
    assert (
        check(compare(ms(loss, lr=rates), pt(loss, lr=rates)), "learning rate").verdict == "agree"
    )


def test_a_schedule_one_step_late_differs(loss: np.ndarray) -> None:
    rates = np.minimum(np.arange(STEPS) / 100, 1) * 1e-3
    late = np.concatenate([[0.0], rates[:-1]])
    rate = check(compare(ms(loss, lr=late), pt(loss, lr=rates)), "learning rate")
    assert rate.verdict == "differ"
    assert rate.said == "learning rates part at step 2: 0 against 1e-05"


def test_where_a_format_does_not_say_whose_rate_it_prints_both_readings_are_tried() -> None:
    state, terminal = read_log(LOGS / "trainer_state.json"), read_log(LOGS / "trainer_terminal.log")
    assert check(compare(state, terminal), "learning rate").verdict == "agree"
    shifted = replace(terminal, rate=np.append(terminal.rate[1:], 0.0))
    assert check(compare(state, shifted), "learning rate").verdict == "agree"


def test_a_run_with_a_learning_rate_of_0_is_recognised(loss: np.ndarray) -> None:
    comparison = compare(ms(loss, lr=0.0), pt(loss, lr=0.0))
    assert (
        "the learning rate is 0: weights never change, so forward and backward alone are compared"
        in comparison.notes
    )


def test_a_warmup_from_0_leaves_step_2_without_an_update(loss: np.ndarray) -> None:
    rates = np.minimum(np.arange(STEPS) / 100, 1) * 1e-3
    unshifted = replace(pt(loss), rate_of="used", rate=rates)
    notes = compare(ms(loss, lr=rates), unshifted).notes
    assert (
        "step 1 used a learning rate of 0: the loss of step 2 does not test the optimizer" in notes
    )


def test_a_nan_of_one_side_differs() -> None:
    comparison = compare(
        read_log(LOGS / "megatron_0.12_nan.log"), read_log(LOGS / "megatron_0.12.log")
    )
    assert check(comparison, "nonfinite").said == (
        "only the target has a loss or norm that is not finite at step 2 and 2 more steps"
    )


def test_a_skipped_update_of_one_side_differs(loss: np.ndarray) -> None:
    target = ms(loss)
    skipped = target.skipped.copy()
    skipped[4] = True
    comparison = compare(replace(target, skipped=skipped), pt(loss))
    assert check(comparison, "skipped").said == "only the target has a skipped update at step 5"


def test_spikes_of_one_side_alone_are_named(loss: np.ndarray) -> None:
    both, target = loss.copy(), loss.copy()
    both[300] += 3
    target[300] += 3
    target[900] += 2
    assert compare(ms(target), pt(both)).spikes == (("target", 901),)


def test_what_runs_of_the_reference_differ_by_is_allowed(loss: np.ndarray) -> None:
    far = ms(loss + noise(0.05, 2))
    assert check(compare(far, pt(loss)), "mean loss").verdict == "differ"
    comparison = compare(far, pt(loss), [pt(loss + noise(0.05, 3)), pt(loss + noise(0.05, 4))])
    assert comparison.band is not None
    assert comparison.band.inside
    assert check(comparison, "mean loss").verdict == "agree"
    assert check(comparison, "mean loss").said.endswith(
        "within what runs of the reference differ by"
    )


def test_a_target_outside_the_band_still_differs(loss: np.ndarray) -> None:
    target = loss + noise(0.01, 2)
    target[800:] += 0.2
    comparison = compare(ms(target), pt(loss), [pt(loss + noise(0.01, 3))])
    assert comparison.band is not None
    assert not comparison.band.inside
    assert comparison.verdict == "differ"


def test_means_over_intervals_are_compared_with_means(loss: np.ndarray) -> None:
    means = loss.reshape(-1, 10).mean(axis=1)
    lines = [megatron([value], begin=10 * (i + 1)) for i, value in enumerate(means)]
    thinned = megatron_format.parse("".join(lines), "pt.log")
    assert thinned is not None
    assert (thinned.interval, thinned.averaged) == (10, True)
    comparison = compare(ms(loss), thinned, least_steps=100)
    assert comparison.steps.tolist() == list(range(10, STEPS + 1, 10))
    np.testing.assert_allclose(comparison.target_loss, comparison.reference_loss, atol=2e-6)


def test_runs_without_a_common_step_are_refused(loss: np.ndarray) -> None:
    with pytest.raises(DumpError, match="have no step with a loss in common"):
        compare(ms(loss[:5]), pt(loss[:5], begin=100))


def test_the_two_versions_of_one_run_agree_once_the_mean_is_undone() -> None:
    comparison = compare(
        read_log(LOGS / "megatron_0.17.log"), read_log(LOGS / "megatron_0.12.log"), least_steps=6
    )
    assert comparison.verdict == "agree"
    assert np.abs(comparison.target_loss - comparison.reference_loss).max() < 3e-6
