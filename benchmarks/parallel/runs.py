"""Recordings of parallel runs: made when they are missing, and kept.

Recordings of correct runs and tuned faults are in ``recordings/``, those of held-out faults in
``held_out/``. After a change of the networks, delete the folder of what shall be made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTORCH, MINDSPORE, MEGATRON = "pytorch", "mindspore", "megatron"
RECORDINGS, HELD_OUT = "recordings", "held_out"  #: folders
TIMEOUT = 300  #: seconds; ranks that wait for each other never end


@dataclass(frozen=True)
class Recording:
    """One run of all ranks."""

    framework: str
    network: str
    layout: str
    fault: str = ""  #: as :func:`injections.parse_injection` reads it
    #: 'float64': the same run with matrix products summed otherwise; '' is the usual way
    summation: str = ""
    steps: int = 1

    @property
    def name(self) -> str:
        """Return the name of the folder: letters, digits, '-' and '_', as MindSpore requires."""
        words = [self.framework, self.network, self.layout]
        words += [f"steps{self.steps}"] if self.steps > 1 else []
        words += [self.summation] if self.summation else []
        words += [self.fault.replace("@", "_at_").replace("/", "_on_").replace(",", "_")]
        return "-".join(word for word in words if word)

    def clean(self) -> Recording:
        """Return the same run without the fault."""
        return Recording(self.framework, self.network, self.layout, steps=self.steps)

    def list_arguments(self) -> list[str]:
        """Return the arguments of the recording script."""
        arguments = ["--network", self.network, "--layout", self.layout]
        arguments += ["--fault", self.fault] if self.fault else []
        arguments += ["--summation", self.summation] if self.summation else []
        arguments += ["--steps", str(self.steps)] if self.steps > 1 else []
        return arguments


def make_recordings(
    requested: Iterable[tuple[Recording, Path]], report: Callable[[str], None]
) -> dict[Recording, str]:
    """Make the recordings that are missing, each in its path; return the errors."""
    errors: dict[Recording, str] = {}
    for recording, path in dict.fromkeys(requested):
        if path.exists():
            continue
        error = _record(recording, path)
        name = "a held-out fault" if path.parent.name == HELD_OUT else recording.name
        report(f"recorded {name}{': failed' if error else ''}")
        if error:
            errors[recording] = error
    return errors


def _record(recording: Recording, path: Path) -> str:
    """Run the script in an unfinished folder; return '' or the end of its output."""
    unfinished = path.parent.parent / "unfinished" / path.name
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    script = HERE / f"record_{recording.framework}.py"
    command = [sys.executable, str(script), str(unfinished), *recording.list_arguments()]
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)}\nnot finished after {TIMEOUT} s"
    if run.returncode:
        return f"{' '.join(command)}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
    unfinished.rename(path)
    (path / "output.txt").write_text("".join(
        f"{line}\n" for line in run.stdout.splitlines() if line.startswith("losses")
    ))  # fmt: skip
    return ""
