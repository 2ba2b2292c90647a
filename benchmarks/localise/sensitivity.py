"""How small an error is found: one op of the reference off by 1e-5 ... 0.5 of its norm, and all that follows from it.

Ten operators, evenly spaced over the forward pass of one model in PyTorch, each at six sizes, against the clean run in
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


def curve(work: Path, processes: int, say: Callable[[str], None]) -> list[Point]:
    """All points, those of the last run if neither dumpdiff nor the recordings changed."""
    if failed := recordings.make([TARGET, REFERENCE], work, processes, say):
        raise SystemExit("\n".join(failed.values()))
    made_of = "".join(recordings.mark(one, work).read_text() for one in (TARGET, REFERENCE))
    recorded = hashlib.sha256(
        (made_of + Path(__file__).with_name("record_perturbed.py").read_text()).encode()
    )
    key = hashlib.sha256((recorded.hexdigest() + score.code()).encode()).hexdigest()
    kept = work / "sensitivity.json"
    if kept.exists() and (held := json.loads(kept.read_text()))["key"] == key:
        return [Point(**point) for point in held["points"]]
    _record(work, recorded.hexdigest(), say)
    count = OPERATORS * len(SIZES)
    with ProcessPoolExecutor(processes) as pool:
        found = []
        for number, made in enumerate(pool.map(partial(_judge, work), range(count)), 1):
            say(f"sensitivity {number}/{count}")
            found += made
    kept.write_text(json.dumps({"key": key, "points": [asdict(point) for point in found]}))
    return found


def _record(work: Path, key: str, say: Callable[[str], None]) -> None:
    out = work / "perturbed"
    mark = out / "digest"
    if mark.exists() and mark.read_text() == key:
        return
    say(f"recording {OPERATORS * len(SIZES)} disturbed runs")
    shutil.rmtree(out, ignore_errors=True)
    script = recordings.HERE / "record_perturbed.py"
    sizes = [word for size in SIZES for word in ("--by", repr(size))]
    given = ["--model", MODEL, *REFERENCE.options, "--operators", str(OPERATORS), *sizes]
    run = subprocess.run(
        [sys.executable, script, out, *given], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{script.name} failed:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    mark.write_text(key)


def _judge(work: Path, number: int) -> list[Point]:
    """One disturbed run in every form; nothing if the operator wrote what no recorder sees."""
    disturbed = work / "perturbed" / str(number)
    root = truth.find(dumps.load(recordings.path(REFERENCE, work)), dumps.load(disturbed))
    found = []
    for name in FORMS if root.ops else ():
        form = formats.FORMS[name]
        target = formats.made(form.target, recordings.path(TARGET, work))
        result = dumpdiff.align(target, formats.made(form.reference, disturbed))
        first = result.first_divergence
        named = first is not None and bool({*first.reference_ops} & root.ops)
        found.append(
            Point(
                root.first,
                SIZES[number % len(SIZES)],
                name,
                named and result.verdict == "diverged",
                result.verdict,
            )
        )
    return found
