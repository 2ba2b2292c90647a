"""The parameters of two checkpoints as CSV, for spreadsheets: one row per pair."""

from __future__ import annotations

from typing import IO

from ...weight_comparison import Pair, WeightsResult
from ..alignment.csv import rows_of

COLUMNS = (
    "path", "target", "reference", "evidence", "rows", "columns", "target_dtype", "reference_dtype", "relation",
    "layout", "rounding", "error", "largest", "unequal", "elements", "mistake", "explanation", "holds",
)  # fmt: skip


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write every pair, as UTF-8 with a header row; text that a spreadsheet would run gets a leading apostrophe."""
    stream.write(rows_of([COLUMNS, *(_row(pair) for pair in result.pairs)]))


def _row(pair: Pair) -> tuple[object, ...]:
    mistake = (
        ("", "", "")
        if pair.mistake is None
        else (pair.mistake.kind, pair.mistake.said, pair.mistake.holds)
    )
    return (
        pair.path, pair.target, pair.reference, pair.evidence, *pair.shape, *pair.dtypes, pair.relation, pair.layout,
        pair.rounding, pair.error, pair.largest, pair.unequal, pair.elements, *mistake,
    )  # fmt: skip
