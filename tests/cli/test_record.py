"""``dumpdiff record``: the script runs as it would, and a dump is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dumpdiff

pytest.importorskip("torch")

SCRIPT = """
import sys
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("arguments", sys.argv[1:], __name__)
if "--fail" in sys.argv:
    raise ValueError("of the script")
"""


def run_record(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "dumpdiff", "record", "-o", str(folder / "dump")]
    command += ["--steps", "1-2", "--", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_script_runs_as_it_would_and_its_chosen_steps_are_recorded(tmp_path: Path) -> None:
    outcome = run_record(tmp_path, "--lr", "3")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "arguments ['--lr', '3'] __main__\n"
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step1", "step2"]
    trace = dumpdiff.read(tmp_path / "dump", step=1)
    assert "train.py:7" in set(trace.ops["source"])
    again = run_record(tmp_path)
    assert again.returncode == 2
    assert "is a recording already; give another folder" in again.stderr


def test_an_error_of_the_script_has_its_traceback(tmp_path: Path) -> None:
    outcome = run_record(tmp_path, "--fail")
    assert outcome.returncode == 1
    assert "ValueError: of the script" in outcome.stderr
    assert (tmp_path / "dump" / "step1").exists()
