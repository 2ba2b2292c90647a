"""Measure what dumpdiff says of networks of which one call was changed at random.

    python benchmarks/mutants [--only lstm] [--count 8] [--seed 1] [--failures]

needs the package installed with ``.[test]``. One call of the PyTorch side of each family of
benchmarks/localise is changed at a time (``mutations.py``), and compared with the clean MindSpore
recording. Where a change first shows is found from the numbers (``truth.py``). It finds mechanisms
that fail; the causes that count as right are a rough list. Writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise"), str(HERE.parents[1])]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import dumps  # noqa: E402
import families  # noqa: E402
import recordings  # noqa: E402
import truth  # noqa: E402

import dumpdiff  # noqa: E402


@dataclass(frozen=True)
class Outcome:
    """What was said of one mutant."""

    name: str
    change: str
    is_found: bool
    verdict: str
    cause: str  #: the first one, '' without any
    is_cause_right: bool
    text: str  #: of the cause, else the title of the finding


def main() -> None:
    args = _parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for family in args.only or families.NAMES:
        outcomes += _measure_family(family, args)
    found = [outcome for outcome in outcomes if outcome.is_found]
    print(f"\nmutants that change a gradient or the loss: {len(outcomes)}")
    print(f"the first finding names the change: {len(found)}")
    print(f"aligned: {sum(outcome.verdict == 'aligned' for outcome in outcomes)}")
    print(f"first cause right: {sum(outcome.is_cause_right for outcome in found)}")
    print(f"no cause: {sum(not outcome.cause for outcome in found)}")


def _measure_family(family: str, args: argparse.Namespace) -> list[Outcome]:
    """Record a family and its mutants, and print what is said of each that is not as expected."""
    clean = [recordings.Recording(framework, family) for framework in ("mindspore", "pytorch")]
    errors = recordings.make_recordings(clean, args.work, 2, lambda _: None)
    folder = args.work / "mutants" / f"{family}-{args.seed}-{args.count}"
    if not errors and not (folder / "mutants.json").exists():
        script = [sys.executable, str(HERE / "record_mutants.py"), str(folder), "--model", family]
        options = ["--count", str(args.count), "--seed", str(args.seed)]
        run = subprocess.run([*script, *options], capture_output=True, text=True, check=False)
        if run.returncode:
            errors = {clean[1]: run.stderr[-2000:]}
    for error in errors.values():
        print(f"{family}: not recorded\n{error}", file=sys.stderr)
    if errors:
        return []
    paths = [recordings.get_path(recording, args.work) for recording in clean]
    outcomes = list(_compare_mutants(folder, *paths))
    for outcome in outcomes:
        is_expected = outcome.is_found and outcome.is_cause_right
        if args.failures and not is_expected:
            place = "found" if outcome.is_found else "not found"
            print(f"{outcome.name}: {outcome.change}; {outcome.verdict}, {place}; {outcome.text}")
    print(f"{family}: {len(outcomes)}", file=sys.stderr)
    return outcomes


def _compare_mutants(folder: Path, mindspore: Path, pytorch: Path) -> Iterator[Outcome]:
    """Yield the outcome of each mutant that changes a gradient or the loss."""
    clean = dumps.load(pytorch)
    for number, mutant in enumerate(json.loads((folder / "mutants.json").read_text())):
        root = truth.find_truth(clean, dumps.load(folder / str(number)))
        if not root.ops or root.effect < truth.ROUNDING:
            continue
        result = dumpdiff.align(mindspore, folder / str(number))
        finding = result.first_divergence
        causes = finding.causes if finding else ()
        text = finding.title if finding else "; ".join(result.notes[:1])
        yield Outcome(
            f"{folder.name}/{number}",
            f"{mutant['mutation']} in {mutant['call']}",
            bool(finding and root.ops & set(finding.reference_ops)),
            result.verdict,
            causes[0].name if causes else "",
            bool(causes) and causes[0].name in mutant["causes"],
            causes[0].text if causes else text,
        )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=families.NAMES, help="this family")
    parser.add_argument("--count", type=int, default=8, help="mutants of a family")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of calls")
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/dumpdiff-localise"), help="recordings"
    )
    parser.add_argument("--failures", action="store_true", help="print what was not as expected")
    return parser.parse_args()


if __name__ == "__main__":
    main()
