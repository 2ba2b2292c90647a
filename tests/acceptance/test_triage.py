"""Ten pairs of real trainings, each triaged from all its files: the cause and the reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from schemas import check

import dumpdiff
from dumpdiff.cli import main

from . import triage_cases

pytestmark = [pytest.mark.record, pytest.mark.usefixtures("shared_updates")]

#: Case -> exit code, and what the first line must contain.
EXPECTED = {
    "none": (0, "no cause found: the data, the weights, the forward pass, the backward pass"),
    "setting": (11, "rotary base: 500000"),
    "weights": (13, "mlp.gate_proj.weight: the reference's layers.*.mlp.up_proj.weight"),
    "batch": (12, "token ids: another batch"),
    "label-shift": (12, "labels: the target's are the reference's, shifted forward by 1"),
    "forward": (14, "layers.1.attention"),
    "backward": (15, "layers.1 behaves as the gradient of one branch missing"),
    "optimizer": (
        16,
        "no bias correction (as MindSpore AdamWeightDecay) against bias correction (as AdamW)",
    ),
    "schedule": (17, "learning rates diverge at step "),
    "precision": (18, "only the embedding's norm differs"),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_the_cause_of_a_recorded_case(
    case: str, triage_run: Callable[..., Path], tmp_path: Path
) -> None:
    target, reference = triage_cases.train_pair(triage_run, case)
    arguments = ["triage", "--init", str(target), str(reference), "-o", str(tmp_path / "case.yaml")]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    steps = str(triage_cases.STEPS[case])
    files = [f"--{form}={tmp_path / form}" for form in ("json", "html", "markdown", "junit")]
    result = CliRunner().invoke(
        main, ["triage", str(tmp_path / "case.yaml"), "--min-steps", steps, *files]
    )
    code, summary = EXPECTED[case]
    first, _, details = result.stdout.partition("\n")
    assert (result.exit_code, first.startswith("triage: ")) == (code, True), result.output
    assert summary in " ".join(result.stdout.split())
    assert "next\n" in details
    written = json.loads((tmp_path / "json").read_text())
    check(written)
    assert len(written["stages"]) == 9, "every stage had inputs"
    assert all((tmp_path / form).stat().st_size > 0 for form in ("html", "markdown", "junit"))


def test_a_run_agrees_with_itself(tmp_path: Path) -> None:
    """Its dump has its recorder's config.json, which says nothing about the training."""
    dumpdiff.demo(tmp_path / "demo")
    run = str(tmp_path / "demo" / "megatron")
    result = CliRunner().invoke(main, ["triage", run, run, "--min-steps", "4"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("triage: no cause found: the data, the weights")


def test_a_constant_that_differs_between_dumps_is_no_weight(
    triage_run: Callable[..., Path],
) -> None:
    """Only the dumps of the case ``setting``: without settings and checkpoints."""
    target, reference = triage_cases.train_pair(triage_run, "setting")
    result = CliRunner().invoke(
        main, ["triage", "-t", f"dump={target / 'dump'}", "-r", f"dump={reference / 'dump'}"]
    )
    assert result.exit_code == 14, result.output
    assert "0.attention: rope-theta, target is wrong" in result.stdout.partition("\n")[0]
    assert "layers.0.attention behaves as rotary base 500000; the reference has 10000" in (
        result.stdout
    )
    assert "weights, by forward: 21 parameters in the dumps agree" in result.stdout
