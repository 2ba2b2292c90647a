"""Compare tiny models of transformers with themselves: attention written out against fused, faults.

    python benchmarks/architectures [--work DIR] [--only 'llama*'] [--failures] [--write]

needs the package installed with ``.[test]``. Records each model of ``models.yaml`` in both forms,
which must be aligned, and with three of the faults of ``model_faults.py`` and
``function_faults.py`` in turn, which must be found and named (an hour on two cores; recordings and
answers in DIR are used again). A model that has one form only is compared with itself. ``--write``
puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise")]

import table  # noqa: E402
from function_faults import ALL_FAULTS as FAULTS  # noqa: E402

DOCUMENT = HERE.parents[1] / "docs" / "benchmarks.md"
FORMS = ("sdpa", "eager")
FAULTS_OF_MODEL = 3


@dataclass(frozen=True)
class Outcome:
    target: str
    reference: str
    fault: str  #: '' if there is none
    verdict: str
    cause: str  #: of the first finding, '' if none is given

    @property
    def has_right_cause(self) -> bool:
        return self.cause in FAULTS[self.fault].causes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/dumpdiff-architectures"))
    parser.add_argument("--only", default="*", help="models whose name is like this")
    parser.add_argument("--failures", action="store_true", help="print the pairs that went wrong")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    args = parser.parse_args()
    recordings = args.work / "recordings"
    names = list_names(args.only)
    subprocess.run([sys.executable, HERE / "record.py", recordings, *names], check=True)
    outcomes = [compare(args.work, *pair) for pair in iterate_pairs(recordings, names)]
    text = format_table(outcomes)
    print(text)
    if args.failures:
        print(*filter(is_wrong, outcomes), sep="\n")
    if args.write:
        table.write_section(DOCUMENT, "architectures", text + "\n")


def list_names(pattern: str) -> list[str]:
    """Return the names of all recordings, as record.py takes them."""
    models = sorted(yaml.safe_load((HERE / "models.yaml").read_text())["models"])
    faults = list(FAULTS)
    names = []
    for number, model in enumerate(models):
        if fnmatch(model, pattern):
            first = FAULTS_OF_MODEL * number
            chosen = [faults[(first + i) % len(faults)] for i in range(FAULTS_OF_MODEL)]
            names += [f"{model}:{form}" for form in FORMS]
            names += [f"{model}:{FORMS[-1]}:{fault}" for fault in chosen]
    return names


def iterate_pairs(recordings: Path, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (target, reference, fault) of what could be recorded."""
    recorded = [name for name in names if (recordings / name / "loss.txt").exists()]
    for name in recorded:
        model, form, *faults = name.split(":")
        references = [f"{model}:{other}" for other in FORMS if f"{model}:{other}" in recorded]
        if references and (faults or (form == FORMS[-1] and references[0] != name)):
            yield name, references[0], "".join(faults)


def compare(work: Path, target: str, reference: str, fault: str) -> Outcome:
    """Run ``dumpdiff align`` unless its answer is there already."""
    answer = work / "answers" / f"{target}.json"
    answer.parent.mkdir(exist_ok=True)
    if not answer.exists():
        folders = [str(work / "recordings" / name) for name in (target, reference)]
        command = [sys.executable, "-m", "dumpdiff", "align", *folders, "--json", str(answer)]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    result = json.loads(answer.read_text())
    causes = result["findings"][0]["causes"] if result["findings"] else []
    cause = causes[0]["name"] if causes else ""
    return Outcome(target, reference, fault, result["verdict"], cause)


def is_wrong(outcome: Outcome) -> bool:
    if outcome.fault:
        return outcome.verdict != "diverged" or not outcome.has_right_cause
    return outcome.verdict != "aligned"


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Return two Markdown tables: of the pairs without a fault, and of those with one."""
    verdicts = Counter(outcome.verdict for outcome in outcomes if not outcome.fault)
    faulty = [outcome for outcome in outcomes if outcome.fault]
    found = [outcome for outcome in faulty if outcome.verdict == "diverged"]
    n_right = sum(outcome.has_right_cause for outcome in found)
    n_unnamed = sum(not outcome.cause for outcome in found)
    n_models = len({outcome.target.partition(":")[0] for outcome in outcomes})
    lines = [
        "| pairs without a fault | aligned | inconclusive | diverged |",
        "|--:|--:|--:|--:|",
        f"| {sum(verdicts.values())} | {verdicts['aligned']} | {verdicts['inconclusive']} "
        f"| {verdicts['diverged']} |",
        "",
        "| models | faults | found | right cause | none given | another |",
        "|--:|--:|--:|--:|--:|--:|",
        f"| {n_models} | {len(faulty)} | {len(found)} | {n_right} | {n_unnamed} "
        f"| {len(found) - n_right - n_unnamed} |",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
