"""The guide's tree on what stages say: which cause, what is ruled out, what is left, and when nobody can tell.

The stages here are said by hand, since only the tree is asked; tests/acceptance has whole cases that frameworks ran.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_logs.log_lines import format_megatron_log, format_mindformers_log

from dumpdiff.diagnosis.advice import advise
from dumpdiff.diagnosis.case import Case
from dumpdiff.diagnosis.decision import Decision, decide
from dumpdiff.diagnosis.evidence import Evidence
from dumpdiff.model.stage import Stage
from dumpdiff.model.verdict import Verdict
from dumpdiff.run_settings import SettingsComparison, read_settings
from dumpdiff.run_settings import compare as compare_settings
from dumpdiff.training_logs import LogComparison, compare, read_log

LOSS = np.linspace(8.0, 5.0, 40)
LOWER = np.where(np.arange(40) < 20, LOSS, 0.95 * LOSS)  #: from step 21 on

Logs = Callable[..., LogComparison]
SettingsOf = Callable[[str], SettingsComparison]


def stages(**verdicts: Verdict) -> tuple[Stage, ...]:
    return tuple(Stage(name, verdict, f"what {name} found") for name, verdict in verdicts.items())


def decided(*given: Stage, **found: Any) -> Decision:
    return decide(Evidence(stages=given, **found))


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """``logs(loss)``: a log of MindSpore Transformers with these losses beside one of Megatron-LM with ``LOSS``."""

    def compared(target: np.ndarray = LOSS, **options: Any) -> LogComparison:
        (tmp_path / "ms.log").write_text(format_mindformers_log(target, **options))
        (tmp_path / "pt.log").write_text(format_megatron_log(LOSS))
        return compare(read_log(tmp_path / "ms.log"), read_log(tmp_path / "pt.log"), least_steps=10)

    return compared


@pytest.fixture
def settings(tmp_path: Path) -> SettingsOf:
    """``settings("--seed 7")``: a launch with these options more beside one without."""

    def compared(options: str) -> SettingsComparison:
        launch = (
            "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --lr 1e-3 --bf16 --seed 1 "
        )
        for name, text in (("one.sh", f"{launch} {options}\n"), ("other.sh", f"{launch}\n")):
            (tmp_path / name).write_text(text)
        return compare_settings(
            read_settings(tmp_path / "one.sh"), read_settings(tmp_path / "other.sh")
        )

    return compared


def test_what_comes_first_is_the_cause_and_the_rest_follows() -> None:
    found = decided(*stages(data="differ", weights="agree", norms="differ", optimizer="differ"))
    assert (found.verdict, found.cause, found.symptom) == ("differ", "data", "first loss")
    assert found.headline == "the data differ: what data found"
    assert found.also == (
        "the backward pass: what norms found",
        "the optimizer: what optimizer found",
    )


@pytest.mark.parametrize(
    ("stage", "cause"),
    [("data", "data"), ("weights", "weights"), ("norms", "backward"), ("optimizer", "optimizer")],
)
def test_every_stage_has_its_cause(stage: str, cause: str) -> None:
    assert decided(Stage(stage, "differ", "")).cause == cause


def test_what_agrees_before_the_cause_is_ruled_out_and_what_was_not_looked_at_is_missing() -> None:
    found = decided(*stages(data="agree", norms="differ"))
    assert [(ruled.place, ruled.by) for ruled in found.ruled_out] == [("data", "data")]
    assert found.missing == ("the weights: not looked at", "the forward pass: not looked at")


def test_a_first_loss_that_differs_leaves_data_weights_and_forward(logs: Logs) -> None:
    found = decided(logs=logs(1.01 * LOSS))
    assert (found.verdict, found.cause) == ("differ", None)
    assert found.candidates == ("data", "weights", "forward")


def test_and_the_forward_pass_alone_once_the_others_agree(logs: Logs) -> None:
    found = decided(*stages(data="agree", weights="agree"), logs=logs(1.01 * LOSS))
    assert (found.cause, found.candidates) == ("forward", ("forward",))
    assert found.headline == "the losses differ at step 1; the cause lies in the forward pass"


def test_equal_losses_and_other_gradients_are_the_backward_pass(logs: Logs) -> None:
    found = decided(logs=logs(norm=1.05))
    assert (found.cause, found.symptom) == ("backward", "gradients")
    assert "forward" in [ruled.place for ruled in found.ruled_out]


def test_a_second_loss_that_differs_is_the_optimizer_if_rates_and_gradients_agree(
    logs: Logs,
) -> None:
    found = decided(
        *stages(norms="agree"), logs=logs(np.where(np.arange(40) == 0, LOSS, 1.02 * LOSS))
    )
    assert (found.cause, found.symptom) == ("optimizer", "second loss")


def test_other_learning_rates_come_before_the_optimizer(logs: Logs) -> None:
    found = decided(
        *stages(optimizer="differ"), logs=logs(LOWER, lr=np.where(np.arange(40) < 15, 1e-5, 2e-5))
    )
    assert found.cause == "schedule"


def test_a_later_loss_with_equal_rates_is_a_long_run(logs: Logs) -> None:
    found = decided(logs=logs(LOWER))
    assert (found.cause, found.symptom) == ("long run", "later")


def test_settings_of_the_model_stand_above_what_follows_from_them(settings: SettingsOf) -> None:
    found = decided(
        *stages(settings="differ", weights="differ"), settings=settings("--norm-epsilon 1e-3")
    )
    assert found.cause == "settings"
    assert "norm epsilon" in found.headline
    assert found.headline.endswith("it shows at the weights: what weights found")


def test_settings_alone_are_a_cause_that_nothing_shows(settings: SettingsOf) -> None:
    found = decided(*stages(settings="differ"), settings=settings("--norm-epsilon 1e-3"))
    assert found.cause == "settings"
    assert "nothing that was given shows its effect" in found.headline


def test_another_dtype_is_precision(settings: SettingsOf) -> None:
    parted = settings("--grad-reduce-in-bf16")
    assert [row.effect for row in parted.select_rows("differ", matters=True)] == ["precision"]
    assert decided(*stages(settings="differ", norms="differ"), settings=parted).cause == "precision"


def test_a_seed_does_not_matter_where_the_weights_are_known_to_agree(
    settings: SettingsOf, logs: Logs
) -> None:
    other = settings("--seed 7")
    assert decided(*stages(settings="differ"), settings=other).cause == "settings"
    found = decided(*stages(settings="differ", weights="agree", norms="differ"), settings=other)
    assert found.cause == "backward"


def test_an_optimizer_setting_is_evidence_of_the_optimizer(settings: SettingsOf) -> None:
    found = decided(
        *stages(settings="differ", optimizer="differ"), settings=settings("--adam-eps 1e-5")
    )
    assert found.cause == "optimizer"
    assert any("adam epsilon" in line for line in found.evidence)


def test_agreement_needs_a_forward_pass_and_no_doubt(logs: Logs) -> None:
    assert decided(*stages(settings="agree", weights="agree")).verdict == "inconclusive"
    assert (
        decided(*stages(settings="agree", weights="agree", logs="agree"), logs=logs()).verdict
        == "agree"
    )
    doubtful = decided(*stages(settings="agree", weights="inconclusive", logs="agree"), logs=logs())
    assert (doubtful.verdict, doubtful.cause) == ("inconclusive", None)
    assert doubtful.headline.endswith("weights inconclusive: what weights found")


def test_what_is_left_to_tick_off_is_no_doubt(logs: Logs) -> None:
    assert decided(*stages(checklist="inconclusive", logs="agree"), logs=logs()).verdict == "agree"


def test_nothing_at_all_is_no_agreement() -> None:
    found = decided()
    assert (found.verdict, found.cause, found.outcome) == ("inconclusive", None, "inconclusive")
    assert len(found.missing) == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (stages(data="differ"), "give data: (dataset or saved batch)"),
        (stages(weights="differ"), "give weights: of both runs"),
        (stages(norms="differ"), "dumpdiff dump-config mindspore --saved-data statistic"),
        (stages(optimizer="differ"), "dumpdiff snippet save-grads"),
        ((), "give the training logs of both runs"),
    ],
)
def test_every_outcome_says_what_to_do_next(given: tuple[Stage, ...], said: str) -> None:
    evidence = Evidence(stages=given)
    told = advise(Case(), evidence, decide(evidence))
    assert any(said in line for one in told for line in (one.why, *one.commands))
