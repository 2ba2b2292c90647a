"""``dumpdiff dump-config msprobe``: the real msprobe records what the configuration says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run

#: Where the four pasted blocks go in a training script.
_TRAINING = """
import torch
{imports}
{debugger}
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    {start}
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {stop}
"""


@pytest.mark.record
def test_real_msprobe_records_what_the_configuration_says(run: Run, tmp_path: Path) -> None:
    """Steps 1 and 2, statistics of all, tensors of the second linear; the lines are pasted."""
    options = [
        "--framework",
        "pytorch",
        "--path",
        tmp_path / "dump",
        "--step",
        "1-2",
        "--tensor-list",
        "linear.1.forward",
    ]
    outcome = run("dump-config", "msprobe", *options, "-o", tmp_path / "config.json")
    assert outcome.exit_code == 0
    imports, debugger, start, stop = (
        block.split("\n", 1)[1] for block in outcome.stdout.split("\n\n")
    )
    script = _TRAINING.format(
        imports=imports,
        debugger=debugger,
        start=start.replace("\n", "\n    "),
        stop=stop.replace("\n", "\n    "),
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sorted(folder.name for folder in (tmp_path / "dump").iterdir()) == ["step1", "step2"]
    (dump,) = (tmp_path / "dump" / "step1").glob("*/dump.json")
    entries = json.loads(dump.read_text())["data"]
    assert {
        "Functional.linear.0.forward",
        "Functional.linear.1.forward",
        "Functional.gelu.0.backward",
    } <= set(entries)
    files = {
        file.name.rpartition(".forward")[0] for file in (dump.parent / "dump_tensor_data").iterdir()
    }
    assert files == {"Functional.linear.1"}


def test_the_configuration_alone_goes_to_standard_output(run: Run) -> None:
    outcome = run(
        "dump-config",
        "msprobe",
        "--framework",
        "mindspore",
        "--step",
        "all",
        "--path",
        "/data/dump",
    )
    config = json.loads(outcome.stdout)
    assert (config["step"], config["dump_path"], outcome.stderr) == ([], "/data/dump", "")


def test_an_option_that_msprobe_would_ignore_is_refused_in_one_line(run: Run) -> None:
    outcome = run("dump-config", "msprobe", "--framework", "mindspore", "--risk-level", "ALL")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "dumpdiff: msprobe 26.2: risk_level has no effect in mindspore\n"


@pytest.mark.parametrize("command", ["mindspore", "msprobe"])
def test_like_prints_the_cost_on_standard_error(
    run: Run, dump: Callable[[str], Path], command: str
) -> None:
    options = {
        "mindspore": ["--iteration", "0-4", "--elsewhere"],
        "msprobe": ["--framework", "pytorch", "--step", "0-4"],
    }
    outcome = run(
        "dump-config",
        command,
        *options[command],
        "--path",
        "/data/dump",
        "--like",
        dump("demo_pytorch"),
    )
    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout)
    assert outcome.stderr.startswith(f"based on {dump('demo_pytorch')}: 786 tensors, ")
    assert "per step and rank; 5 steps: 3,930 tensors, " in outcome.stderr


def test_like_a_folder_without_a_dump_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    outcome = run("dump-config", "msprobe", "--framework", "pytorch", "--like", tmp_path)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == f"dumpdiff: {tmp_path}: the folder is empty\n"
