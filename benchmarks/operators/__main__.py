"""Compare sound pairs of single operators: MindSpore, in both modes, and PyTorch.

    python benchmarks/operators [--work DIR] [--only 'gelu*'] [--wide] [--statistics] [--failures]

needs the package installed with ``.[test]``. Records every form of the entries of ``entries.py`` as
a small network (half an hour on one core; recordings in DIR are used again) and compares the first
form of one framework with all forms of the other. All pairs are sound: what is not ``aligned`` is
listed with its first finding. ``--wide``: numbers with a deviation of 3.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise")]

import formats  # noqa: E402
from entries import ENTRIES  # noqa: E402

import dumpdiff  # noqa: E402

TARGETS = ("mindspore", "mindspore_pynative")


@dataclass(frozen=True)
class Pair:
    """A target and a reference, by the names of their recordings."""

    framework: str  #: of the target
    target: str
    reference: str


@dataclass(frozen=True)
class Outcome:
    pair: Pair
    verdict: str
    summary: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/dumpdiff-operators"))
    parser.add_argument("--only", default="*", help="entries whose name is like one of these")
    parser.add_argument("--wide", action="store_true", help="numbers with a deviation of 3")
    parser.add_argument("--statistics", action="store_true", help="compare statistics only")
    parser.add_argument("--no-recording", action="store_true", help="take what is recorded")
    args = parser.parse_args()
    pairs = list(iterate_pairs(args.only, args.wide))
    if not args.no_recording:
        record(args.work, pairs)
    counts: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        outcome = compare(args.work / "recordings", pair, args.statistics)
        counts[pair.framework, outcome.verdict] += 1
        if outcome.verdict != "aligned":
            print(pair.framework, pair.target, pair.reference, outcome.verdict, outcome.summary,
                  flush=True)  # fmt: skip
    for (framework, verdict), count in sorted(counts.items()):
        print(f"| {framework} | {verdict} | {count} |")


def iterate_pairs(pattern: str, is_wide: bool) -> Iterator[Pair]:
    ending = ":wide" if is_wide else ""
    for name, entry in ENTRIES.items():
        if not any(fnmatch(name, word) for word in pattern.split(",")):
            continue
        forms = [(form, 0) for form in range(len(entry.mindspore))]
        forms += [(0, form) for form in range(1, len(entry.pytorch))]
        for framework in TARGETS:
            for target, reference in forms:
                yield Pair(framework, f"{name}:{target}{ending}", f"{name}:{reference}{ending}")


def record(work: Path, pairs: list[Pair]) -> None:
    names = {"pytorch": dict.fromkeys(pair.reference for pair in pairs)}
    for framework in TARGETS:
        names[framework] = dict.fromkeys(p.target for p in pairs if p.framework == framework)
    for framework, recordings in names.items():
        command = [sys.executable, str(HERE / "record.py"), framework, str(work), *recordings]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare(recordings: Path, pair: Pair, is_statistics: bool) -> Outcome:
    folders = [
        recordings / framework / name.replace(":", "-")
        for framework, name in ((pair.framework, pair.target), ("pytorch", pair.reference))
    ]
    for folder in folders:
        if not (folder / "loss.txt").exists():
            error = folder / "error.txt"
            lines = error.read_text().splitlines() if error.exists() else []
            return Outcome(pair, "not recorded", " ".join(lines[-1:]))
    losses = [float((folder / "loss.txt").read_text()) for folder in folders]
    try:
        if is_statistics:
            folders = list(formats.make_pair(formats.FORMS["statistics"], *folders))
        result = dumpdiff.align(*folders)
    except Exception as error:
        return Outcome(pair, f"{type(error).__name__}", str(error))
    summary = f"{losses[0]:.7g} {losses[1]:.7g} {'; '.join(result.weaknesses)}"
    for finding in result.findings[:1]:
        causes = [f"{c.name}: {c.text}" for c in finding.causes[:1]]
        error = finding.metrics.get("error", float("nan"))
        summary += f"\n    {finding.title}: {error:.1e}, tolerance {finding.tolerance:.1e} {causes}"
    return Outcome(pair, str(result.verdict), summary)


if __name__ == "__main__":
    main()
