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
from results import make_result

from dumpdiff import run_settings
from dumpdiff.batches import Batch, DataComparison, choose_comparison
from dumpdiff.batches import compare as compare_batches
from dumpdiff.diagnosis.advice import advise
from dumpdiff.diagnosis.case import Case
from dumpdiff.diagnosis.decision import Decision, decide
from dumpdiff.diagnosis.dump_evidence import DumpEvidence, summarize_dumps
from dumpdiff.diagnosis.evidence import Evidence
from dumpdiff.diagnosis.observations import list_observations
from dumpdiff.diagnosis.places import PLACE_NAMES
from dumpdiff.model.stage import Stage
from dumpdiff.model.verdict import Verdict
from dumpdiff.run_settings import SettingsComparison, read_settings

from .conftest import LOSS, Logs, MakeLogs

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
    decision = decide_from(*make_stages(data="differ", weights="agree", norms="differ"))
    assert (decision.verdict, decision.cause, decision.symptom) == ("differ", "data", "first loss")
    assert decision.headline == "the data differ: what data found"
    assert decision.other_causes == ()
    assert decision.other_differences == ("the backward pass: what norms found",)


def test_two_causes_at_once_stay_two() -> None:
    decision = decide_from(*make_stages(weights="differ", norms="differ", optimizer="differ"))
    assert (decision.cause, decision.other_causes) == ("weights", ("optimizer",))
    assert decision.headline == (
        "the weights differ: what weights found;"
        " second cause: the optimizers differ: what optimizer found"
    )
    assert decision.other_differences == ("the backward pass: what norms found",)


@pytest.mark.parametrize(
    ("stage", "cause"),
    [("data", "data"), ("weights", "weights"), ("optimizer", "optimizer")],
)
def test_every_stage_has_its_cause(stage: str, cause: str) -> None:
    assert decide_from(Stage(stage, "differ", "")).cause == cause


def test_norms_alone_leave_everything_that_changes_gradients() -> None:
    decision = decide_from(*make_stages(data="agree", norms="differ"))
    assert (decision.cause, decision.candidates) == (None, ("forward", "weights", "backward"))
    assert [(ruled.place, ruled.stage) for ruled in decision.ruled_out] == [("data", "data")]
    assert decision.missing[:2] == ("the weights: not looked at", "the forward pass: not looked at")


def test_norms_are_the_backward_pass_once_everything_before_it_agrees() -> None:
    stages = make_stages(data="agree", weights="agree", norms="differ")
    assert decide_from(*stages, Stage("forward", "agree", "")).cause == "backward"


def test_a_first_loss_that_differs_leaves_data_weights_and_forward(logs: Logs) -> None:
    decision = decide_from(logs=logs(1.01 * LOSS))
    assert (decision.verdict, decision.cause) == ("differ", None)
    assert decision.candidates == ("forward", "weights", "data")


def test_and_the_forward_pass_alone_once_the_others_agree(logs: Logs) -> None:
    decision = decide_from(*make_stages(data="agree", weights="agree"), logs=logs(1.01 * LOSS))
    assert decision.cause == "forward"
    assert decision.headline == (
        "the forward pass differs: loss of step 1: 8.08 against 8, off by 8.0e-2 (1 %)"
    )


def test_equal_losses_and_other_gradients_are_the_backward_pass(logs: Logs) -> None:
    decision = decide_from(logs=logs(norm=1.2))
    assert (decision.cause, decision.symptom) == ("backward", "gradients")
    assert decision.headline == (
        "the backward pass differs: global norm of step 1: 1.2 against 1 (20 %)"
    )


def test_noise_in_the_first_gradient_norm_is_no_backward_pass(logs: Logs) -> None:
    decision = decide_from(logs=logs(norm=1.011))
    assert decision.outcome == "inconclusive"
    assert "backward" in decision.candidates


def test_a_second_loss_that_differs_leaves_the_optimizer_and_a_first_rate_that_is_not_printed(
    logs: Logs,
) -> None:
    decision = decide_from(
        *make_stages(norms="agree"), logs=logs(np.where(np.arange(40) == 0, LOSS, 1.02 * LOSS))
    )
    assert (decision.cause, decision.symptom) == (None, "second loss")
    assert decision.candidates[:2] == ("optimizer", "schedule")
    (line,) = (line for line in decision.missing if line.startswith("the learning rate: "))
    assert "that of step 1 is not printed" in line


def test_other_learning_rates_come_before_the_optimizer(logs: Logs) -> None:
    decision = decide_from(
        *make_stages(optimizer="differ"),
        logs=logs(LOWER, lr=np.where(np.arange(40) < 15, 1e-5, 2e-5)),
    )
    assert decision.cause == "schedule"


def test_a_later_loss_with_equal_rates_and_rules_is_a_long_run(logs: Logs) -> None:
    decision = decide_from(logs=logs(LOWER))
    assert (decision.cause, decision.symptom) == (None, "later")
    assert decision.candidates[0] == "long run"
    decision = decide_from(Stage("optimizer", "agree", ""), logs=logs(LOWER))
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
    stages = make_stages(settings="differ", norms="differ", forward="agree")
    assert decide_from(*stages, settings=comparison).cause == "precision"


def test_a_seed_does_not_matter_where_the_weights_are_known_to_agree(
    settings: SettingsOf, logs: Logs
) -> None:
    comparison = settings("--seed 7")
    assert decide_from(*make_stages(settings="differ"), settings=comparison).cause == "settings"
    stages = make_stages(settings="differ", data="agree", weights="agree", forward="agree")
    decision = decide_from(*stages, *make_stages(norms="differ"), settings=comparison)
    assert decision.cause == "backward"


def test_an_optimizer_setting_is_evidence_of_the_optimizer(settings: SettingsOf) -> None:
    decision = decide_from(
        *make_stages(settings="differ", optimizer="differ"), settings=settings("--adam-eps 1e-5")
    )
    assert decision.cause == "optimizer"
    assert any("adam epsilon" in line for line in decision.evidence)


COMPLETE = make_stages(
    settings="agree", checklist="inconclusive", data="agree", logs="agree", norms="agree",
    weights="agree", forward="agree", backward="agree", optimizer="agree",
)  # fmt: skip


def test_agreement_needs_everything_to_be_looked_at_and_no_doubt(logs: Logs) -> None:
    """What is left to a person to tick off is no doubt."""
    equal_logs = logs()
    assert decide_from(*COMPLETE, logs=equal_logs).verdict == "agree"
    for name in ("data", "weights", "optimizer"):
        decision = decide_from(
            *(stage for stage in COMPLETE if stage.name != name), logs=equal_logs
        )
        assert (decision.outcome, decision.candidates) == ("inconclusive", (name,))
        assert f"left: {PLACE_NAMES[name]}" in decision.headline
    doubtful = decide_from(
        *(stage for stage in COMPLETE if stage.name != "weights"),
        *make_stages(weights="inconclusive"),
        logs=equal_logs,
    )
    assert doubtful.outcome == "inconclusive"
    assert doubtful.headline.endswith("weights inconclusive: what weights found")


def test_equal_logs_of_a_few_steps_rule_out_neither_weights_nor_optimizer(logs: Logs) -> None:
    """A wrong row of a weight, and decay of all weights, leave the first losses as they are."""
    decision = decide_from(*make_stages(logs="agree"), logs=logs())
    assert decision.outcome == "inconclusive"
    assert {"data", "weights", "optimizer"} <= set(decision.candidates)


def test_a_thousand_equal_steps_are_an_agreement(make_logs: MakeLogs) -> None:
    losses = np.linspace(8.0, 3.0, 1000)
    assert (
        decide_from(*make_stages(logs="agree"), logs=make_logs(losses, losses)).verdict == "agree"
    )
    noisy = make_logs(losses * (1 + 2e-4 * np.sin(np.arange(1000))), losses)
    assert decide_from(*make_stages(logs="agree"), logs=noisy).outcome == "inconclusive"


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
        (make_stages(data="agree", weights="agree", forward="agree"), "training logs of both runs"),
        (make_stages(optimizer="differ"), "dumpdiff snippet save-grads"),
        ((), "dumpdiff dump-config mindspore --saved-data statistic"),
    ],
)
def test_every_outcome_says_what_to_do_next(given_stages: tuple[Stage, ...], message: str) -> None:
    evidence = Evidence(stages=given_stages)
    advice = advise(Case(), evidence, decide(evidence))
    assert any(message in line for item in advice for line in (item.reason, *item.commands))


def test_samples_in_another_order_leave_the_data_undecided_in_files() -> None:
    """They change no mean loss, but every value of the network."""
    tokens = np.arange(24).reshape(4, 6)
    batches = [
        Batch(name, "file", "a saved batch", {"tokens": rows})
        for name, rows in (("ms", tokens[[3, 1, 0, 2]]), ("pt", tokens))
    ]
    data = compare_batches(*batches)
    assert data.verdict == "agree"
    decision = decide_from(
        data.to_stage(), *(stage for stage in COMPLETE if stage.name != "data"), data=data
    )
    assert decision.outcome == "inconclusive"
    assert "data" in decision.candidates


def test_what_the_network_read_counts_more_than_the_files(compared_orders: DataComparison) -> None:
    """A permuted batch in dumps is the data, however many other stages agree."""
    stages = make_stages(weights="agree", norms="agree", optimizer="agree", backward="agree")
    decision = decide_from(compared_orders.to_stage(), *stages, data=compared_orders)
    assert decision.cause == "data"
    assert "in another order: 3, 1, 0, 2" in decision.headline


def test_dumps_without_labels_do_not_hide_that_the_labels_in_the_files_differ() -> None:
    """A loss that reads its tokens as labels has no labels to record."""
    tokens, labels = np.arange(24).reshape(4, 6), np.arange(24)[::-1].reshape(4, 6)
    dumped = [
        Batch("ms", "dump", "a dump", {"tokens": tokens}),
        Batch("pt", "dump", "a dump", {"tokens": tokens, "labels": labels}),
    ]
    given = [
        Batch("ms", "file", "a saved batch", {"tokens": tokens, "labels": tokens}),
        Batch("pt", "file", "a saved batch", {"tokens": tokens, "labels": labels}),
    ]
    comparison = choose_comparison(compare_batches(*dumped), compare_batches(*given))
    assert (comparison.verdict, comparison.target.kind) == ("differ", "file")
    data = compare_batches(*dumped)
    (observation,) = list_observations(Evidence(stages=(data.to_stage(),), data=data))
    assert observation.share == 0.5
    assert observation.message.endswith("; the labels were not compared")


@pytest.fixture
def compared_orders() -> DataComparison:
    """Batches in dumps, of which the target's has another order; the files agree."""
    tokens = np.arange(24).reshape(4, 6)
    dumped = [
        Batch("ms", "dump", "a dump", {"tokens": tokens[[3, 1, 0, 2]]}),
        Batch("pt", "dump", "a dump", {"tokens": tokens}),
    ]
    given = [Batch(name, "file", "a saved batch", {"tokens": tokens}) for name in ("ms", "pt")]
    comparison = choose_comparison(compare_batches(*dumped), compare_batches(*given))
    assert comparison.missing[-1].startswith("the batches that were given: agree")
    return comparison


@pytest.fixture
def recorded_pass() -> DumpEvidence:
    """Dumps of a step that agree in every value of both passes."""
    counts = {"ops": 100, "compared": 100, "reconverged": 0, "values": 100, "compared_values": 100}
    phases = {"forward": counts, "backward": counts}
    return summarize_dumps(
        make_result(
            verdict="aligned", findings=(), coverage={"target": phases, "reference": phases}
        )
    )


def test_a_dump_does_not_show_what_scales_the_gradients_after_the_backward_pass(
    recorded_pass: DumpEvidence, logs: Logs
) -> None:
    """Only the gradients that the optimizer gets rule out the rest of the backward pass."""
    stages = make_stages(data="agree", weights="agree", forward="agree", backward="agree")
    decision = decide_from(*stages, dumps=recorded_pass)
    assert "backward" not in {place.place for place in decision.ruled_out}
    assert "backward" in decision.candidates
    (line,) = (line for line in decision.missing if line.startswith("the backward pass"))
    assert line.endswith("; the gradients that the optimizer gets were not compared")
    decision = decide_from(*stages, dumps=recorded_pass, logs=logs(LOSS))
    assert "backward" in {place.place for place in decision.ruled_out}
