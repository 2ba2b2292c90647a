"""Measure live isolation: are all faults of a model found, each hidden by the one before it?

    python benchmarks/capture/isolation.py [--only 'skips*'] [--write]

needs torch and mindstudio-probe. Each network of isolation_models runs once without a fault, and
then with all of its faults, round after round: align, take the first finding that can be
grafted, and run again. ``--write`` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise"), str(HERE.parents[1])]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import isolation_models  # noqa: E402
import table  # noqa: E402

import dumpdiff  # noqa: E402
from dumpdiff.model.errors import DumpError  # noqa: E402
from dumpdiff.model.trace import FORWARD, Trace  # noqa: E402

DOCUMENT = HERE.parents[1] / "docs" / "benchmarks.md"
_MODULE = re.compile(r"Module\.(?P<path>.+)\.[^.]+\.forward\.\d+")  #: record of a module call
_MORE_ROUNDS = 3  #: that a model may take before it counts as not found


@dataclass(frozen=True)
class Outcome:
    """What the rounds of one model came to."""

    model: isolation_models.Model
    named: tuple[frozenset[str], ...]  #: of each grafted finding, the modules around its ops
    grafted: tuple[str, ...]  #: modules whose output was replaced, in this order
    rounds: int  #: dumps of the target, with the one that shows nothing new

    @property
    def n_found(self) -> int:
        """Return how many faulty modules a finding named an op of."""
        return sum(any(fault in modules for modules in self.named) for fault in self.model.faults)

    @property
    def n_wrong(self) -> int:
        """Return how many findings named no op of a faulty module."""
        return sum(modules.isdisjoint(self.model.faults) for modules in self.named)

    @property
    def is_complete(self) -> bool:
        """Return whether all faults were found in at most as many rounds plus one."""
        n_faults = len(self.model.faults)
        return self.n_found == n_faults and self.rounds <= n_faults + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/dumpdiff-isolation"))
    parser.add_argument("--only", action="append", help="models whose name is like this")
    parser.add_argument("--write", action="store_true", help=f"write docs/{DOCUMENT.name}")
    args = parser.parse_args()
    outcomes = []
    for model in isolation_models.MODELS:
        if any(fnmatch(model.name, pattern) for pattern in args.only or ["*"]):
            outcomes.append(isolate_faults(model, args.work / model.name))
            print(f"{model.name}: {outcomes[-1].grafted}", file=sys.stderr, flush=True)
    text = format_table(outcomes)
    print(text)
    if args.write:
        table.write_section(DOCUMENT, "isolation", text + "\n")


def isolate_faults(model: isolation_models.Model, folder: Path) -> Outcome:
    """Play the rounds of one model in ``folder``, which is removed first.

    Raises subprocess.CalledProcessError if a run fails, for example because of the pasted code.
    """
    shutil.rmtree(folder, ignore_errors=True)
    reference = record(model, folder / "reference")
    grafted: list[str] = []
    named: list[frozenset[str]] = []
    code, number = "", 0
    while number < len(model.faults) + 1 + _MORE_ROUNDS:
        number += 1
        target = record(model, folder / f"round{number}", "--faulty", code=code)
        saved = folder / f"result{number}"
        result = dumpdiff.align(target, reference, output=saved)
        module = ""
        for finding in result.findings:
            if finding.phase == FORWARD and not module:
                module, code = graft_finding(saved, finding.rank, folder / "graft", code)
                modules = list_modules(dumpdiff.read(target), finding.target_ops)
        if not module:
            break
        grafted.append(module)
        named.append(modules)
    return Outcome(model, tuple(named), tuple(grafted), number)


def list_modules(trace: Trace, op_names: Sequence[str]) -> frozenset[str]:
    """Return the paths of the modules around ops, and of the ops that are calls of modules."""
    names, parents = trace.ops["name"].tolist(), trace.ops["parent"].tolist()
    paths = set()
    for name in op_names:
        call = names.index(name)
        while call >= 0:
            match = _MODULE.match(names[call])
            if match:
                paths.add(match["path"])
            call = parents[call]
    return frozenset(paths)


def graft_finding(saved: Path, rank: int, folder: Path, code: str) -> tuple[str, str]:
    """Return the module around a finding and the code that replaces its output.

    '' and the old code, if there is no such module, or if it was replaced and still differs inside.
    """
    old_files = set(folder.iterdir()) if folder.exists() else set()
    try:
        code = dumpdiff.graft(saved, rank, folder=folder)
    except DumpError:
        return "", code
    (file,) = set(folder.iterdir()) - old_files
    return file.name.partition(".output.")[0], code


def record(model: isolation_models.Model, folder: Path, *options: str, code: str = "") -> Path:
    """Return the dump of a run, with pasted code if there is some."""
    folder.mkdir(parents=True)
    if code:
        (folder / "graft_modules.py").write_text(code)
    command = [sys.executable, str(HERE / "record_isolation.py"), str(folder), model.name, *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "dump"


def format_table(outcomes: list[Outcome]) -> str:
    """Return the Markdown table of all models, and a row for each number of faults."""
    lines = [
        "| model | faults | found | findings elsewhere | rounds "
        "| all found, one round more at most |",
        "|---|--:|--:|--:|--:|---|",
    ]
    lines += [
        f"| {outcome.model.name} | {len(outcome.model.faults)} | {outcome.n_found} "
        f"| {outcome.n_wrong} | {outcome.rounds} | {'yes' if outcome.is_complete else 'no'} |"
        for outcome in outcomes
    ]
    n_complete = sum(outcome.is_complete for outcome in outcomes)
    n_faults = sum(len(outcome.model.faults) for outcome in outcomes)
    n_found = sum(outcome.n_found for outcome in outcomes)
    n_wrong = sum(outcome.n_wrong for outcome in outcomes)
    n_rounds = sum(outcome.rounds for outcome in outcomes)
    lines.append(
        f"| all | {n_faults} | {n_found} | {n_wrong} | {n_rounds} "
        f"| {n_complete} of {len(outcomes)} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
