"""The decision tree on results of stages: the cause, what is ruled out, and which places remain.

The stages are written by hand, since only the tree is tested. tests/acceptance has whole cases of
real frameworks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumpdiff import run_settings
from dumpdiff.diagnosis.advice import advise
from dumpdiff.diagnosis.case import Case
from dumpdiff.diagnosis.decision import Decision, decide
from dumpdiff.diagnosis.evidence import Evidence
from dumpdiff.model.stage import Stage
from dumpdiff.model.verdict import Verdict
from dumpdiff.run_settings import SettingsComparison, read_settings

from .conftest import LOSS, Logs

LOWER = np.where(np.arange(40) < 20, LOSS, 0.95 * LOSS)  #: from step 21 on

SettingsOf = Callable[[str], SettingsComparison]


def make_stages(**verdicts: Verdict) -> tuple[Stage, ...]:
    return tuple(Stage(name, verdict, f"what {name} found") for name, verdict in verdicts.items())


def decide_from(*given_stages: Stage, **results: Any) -> Decision:
    return decide(Evidence(stages=given_stages, **results))


@pytest.fixture
def settings(tmp_path: Path) -> SettingsOf:
    """``settings("--seed 7")`` compares a launch with these additional options to one without."""

    def compare_launches(options: str) -> SettingsComparison:
        launch = (
            "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --lr 1e-3 --bf16 --seed 1 "
        )
        for name, text in (("one.sh", f"{launch} {options}\n"), ("other.sh", f"{launch}\n")):
            (tmp_path / name).write_text(text)
        return run_settings.compare(
            read_settings(tmp_path / "one.sh"), read_settings(tmp_path / "other.sh")
        )

    return compare_launches


def test_what_comes_first_is_the_cause_and_the_rest_follows() -> None:
    decision = decide_from(
        *make_stages(data="differ", weights="agree", norms="differ", optimizer="differ")
    )
    assert (decision.verdict, decision.cause, decision.symptom) == ("differ", "data", "first loss")
    assert decision.headline == "the data differ: what data found"
    assert decision.other_differences == (
        "the backward pass: what norms found",
        "the optimizer: what optimizer found",
    )


@pytest.mark.parametrize(
    ("stage", "cause"),
    [("data", "data"), ("weights", "weights"), ("norms", "backward"), ("optimizer", "optimizer")],
)
def test_every_stage_has_its_cause(stage: str, cause: str) -> None:
    assert decide_from(Stage(stage, "differ", "")).cause == cause


def test_what_agrees_before_the_cause_is_ruled_out_and_what_was_not_looked_at_is_missing() -> None:
    decision = decide_from(*make_stages(data="agree", norms="differ"))
    assert [(ruled.place, ruled.stage) for ruled in decision.ruled_out] == [("data", "data")]
    assert decision.missing == ("the weights: not looked at", "the forward pass: not looked at")


def test_a_first_loss_that_differs_leaves_data_weights_and_forward(logs: Logs) -> None:
    decision = decide_from(logs=logs(1.01 * LOSS))
    assert (decision.verdict, decision.cause) == ("differ", None)
    assert decision.candidates == ("data", "weights", "forward")


def test_and_the_forward_pass_alone_once_the_others_agree(logs: Logs) -> None:
    decision = decide_from(*make_stages(data="agree", weights="agree"), logs=logs(1.01 * LOSS))
    assert (decision.cause, decision.candidates) == ("forward", ("forward",))
    assert decision.headline == "the losses differ at step 1; the cause lies in the forward pass"


def test_equal_losses_and_other_gradients_are_the_backward_pass(logs: Logs) -> None:
    decision = decide_from(logs=logs(norm=1.05))
    assert (decision.cause, decision.symptom) == ("backward", "gradients")
    assert "forward" in [ruled.place for ruled in decision.ruled_out]


def test_a_second_loss_that_differs_is_the_optimizer_if_rates_and_gradients_agree(
    logs: Logs,
) -> None:
    decision = decide_from(
        *make_stages(norms="agree"), logs=logs(np.where(np.arange(40) == 0, LOSS, 1.02 * LOSS))
    )
    assert (decision.cause, decision.symptom) == ("optimizer", "second loss")


def test_other_learning_rates_come_before_the_optimizer(logs: Logs) -> None:
    decision = decide_from(
        *make_stages(optimizer="differ"),
        logs=logs(LOWER, lr=np.where(np.arange(40) < 15, 1e-5, 2e-5)),
    )
    assert decision.cause == "schedule"


def test_a_later_loss_with_equal_rates_is_a_long_run(logs: Logs) -> None:
    decision = decide_from(logs=logs(LOWER))
    assert (decision.cause, decision.symptom) == ("long run", "later")


def test_settings_of_the_model_stand_above_what_follows_from_them(settings: SettingsOf) -> None:
    decision = decide_from(
        *make_stages(settings="differ", weights="differ"), settings=settings("--norm-epsilon 1e-3")
    )
    assert decision.cause == "settings"
    assert "norm epsilon" in decision.headline
    assert decision.headline.endswith("it shows at the weights: what weights found")


def test_settings_alone_are_a_cause_that_nothing_shows(settings: SettingsOf) -> None:
    decision = decide_from(
        *make_stages(settings="differ"), settings=settings("--norm-epsilon 1e-3")
    )
    assert decision.cause == "settings"
    assert "nothing that was given shows its effect" in decision.headline


def test_another_dtype_is_precision(settings: SettingsOf) -> None:
    comparison = settings("--grad-reduce-in-bf16")
    assert [row.effect for row in comparison.select_rows("differ", matters=True)] == ["precision"]
    assert (
        decide_from(*make_stages(settings="differ", norms="differ"), settings=comparison).cause
        == "precision"
    )


def test_a_seed_does_not_matter_where_the_weights_are_known_to_agree(
    settings: SettingsOf, logs: Logs
) -> None:
    comparison = settings("--seed 7")
    assert decide_from(*make_stages(settings="differ"), settings=comparison).cause == "settings"
    decision = decide_from(
        *make_stages(settings="differ", weights="agree", norms="differ"), settings=comparison
    )
    assert decision.cause == "backward"


def test_an_optimizer_setting_is_evidence_of_the_optimizer(settings: SettingsOf) -> None:
    decision = decide_from(
        *make_stages(settings="differ", optimizer="differ"), settings=settings("--adam-eps 1e-5")
    )
    assert decision.cause == "optimizer"
    assert any("adam epsilon" in line for line in decision.evidence)


def test_agreement_needs_a_forward_pass_and_no_doubt(logs: Logs) -> None:
    assert decide_from(*make_stages(settings="agree", weights="agree")).verdict == "inconclusive"
    assert (
        decide_from(
            *make_stages(settings="agree", weights="agree", logs="agree"), logs=logs()
        ).verdict
        == "agree"
    )
    doubtful = decide_from(
        *make_stages(settings="agree", weights="inconclusive", logs="agree"), logs=logs()
    )
    assert (doubtful.verdict, doubtful.cause) == ("inconclusive", None)
    assert doubtful.headline.endswith("weights inconclusive: what weights found")


def test_what_is_left_to_tick_off_is_no_doubt(logs: Logs) -> None:
    assert (
        decide_from(*make_stages(checklist="inconclusive", logs="agree"), logs=logs()).verdict
        == "agree"
    )


def test_nothing_at_all_is_no_agreement() -> None:
    decision = decide_from()
    assert (decision.verdict, decision.cause, decision.outcome) == (
        "inconclusive",
        None,
        "inconclusive",
    )
    assert len(decision.missing) == 7


@pytest.mark.parametrize(
    ("given_stages", "message"),
    [
        (make_stages(data="differ"), "give data: (dataset or saved batch)"),
        (make_stages(weights="differ"), "give weights: of both runs"),
        (make_stages(norms="differ"), "dumpdiff dump-config mindspore --saved-data statistic"),
        (make_stages(optimizer="differ"), "dumpdiff snippet save-grads"),
        ((), "give the training logs of both runs"),
    ],
)
def test_every_outcome_says_what_to_do_next(given_stages: tuple[Stage, ...], message: str) -> None:
    evidence = Evidence(stages=given_stages)
    advice = advise(Case(), evidence, decide(evidence))
    assert any(message in line for item in advice for line in (item.reason, *item.commands))
