"""Compare ports of public models to MindSpore with their originals in PyTorch, sound and faulty.

    python -m venv /tmp/ports && /tmp/ports/bin/pip install -r benchmarks/ports/requirements.txt .
    /tmp/ports/bin/python benchmarks/ports [--work DIR] [--only 'swin*'] [--faults 2] [--pynative]

records each model of the YAML files beside this file (an hour on one core; recordings in DIR are
used again) and compares the port, in graph mode or PyNative, with the original, as it is and with
faults put into it. Where the losses differ, or ``differs`` says so, the port computes something
else, and that is to be found. Every third model is held out: ``--held-out`` compares these.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("localise", "architectures"))]

import formats  # noqa: E402
from entries import MINDSPORE, PYNATIVE, PYTORCH, Entry, list_faults, read_entries  # noqa: E402

import dumpdiff  # noqa: E402
from dumpdiff.model.finding import Finding  # noqa: E402

#: Relative difference of the losses of two programs that compute the same.
_MAX_LOSS_ERROR = 1e-4
#: Words for the pairs of a program and itself in another framework.
SOUND, DIFFERENT = "sound", "different"


@dataclass(frozen=True)
class Outcome:
    target: str
    reference: str
    kind: str  #: sound, different, or the fault
    verdict: str  #: or why there is none
    is_at_place: bool
    cause: str  #: right, another or none
    summary: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/dumpdiff-ports"))
    parser.add_argument("--only", default="*", help="models whose name is like one of these")
    parser.add_argument("--faults", type=int, default=2, help="faults of each model")
    parser.add_argument("--pynative", action="store_true", help="MindSpore without a graph")
    parser.add_argument("--statistics", action="store_true", help="compare statistics only")
    parser.add_argument("--held-out", action="store_true", help="compare what is held out")
    parser.add_argument("--no-recording", action="store_true", help="take what is recorded")
    args = parser.parse_args()
    work = args.work.resolve()
    framework = PYNATIVE if args.pynative else MINDSPORE
    patterns = args.only.split(",")
    entries = [
        entry
        for name, entry in sorted(read_entries().items())
        if any(fnmatch(name, pattern) for pattern in patterns)
    ]
    if not args.no_recording:
        record(work, framework, entries, args.faults)
    outcomes = []
    for entry in entries:
        if entry.is_held_out == args.held_out:
            for pair in iterate_pairs(work / "recordings", framework, entry, args.faults):
                outcome = compare(*pair, is_statistics=args.statistics)
                outcomes.append(outcome)
                print(format_outcome(outcome), flush=True)
    print(format_table(outcomes))


def record(work: Path, framework: str, entries: Sequence[Entry], n_faults: int) -> None:
    sound = [entry.name for entry in entries]
    faulty = [f"{entry.name}:{fault}" for entry in entries for fault in list_faults(entry.name)]
    script = [sys.executable, str(HERE / "record.py")]
    for arguments in (
        [PYTORCH, str(work), *sound],
        [framework, str(work), *sound],
        ["--faults", str(n_faults), PYTORCH, str(work), *faulty],
    ):
        subprocess.run([*script, *arguments], check=True, stdout=subprocess.DEVNULL)


def iterate_pairs(
    recordings: Path, framework: str, entry: Entry, n_faults: int
) -> Iterator[tuple[Entry, Path, Path, str]]:
    """Yield (entry, target, reference, fault) of what was recorded.

    A port that computes something else is compared as it is: its difference comes first, or hides
    the fault.
    """
    target, reference = (recordings / side / entry.name for side in (framework, PYTORCH))
    if not is_recorded(target):  # some ports are no graph
        target = recordings / PYNATIVE / entry.name
    yield entry, target, reference, ""
    if not entry.differs and is_recorded(target) and has_equal_loss(target, reference):
        faulty = [(fault, Path(f"{reference}-{fault}")) for fault in list_faults(entry.name)]
        recorded = [(fault, folder) for fault, folder in faulty if is_recorded(folder)]
        for fault, folder in recorded[:n_faults]:
            yield entry, target, folder, fault


def is_recorded(folder: Path) -> bool:
    return (folder / "loss.txt").exists()


def has_equal_loss(target: Path, reference: Path) -> bool:
    losses = [float((folder / "loss.txt").read_text()) for folder in (target, reference)]
    return abs(losses[0] - losses[1]) <= _MAX_LOSS_ERROR * abs(losses[1])


def read_error(folder: Path) -> str:
    path = folder / "error.txt"
    return " ".join(path.read_text().splitlines()[-1:]) if path.exists() else ""


def compare(
    entry: Entry, target: Path, reference: Path, fault: str, is_statistics: bool
) -> Outcome:
    from model_faults import FAULTS

    names = (target.name, reference.name)
    for folder in (target, reference):
        if not is_recorded(folder):
            return Outcome(*names, "", "not recorded", False, "none", read_error(folder))
    kind, causes = fault, entry.differs
    if fault:
        causes = FAULTS[fault].causes
    elif entry.differs or not has_equal_loss(target, reference):
        kind = DIFFERENT
    else:
        kind = SOUND
    folders = [target, reference]
    try:
        if is_statistics:
            folders = list(formats.make_pair(formats.FORMS["statistics"], *folders))
        result = dumpdiff.align(*folders)
    except Exception as error:
        return Outcome(*names, kind, type(error).__name__, False, "none", str(error))
    summary = "; ".join(result.weaknesses)
    if not result.findings:
        return Outcome(*names, kind, str(result.verdict), False, "none", summary)
    finding = result.findings[0]
    place = (reference / "place.txt").read_text() if fault else ""
    is_at_place = is_near(place, finding, dumpdiff.read(folders[1]).ops)
    cause = "none"
    if finding.causes:
        cause = "right" if finding.causes[0].name in causes else "another"
    summary = f"{place} {summary}\n    {format_finding(finding)}"
    return Outcome(*names, kind, str(result.verdict), is_at_place, cause, summary)


def is_near(place: str, finding: Finding, ops) -> bool:
    """Return whether the finding names an op of the module with the fault, or of its parent."""
    if place == "batch":
        return finding.kind == "input"
    scopes = ops.loc[ops["name"].isin(finding.reference_ops), "scope"]
    parent = place.rpartition(".")[0]
    return any(f"{scope}.".startswith(f"{place}.") or scope == parent for scope in scopes)


def format_finding(finding: Finding) -> str:
    causes = "; ".join(f"{cause.name}: {cause.text}" for cause in finding.causes[:1])
    error = finding.metrics.get("error", float("nan"))
    return f"{finding.title}: {error:.1e}, tolerance {finding.tolerance:.1e}; {causes}"


def format_outcome(outcome: Outcome) -> str:
    place = "at its place" if outcome.is_at_place else "elsewhere"
    words = [outcome.target, outcome.kind, outcome.verdict]
    if outcome.kind not in (SOUND, DIFFERENT):
        words.append(place)
    if outcome.kind != SOUND:
        words.append(f"cause {outcome.cause}")
    return f"{' | '.join(words)} | {outcome.summary}"


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Return two Markdown tables: of sound pairs, and of what is to be found."""
    kinds = {SOUND: [], DIFFERENT: [], "faults": []}
    for outcome in outcomes:
        if outcome.kind:
            kinds.get(outcome.kind, kinds["faults"]).append(outcome)
    verdicts = Counter(outcome.verdict for outcome in kinds[SOUND])
    words = ("aligned", "inconclusive", "diverged")
    figures = [verdicts.pop(word, 0) for word in words]
    lines = [
        "| sound pairs | aligned | inconclusive | diverged | no answer |",
        "|--:|--:|--:|--:|--:|",
        f"| {len(kinds[SOUND])} | {' | '.join(map(str, figures))} | {verdicts.total()} |",
        "",
        "| | pairs | diverged | at its place | right cause | none given | another |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in (DIFFERENT, "faults"):
        found = [outcome for outcome in kinds[kind] if outcome.verdict == "diverged"]
        n_placed = sum(outcome.is_at_place for outcome in found) if kind == "faults" else "-"
        causes = Counter(outcome.cause for outcome in found)
        lines.append(
            f"| {kind} | {len(kinds[kind])} | {len(found)} | {n_placed} "
            f"| {causes['right']} | {causes['none']} | {causes['another']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
