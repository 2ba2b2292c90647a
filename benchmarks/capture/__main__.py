"""Measure the rounds from statistics to a cause: is the finding kept, and what does it cost?

40 faults, statistics of everything, then what ``dumpdiff narrow`` prints, in at most three rounds.

    python benchmarks/capture [--only 'llama-*'] [--failures] [--write]

needs the recordings of benchmarks/localise. The narrowed dumps are cut out of them.
``--write`` puts the table into docs/benchmarks.md. Held-out cases are counted and never named.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise"), str(HERE.parents[1])]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import rounds  # noqa: E402
import sample  # noqa: E402
import table  # noqa: E402

DOCUMENT = HERE.parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    args = _parse_arguments()
    outcomes = []
    for number, case in enumerate(sample.list_cases(), 1):
        if not any(fnmatch(case.name, pattern) for pattern in args.only or ["*"]):
            continue
        outcome = rounds.play_case(case, args.recordings, args.work / str(number))
        outcomes.append(outcome)
        name = "a held-out case" if case.held_out else case.name
        print(f"played {name}", file=sys.stderr, flush=True)
        if args.failures and not outcome.is_right and not case.held_out:
            print(f"{case.name}: {outcome.cause}, not {outcome.causes}: {outcome.text}")
    text = format_table(outcomes)
    print(text)
    if args.write:
        table.write_section(DOCUMENT, "capture", text + "\n")


def format_table(outcomes: list[rounds.Outcome]) -> str:
    """Return the Markdown table of all outcomes."""
    lines = [
        "| faults | | right cause | with whole tensors of everything | finding kept | rounds "
        "| bytes, median | bytes, largest |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups = {
        "to tune on": [outcome for outcome in outcomes if not outcome.held_out],
        "held out": [outcome for outcome in outcomes if outcome.held_out],
        "all": outcomes,
    }
    for name, group in groups.items():
        counted = [outcome for outcome in group if not outcome.void]
        if counted:
            lines.append(_format_row(name, counted))
    return "\n".join(lines)


def _format_row(name: str, outcomes: list[rounds.Outcome]) -> str:
    count = len(outcomes)
    n_right = sum(outcome.is_right for outcome in outcomes)
    n_whole = sum(outcome.is_right_with_everything for outcome in outcomes)
    n_kept = sum(outcome.is_kept for outcome in outcomes)
    shares = [sum(outcome.shares) for outcome in outcomes]
    mean_rounds = statistics.mean(outcome.rounds for outcome in outcomes)
    rates = " | ".join(f"{number / count:.0%}" for number in (n_right, n_whole, n_kept))
    return (
        f"| {name} | {count} | {rates} | {mean_rounds:.2f} "
        f"| {statistics.median(shares):.1%} | {max(shares):.1%} |"
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path, default=Path("/tmp/dumpdiff-localise"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/dumpdiff-capture"))
    parser.add_argument("--only", action="append", help="cases whose name is like this")
    parser.add_argument("--failures", action="store_true", help="print wrong causes")
    parser.add_argument("--write", action="store_true", help=f"write docs/{DOCUMENT.name}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
