"""``dumpdiff optimizer``: the answer in the first line, the exit code, the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from optimizers.sgd_run import save_sgd_run
from schemas import check

from .conftest import Run


def test_one_run(run: Run, tmp_path: Path) -> None:
    outcome = run("optimizer", save_sgd_run(tmp_path / "a", momentum=0.9))
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith(
        "SGD with momentum, learning rate 0.1, momentum 0.9 (2 of 2 parameters)\n"
    )
    assert "next best" in outcome.stdout


def test_two_runs_of_one_rule(run: Run, tmp_path: Path) -> None:
    outcome = run("optimizer", save_sgd_run(tmp_path / "a"), save_sgd_run(tmp_path / "b"), "-q")
    assert (outcome.exit_code, outcome.stdout) == (
        0,
        "same rule: SGD, learning rate 0.1 (2 of 2 parameters)\n",
    )


def test_two_rules(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "optimizer",
        save_sgd_run(tmp_path / "a"),
        save_sgd_run(tmp_path / "b", rate=0.2),
        "--json",
        tmp_path / "o.json",
    )
    assert outcome.exit_code == 1
    assert outcome.stdout.startswith(
        "different rules: learning rate 0.1 against learning rate 0.2\n"
    )
    document = json.loads((tmp_path / "o.json").read_text())
    check(document, "optimizer")
    assert (document["verdict"], document["paired"]) == ("differ", 2)
    (difference,) = document["differences"]
    assert difference["name"] == "learning-rate"
    (group,) = document["reference"]["groups"]
    assert (group["rule"]["name"], group["state"]) == ("SGD", "explained")
    assert group["rule"]["learning_rates"] == pytest.approx([0.2, 0.2])
    assert group["rule"]["residual"] < 1e-5 < group["next_best"]["residual"]


def test_one_step_is_inconclusive(run: Run, tmp_path: Path) -> None:
    outcome = run("optimizer", save_sgd_run(tmp_path / "a", steps=1), "-q")
    assert outcome.exit_code == 3
    assert outcome.stdout == (
        "inconclusive: SGD, SGD with momentum, RAdam and SGD with Nesterov momentum explain these"
        " steps equally well; record a second step\n"
    )


def test_no_rule(run: Run, tmp_path: Path) -> None:
    outcome = run("optimizer", save_sgd_run(tmp_path / "a", with_other_gradients=True))
    assert outcome.exit_code == 3
    assert outcome.stdout.startswith(
        "inconclusive: no rule explains 2 of 2 parameters; nearest is "
    )
    assert "no rule explains this; nearest: " in outcome.stdout


def test_wrong_settings_are_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("momentum: 0.5")
    outcome = run(
        "optimizer",
        save_sgd_run(tmp_path / "a", momentum=0.9, steps=3),
        "--settings",
        tmp_path / "settings.yaml",
    )
    assert outcome.exit_code == 0
    assert "the settings say momentum 0.5; the weights moved by 0.9" in outcome.stdout


def test_a_learning_rate_that_is_wrong_may_be_a_scale(run: Run, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("lr: 0.2")
    outcome = run(
        "optimizer", save_sgd_run(tmp_path / "a"), "--settings", tmp_path / "settings.yaml", "-q"
    )
    assert "learning rate 0.2, gradients times 0.5 (or the learning rate was 0.1)" in outcome.stdout


def test_a_dash_writes_to_standard_output_and_moves_the_report(run: Run, tmp_path: Path) -> None:
    outcome = run("optimizer", save_sgd_run(tmp_path / "a"), "--json", "-")
    document = json.loads(outcome.stdout)
    check(document, "optimizer")
    assert (document["verdict"], document["reference"]) == ("explained", None)
    assert outcome.stderr.startswith("SGD, learning rate 0.1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["{run}", "--settings", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["{run}", "--json", "nowhere/at/all"], "cannot be written"),
        (["{run}", "b", "c"], "unexpected extra argument"),
        ([], "Missing argument 'TARGET'"),
    ],
)
def test_wrong_input_is_2_and_one_line(
    run: Run, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    folder = save_sgd_run(tmp_path / "a")
    outcome = run("optimizer", *(part.replace("{run}", str(folder)) for part in arguments))
    assert outcome.exit_code == 2
    assert complaint in outcome.stderr
