"""Measure what 'dumpdiff triage' concludes from every selection of evidence.

    python benchmarks/triage [--work FOLDER] [--only 'bfloat16*']

needs the package installed with ``.[test]``. Records the trainings that are missing (the first
time, ten minutes on two cores), compares them and prints a table. Cases that are held out are
counted, and not named.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "fixtures")]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import cases  # noqa: E402
import evidence  # noqa: E402
import recordings  # noqa: E402
import scores  # noqa: E402

_ROW = "{:<28} {:>6} {:>9} {:>6}  {}"


def main() -> None:
    args = _parse_arguments()
    groups: dict[str, list[scores.Score]] = {}
    print(_ROW.format("case", "right", "undecided", "wrong", "with everything given"))
    for case in cases.list_cases():
        if not fnmatch(case.name, args.only):
            continue
        case_scores = _score(case, args.work)
        groups.setdefault(case.part, []).extend(case_scores)
        if case.part != cases.TUNED:
            continue
        (full,) = [score for score in case_scores if score.is_full]
        print(_format_row(case.name, case_scores, f"{full.outcome} ({full.state})"))
    print()
    for title, group in groups.items():
        print(_format_row(title, group, _summarize(group)))
        print(_format_row("", group, _format_growth(group)))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    work = Path("/tmp/dumpdiff-triage/recordings")
    parser.add_argument("--work", type=Path, default=work, help="folder of the recordings")
    parser.add_argument("--only", default="*", help="pattern of the names of cases")
    return parser.parse_args()


def _score(case: cases.Case, work: Path) -> list[scores.Score]:
    """Return the scores of a case; record its trainings if they are missing."""
    recordings.make_recordings([case], work, lambda text: print(text, file=sys.stderr))
    folders = [
        recordings.find_recording(side, case.steps, case.size, work)
        for side in (case.target, case.reference)
    ]
    return scores.score_case(case, evidence.compare_runs(*folders, case.steps))


def _format_row(title: str, group: Sequence[scores.Score], text: str) -> str:
    counts = [
        sum(score.state == state for score in group)
        for state in (scores.RIGHT, scores.UNDECIDED, scores.WRONG)
    ]
    return _ROW.format(title, *counts, text)


def _summarize(group: Sequence[scores.Score]) -> str:
    """Return the figures of a group of cases in words."""
    full = [score for score in group if score.is_full]
    n_right = sum(score.state == scores.RIGHT for score in full)
    n_missed = sum(bool(score.case.places) and score.exit_code == 0 for score in group)
    n_false = sum(not score.case.places and score.exit_code >= 10 for score in group)
    n_reversals = sum(
        len(scores.find_reversals([score for score in group if score.case == case]))
        for case in dict.fromkeys(score.case for score in group)
    )
    return (
        f"{n_right} of {len(full)} right and decided with everything given; exit code 0 with a"
        f" fault: {n_missed}; a cause without a fault: {n_false}; right, then wrong with more"
        f" evidence: {n_reversals}"
    )


def _format_growth(group: Sequence[scores.Score]) -> str:
    """Return how many cases are right with the first inputs, then with one more after another."""
    counts = []
    for n_inputs in range(1, 1 + len(evidence.INPUTS)):
        inputs = evidence.INPUTS[:n_inputs]
        n_right = sum(score.inputs == inputs and score.state == scores.RIGHT for score in group)
        counts.append(f"{'+ ' if n_inputs > 1 else ''}{inputs[-1]} {n_right}")
    return f"right with {', '.join(counts)}"


if __name__ == "__main__":
    main()
