"""``dumpdiff logs`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from schemas import check

from .conftest import Run

LOGS = Path(__file__).parents[1] / "samples" / "logs"
NEW, OLD, NAN = (
    LOGS / "megatron_0.17.log",
    LOGS / "megatron_0.12.log",
    LOGS / "megatron_0.12_nan.log",
)


@pytest.mark.parametrize(
    ("arguments", "code", "begins"),
    [
        ((NEW, OLD, "--min-steps", 6), 0, "logs agree: 6 steps within the migration standard"),
        ((NAN, OLD), 1, "logs differ: learning rates diverge at step 2"),
        (
            (NEW, OLD),
            3,
            "logs inconclusive: 6 steps compared, at least 1000 are required; all else agrees",
        ),
    ],
)
def test_the_first_line_is_the_answer_and_the_exit_code(
    run: Run, arguments: tuple[Path | str | int, ...], code: int, begins: str
) -> None:
    result = run("logs", *arguments, "-q")
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)
    assert result.stdout.startswith(begins)


def test_the_report_names_every_criterion(run: Run) -> None:
    report = run("logs", NEW, OLD).stdout
    for name in ("first loss", "second loss", "mean loss", "global norm", "learning rate", "steps"):
        assert name in report


def test_a_baseline_is_read(run: Run) -> None:
    assert (
        "inside the band of 1 further run of the reference"
        in run("logs", NEW, OLD, "--baseline", OLD).stdout
    )


def test_the_json_holds_criteria_and_curves(run: Run) -> None:
    document = json.loads(run("logs", NEW, OLD, "--json", "-", "--min-steps", 6).stdout)
    check(document, "logs")
    assert (document["name"], document["verdict"], document["onset"]) == ("logs", "agree", "never")
    assert [check["name"] for check in document["checks"]][:2] == ["first loss", "second loss"]
    assert document["curves"]["step"] == [1, 2, 3, 4, 5, 6]


def test_the_curves_are_drawn_on_demand(run: Run, tmp_path: Path) -> None:
    run("logs", NEW, OLD, "--svg", tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().startswith("<svg xmlns=")


def test_a_log_without_steps_is_one_line_and_exit_code_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("nothing\n")
    result = run("logs", tmp_path / "a.log", OLD)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no training step is printed in it" in result.stderr
