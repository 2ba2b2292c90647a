"""Run ``msprobe compare`` (mindstudio-probe) on the same faults, where it can read the pair.

It cannot pair a graph-mode dump with a PyTorch dump. So it gets the faulty PyTorch dump against the
clean one: one framework, equal names, equal bits up to the fault, which makes its task easier. Its
answer is the first row that it marks ``warning`` or ``error``. dumpdiff gets the same pair.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import dumps
import faults
import formats
import recordings
import truth

import dumpdiff


@dataclass(frozen=True)
class Verdict:
    """Answers of both programs to one fault in PyTorch against the clean run."""

    case: str
    model: str
    held_out: bool
    form: str  #: tensors or statistics
    msprobe: bool  #: its first marked row is of an op that is right
    marked: int  #: rows that it marks
    dumpdiff: bool  #: its first finding names an op that is right


def judge_cases(
    cases: Iterable[faults.Case], work: Path, processes: int, report: Callable[[str], None]
) -> list[Verdict]:
    """Return a verdict for every fault on the PyTorch side that has an effect.

    msprobe's answers are cached between runs.
    """
    judged_cases = [case for case in cases if case.side == recordings.PYTORCH]
    with ThreadPoolExecutor(processes) as pool:
        verdicts = []
        for count, case_verdicts in enumerate(
            pool.map(lambda case: list(_judge_case(case, work)), judged_cases), 1
        ):
            report(f"msprobe compare {count}/{len(judged_cases)}")
            verdicts += case_verdicts
    return verdicts


def _judge_case(case: faults.Case, work: Path) -> Iterator[Verdict]:
    recording = recordings.list_recordings(case)[1]
    paths = [recordings.get_path(side, work) for side in (recording, recording.clean())]
    root_ops = truth.find_truth(dumps.load(paths[1]), dumps.load(paths[0])).ops
    if not root_ops:
        return
    for form in ("tensors", "statistics"):
        faulty, clean = (formats.make_form(formats.FORMS[form].reference, path) for path in paths)
        rows = _list_marked_rows(faulty, clean, recordings.get_mark(recording, work).read_text())
        first_row = rows[0] if rows else ""
        first = dumpdiff.align(faulty, clean).first_divergence
        yield Verdict(
            case=case.name,
            model=case.model,
            held_out=case.held_out,
            form=form,
            msprobe=any(first_row.startswith(f"{op}.") for op in root_ops),
            marked=len(rows),
            dumpdiff=first is not None and bool({*first.target_ops} & root_ops),
        )


def _list_marked_rows(faulty: Path, clean: Path, key: str) -> list[str]:
    """Return the names of the rows that msprobe marks, in its order."""
    cache_file = faulty.with_name(f"{faulty.name}.msprobe")
    if cache_file.exists() and (cached := json.loads(cache_file.read_text()))["key"] == key:
        return cached["rows"]
    out = faulty.with_name(f"{faulty.name}.msprobe_output")
    shutil.rmtree(out, ignore_errors=True)
    command = [
        Path(sys.executable).with_name("msprobe"),
        "compare",
        "-tp",
        faulty / "step0",
        "-gp",
        clean / "step0",
    ]
    run = subprocess.run([*command, "-o", out], capture_output=True, text=True, check=False)
    results = sorted(out.glob("*.csv"))
    if run.returncode or not results:
        raise SystemExit(f"msprobe failed on {faulty}:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    with results[0].open(newline="") as file:
        rows = [
            row["NPU Name"] for row in csv.DictReader(file) if row["Result"] in ("warning", "error")
        ]
    shutil.rmtree(out)
    cache_file.write_text(json.dumps({"key": key, "rows": rows}))
    return rows
