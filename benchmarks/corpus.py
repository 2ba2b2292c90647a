"""Measure how logs, foreign files and settings of the corpus are read.

    python benchmarks/corpus.py

needs the package installed with ``.[test]``. Counts the entries of ``tests/corpus``: those that are
held out apart from the others, and no case is named.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from corpus import test_corpus  # noqa: E402

_ROW = "{:<42} {:>14} {:>14}"


def main() -> None:
    print(_ROW.format("", "visible", "held out"))
    for title, cases, check in (
        ("logs: read right or refused", test_corpus.LOGS, test_corpus.check_log),
        (
            "foreign files: recognized or named",
            test_corpus.FOREIGN_FILES,
            test_corpus.check_foreign_file,
        ),
    ):
        print(_ROW.format(title, *_count_right(cases, check)))
    totals = [_count_differences(held_out=held_out) for held_out in (False, True)]
    rows = {
        "settings: pairs": [str(n_pairs) for n_pairs, *_ in totals],
        "settings: differences that are named": [f"{named}/{n}" for _, n, named, _ in totals],
        "settings: false differences": [str(n_false) for *_, n_false in totals],
    }
    for title, cells in rows.items():
        print(_ROW.format(title, *cells))


def _count_right(cases: list[test_corpus.Case], check: Callable[..., None]) -> list[str]:
    """Return how many cases are right, of those that are visible and of those held out."""
    cells = []
    for held_out in (False, True):
        selected_cases = test_corpus.select(cases, held_out=held_out)
        with tempfile.TemporaryDirectory() as folder:
            n_right = test_corpus.count_right(selected_cases, check, Path(folder))
        cells.append(f"{n_right}/{len(selected_cases)}")
    return cells


def _count_differences(*, held_out: bool) -> tuple[int, int, int, int]:
    """Return the numbers of pairs, and of their differences: expected, named, false."""
    pairs = test_corpus.select(test_corpus.PAIRS, held_out=held_out)
    with tempfile.TemporaryDirectory() as folder:
        return (len(pairs), *test_corpus.count_differences(pairs, Path(folder)))


if __name__ == "__main__":
    main()
