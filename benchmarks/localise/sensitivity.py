"""Measure how small an error dumpdiff finds: one op of the reference is off by 1e-5 ... 0.5.

The size is a share of the norm of the op's result; the error propagates. Ten operators, evenly
spaced over the forward pass of one model in PyTorch, each with six sizes, against the clean run in
MindSpore's graph mode.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import dumps
import formats
import recordings
import score
import truth

import dumpdiff

MODEL = "llama"
TARGET = recordings.Recording(recordings.MINDSPORE, MODEL, "none", ("--names", "legacy"))
REFERENCE = recordings.Recording(recordings.PYTORCH, MODEL, "none", ("--names", "hf"))
SIZES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)
OPERATORS = 10
FORMS = ("tensors", "statistics")


@dataclass(frozen=True)
class Point:
    """One operator, off by ``size`` of its norm, in one form."""

    operator: str
    size: float
    form: str
    found: bool  #: the first finding names it
    verdict: str


def measure_curve(work: Path, processes: int, report: Callable[[str], None]) -> list[Point]:
    """Return all points; cached ones if neither dumpdiff nor the recordings changed."""
    if failed := recordings.make_recordings([TARGET, REFERENCE], work, processes, report):
        raise SystemExit("\n".join(failed.values()))
    made_of = "".join(
        recordings.get_mark(recording, work).read_text() for recording in (TARGET, REFERENCE)
    )
    recorded = hashlib.sha256(
        (made_of + Path(__file__).with_name("record_perturbed.py").read_text()).encode()
    )
    key = hashlib.sha256((recorded.hexdigest() + score.hash_code()).encode()).hexdigest()
    cache_file = work / "sensitivity.json"
    if cache_file.exists() and (cached := json.loads(cache_file.read_text()))["key"] == key:
        return [Point(**point) for point in cached["points"]]
    _record(work, recorded.hexdigest(), report)
    count = OPERATORS * len(SIZES)
    with ProcessPoolExecutor(processes) as pool:
        points = []
        for number, run_points in enumerate(pool.map(partial(_judge_run, work), range(count)), 1):
            report(f"sensitivity {number}/{count}")
            points += run_points
    cache_file.write_text(json.dumps({"key": key, "points": [asdict(point) for point in points]}))
    return points


def _record(work: Path, key: str, report: Callable[[str], None]) -> None:
    out = work / "perturbed"
    mark = out / "digest"
    if mark.exists() and mark.read_text() == key:
        return
    report(f"recording {OPERATORS * len(SIZES)} disturbed runs")
    shutil.rmtree(out, ignore_errors=True)
    script = recordings.HERE / "record_perturbed.py"
    sizes = [word for size in SIZES for word in ("--by", repr(size))]
    arguments = ["--model", MODEL, *REFERENCE.options, "--operators", str(OPERATORS), *sizes]
    run = subprocess.run(
        [sys.executable, script, out, *arguments], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{script.name} failed:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    mark.write_text(key)


def _judge_run(work: Path, number: int) -> list[Point]:
    """Judge one disturbed run in every form; return [] if no recorder sees the changed result."""
    disturbed = work / "perturbed" / str(number)
    root = truth.find_truth(dumps.load(recordings.get_path(REFERENCE, work)), dumps.load(disturbed))
    points = []
    for name in FORMS if root.ops else ():
        form = formats.FORMS[name]
        target = formats.make_form(form.target, recordings.get_path(TARGET, work))
        result = dumpdiff.align(target, formats.make_form(form.reference, disturbed))
        first = result.first_divergence
        named = first is not None and bool({*first.reference_ops} & root.ops)
        points.append(
            Point(
                root.first,
                SIZES[number % len(SIZES)],
                name,
                named and result.verdict == "diverged",
                result.verdict,
            )
        )
    return points
