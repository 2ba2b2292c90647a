"""Measure how often dumpdiff names the right op.

A fault goes into one of two frameworks; both are recorded and compared in four forms.

    python benchmarks/localise [--only 'llama-*'] [--part 'new, tuned'] [--failures] [--write]

needs the package installed with ``.[test]``. Records what is missing (the first time, half an
hour), scores what changed and prints the tables; ``--write`` puts them into docs/benchmarks.md.
Held-out cases are counted, and named only with ``--held-out``.
"""

from __future__ import annotations

import argparse
import os
import sys
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # two processes share the machine
    os.environ.setdefault(name, "1")

import faults  # noqa: E402
import mirror  # noqa: E402
import peers  # noqa: E402
import recordings  # noqa: E402
import score  # noqa: E402
import sensitivity  # noqa: E402
import table  # noqa: E402
from formats import FORMS  # noqa: E402

DOCUMENT = HERE.parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    args = _parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    cases = [
        case
        for case in faults.CASES
        if any(fnmatch(case.name, pattern) for pattern in args.only or ["*"])
        and (not args.part or any(table.PARTS[part](case) for part in args.part))
    ]
    requested = [
        recording
        for case in cases
        for side in recordings.list_recordings(case)
        for recording in (side, side.clean())
    ]
    errors = recordings.make_recordings(requested, args.work, args.processes, _report)
    for failed_recording, error in errors.items():
        print(f"not recorded: {failed_recording.name}\n{error}", file=sys.stderr)
    failed_names = {recording.name for recording in errors}
    cases = [
        case
        for case in cases
        if not any(
            recording.name in failed_names
            for side in recordings.list_recordings(case)
            for recording in (side, side.clean())
        )
    ]
    if args.mirror:
        mirrors = mirror.compare_directions(cases, args.work, args.processes, _report)
        print(mirror.format_mirrors(mirrors, held_out=args.held_out))
        return
    scores = score.score_cases(cases, tuple(args.form or FORMS), args.work, args.processes, _report)
    if args.failures:
        print(table.format_failures(scores, args.held_out))
        return
    is_complete = not (args.only or args.part or args.form)
    verdicts = peers.judge_cases(cases, args.work, args.processes, _report) if is_complete else []
    curve = sensitivity.measure_curve(args.work, args.processes, _report) if is_complete else []
    text = table.format_document(scores, verdicts, curve)
    print(text)
    if args.write:
        table.write_section(DOCUMENT, "localise", text)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/dumpdiff-localise"), help="recordings and scores"
    )
    parser.add_argument(
        "--only", action="append", help="cases whose name is like this; may be repeated"
    )
    parser.add_argument(
        "--part", action="append", choices=list(table.PARTS), help="this part; may be repeated"
    )
    parser.add_argument(
        "--form", action="append", choices=list(FORMS), help="this form only; may be repeated"
    )
    parser.add_argument(
        "--failures", action="store_true", help="print what was said of each case that went wrong"
    )
    parser.add_argument(
        "--mirror", action="store_true", help="exchange target and reference, print what changes"
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
