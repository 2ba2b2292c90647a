"""Recordings: made in one process per dump when they are needed, and kept.

A recording is made again when the nets of its framework, or the weights, batch or knobs of its
model, change. A family's nets are its own.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import families
import faults

HERE = Path(__file__).resolve().parent
MINDSPORE, PYTORCH = "mindspore", "pytorch"
_SOURCES = {MINDSPORE: "mindspore_nets", PYTORCH: "pytorch"}


@dataclass(frozen=True)
class Recording:
    """One dump: framework, model, fault, and further options of the recording script."""

    framework: str
    model: str
    fault: str = "none"
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the folder: letters, digits, '-' and '_', as MindSpore requires."""
        words = (word.strip("-").replace(".", "p").replace("@", "_at_") for word in self.options)
        return "-".join([self.model, self.framework, self.fault.replace("@", "_at_"), *words])

    def clean(self) -> Recording:
        """Return the same recording without the fault."""
        return Recording(self.framework, self.model, "none", self.options)


def list_recordings(case: faults.Case) -> tuple[Recording, Recording]:
    """Return target and reference of a case: MindSpore and PyTorch, one of them with the fault."""
    sides = (
        (case.target_framework, case.target_options),
        (case.reference_framework, case.reference_options),
    )
    target, reference = (
        Recording(
            framework,
            case.model,
            case.fault if case.side == framework.partition("_")[0] else "none",
            tuple(options),
        )
        for framework, options in sides
    )
    return target, reference


def get_path(recording: Recording, work: Path) -> Path:
    """Return the folder of a recording, which may not exist yet."""
    return work / "recordings" / recording.name


def make_recordings(
    requested: Iterable[Recording], work: Path, processes: int, report: Callable[[str], None]
) -> dict[Recording, str]:
    """Make recordings that are missing or outdated; return the error of each one that failed."""
    missing = [
        recording for recording in dict.fromkeys(requested) if not _is_current(recording, work)
    ]
    errors: dict[Recording, str] = {}
    with ThreadPoolExecutor(processes) as pool:
        outcomes = pool.map(lambda recording: (recording, _record(recording, work)), missing)
        for count, (recording, error) in enumerate(outcomes, 1):
            report(f"recorded {count}/{len(missing)} {recording.name}{': failed' if error else ''}")
            if error:
                errors[recording] = error
    return errors


def _record(recording: Recording, work: Path) -> str:
    """Run the script; return '' if it succeeded, else the end of its output."""
    out = get_path(recording, work)
    out.parent.mkdir(parents=True, exist_ok=True)
    for old_path in (out, *out.parent.glob(f"{out.name}.*")):
        shutil.rmtree(old_path) if old_path.is_dir() else old_path.unlink(missing_ok=True)
    script = _get_script(recording.framework, recording.model)
    fault = ["--fault", recording.fault] if recording.fault != "none" else []
    command = [
        sys.executable,
        str(script),
        str(out),
        "--model",
        recording.model,
        *fault,
        *recording.options,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        return f"{' '.join(command)}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
    get_mark(recording, work).write_text(_compute_digest(recording))
    return ""


def _is_current(recording: Recording, work: Path) -> bool:
    made_of = get_mark(recording, work)
    return made_of.exists() and made_of.read_text() == _compute_digest(recording)


def get_mark(recording: Recording, work: Path) -> Path:
    """Return the file that holds the digest of what a finished recording was made from."""
    out = get_path(recording, work)
    return out.with_name(f"{out.name}.digest")


def _compute_digest(recording: Recording) -> str:
    digest = hashlib.sha256(_hash_sources(recording.framework, recording.model).encode())
    model = faults.build(recording.model, recording.fault)
    for field in fields(model):
        if field.name != "weights":
            digest.update(f"{field.name}={getattr(model, field.name)!r}\n".encode())
    for name, values in sorted(model.weights.items()):
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()


def _get_script(framework: str, model: str) -> Path:
    folder = HERE / "families" if model in families.NAMES else HERE
    return folder / f"record_{framework}.py"


@cache
def _hash_sources(framework: str, model: str) -> str:
    files = [*_list_sources(framework, model), _get_script(framework, model)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def _list_sources(framework: str, model: str) -> list[Path]:
    """Return the modules of a net; MindSpore's is the same in both of its modes."""
    if model in families.NAMES:
        folder = HERE / "families" / model
        return [folder / "architecture.py", *folder.glob(f"{framework.partition('_')[0]}_*.py")]
    return list((HERE / _SOURCES[framework.partition("_")[0]]).rglob("*.py"))
