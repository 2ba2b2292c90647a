"""Real training runs of three steps, recorded once per session; one process per framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dumpdiff.optimizers.inputs import read_run
from dumpdiff.optimizers.update_analysis import UpdateAnalysis

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "fixtures"  #: where the configuration of msprobe is written


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``recording("torch")``: the folder with a subfolder for each run of record_torch.py."""

    @cache
    def record_runs(framework: str) -> Path:
        output = tmp_path_factory.mktemp("optimizers") / framework
        script = HERE / f"record_{framework}.py"
        run = subprocess.run(
            [sys.executable, str(script), str(output)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(FIXTURES)])},
            cwd=tmp_path_factory.mktemp("scratch"),
        )
        assert run.returncode == 0, f"{script.name} failed:\n{run.stdout}\n{run.stderr}"
        return output

    return record_runs


@pytest.fixture(scope="session")
def analyze(recording: Callable[[str], Path]) -> Callable[..., UpdateAnalysis]:
    """``analyze("torch", "adamw")``: the update analysis of a run; a settings file is optional."""
    return cache(
        lambda framework, name, settings=None: read_run(str(recording(framework) / name), settings)
    )
