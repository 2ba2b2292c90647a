"""Recordings of the trainings: made by the scripts of ``fixtures/`` where they are missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from cases import Case

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def find_recording(side: tuple[str, str], steps: int, size: str, work: Path) -> Path:
    """Return the folder of one training."""
    framework, fault = side
    return work / f"{framework}-{fault.replace('+', '_')}-{steps}-{size}"


def make_recordings(cases: Iterable[Case], work: Path, report: Callable[[str], None]) -> None:
    """Record the trainings that are missing. Raises RuntimeError if a script fails."""
    work.mkdir(parents=True, exist_ok=True)
    for case in cases:
        for side in (case.target, case.reference):
            folder = find_recording(side, case.steps, case.size, work)
            if not folder.exists():
                _record(side, case.steps, case.size, folder)
                report(f"recorded {folder.name}")


def _record(side: tuple[str, str], steps: int, size: str, folder: Path) -> None:
    """Record one training in an unfinished folder, then give it its name."""
    framework, fault = side
    unfinished = folder.with_name(f"{folder.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    script = FIXTURES / f"train_{framework}.py"
    command = [sys.executable, str(script), str(unfinished)]
    command += ["--fault", fault, "--steps", str(steps), "--size", size]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FIXTURES)
    if run.returncode:
        output = (run.stdout + run.stderr)[-2000:]
        raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
    unfinished.rename(folder)
