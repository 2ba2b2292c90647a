"""Measure what dumpdiff says about parallel runs.

    python benchmarks/parallel [--only '*tp2*'] [--relation equal] [--form tensors] [--failures]

needs the package installed with ``.[test]``. Records what is missing (the first time, an hour on
two cores), scores what changed and prints the tables. Held-out faults are counted, and named only
with ``--held-out``. Recordings of megatron-core need it on PYTHONPATH (see record_megatron.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
sys.path.append(str(HERE.parent / "localise"))
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import cases  # noqa: E402
import runs  # noqa: E402
import scores  # noqa: E402
import table  # noqa: E402
import tables  # noqa: E402

DOCUMENT = HERE.parents[1] / "docs" / "benchmarks.md"
RELATIONS = {"equal": cases.EQUAL, "other": cases.OTHER, "check": scores.CHECK}


def main() -> None:
    args = _parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    patterns = args.only or ["*"]
    relations = [RELATIONS[word] for word in args.relation or RELATIONS]
    pairs = [
        case
        for case in cases.list_cases()
        if any(fnmatch(case.name, pattern) for pattern in patterns)
    ]
    failed_recordings = _make_recordings(pairs, args.work)
    pairs = [
        case
        for case in pairs
        if not failed_recordings & {case.target, case.reference, case.target.clean()}
    ]
    jobs: list[scores.Job] = []
    for form in args.form or scores.FORMS:
        jobs += [(case.relation, case, form) for case in pairs if case.relation in relations]
        if scores.CHECK in relations:
            jobs += [(scores.CHECK, subject, form) for subject in _list_checked_runs(pairs)]
    all_scores = scores.score_all(jobs, args.work, args.processes, _report)
    if args.failures:
        print(tables.format_failures(all_scores, args.held_out))
        return
    text = tables.format_document(all_scores)
    print(text)
    if args.write:
        table.write_section(DOCUMENT, "parallel", text)


def _make_recordings(pairs: list[cases.Case], work: Path) -> set[runs.Recording]:
    """Record what is missing; return what failed."""
    requested = [
        (recording, cases.get_path(recording, work)) for recording in cases.list_recordings(pairs)
    ]
    errors = runs.make_recordings(requested, _report)
    for recording, error in errors.items():
        print(f"not recorded: {recording.name}\n{error}", file=sys.stderr)
    return set(errors)


def _list_checked_runs(
    pairs: list[cases.Case],
) -> list[tuple[runs.Recording, cases.Fault | None]]:
    """Return the targets of the pairs, each once, with its fault."""
    subjects = {case.target: case.fault for case in pairs}
    return list(subjects.items())


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/dumpdiff-parallel"), help="recordings and scores"
    )
    parser.add_argument(
        "--only", action="append", help="cases whose name is like this; may be repeated"
    )
    parser.add_argument("--relation", action="append", choices=list(RELATIONS))
    parser.add_argument("--form", action="append", choices=list(scores.FORMS))
    parser.add_argument(
        "--failures", action="store_true", help="print what was said where the answer was wrong"
    )
    parser.add_argument("--held-out", action="store_true", help="name cases that are held out, too")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help=f"put the tables into docs/{DOCUMENT.name}"
    )
    return parser.parse_args()


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
