"""The parameters of two checkpoints as CSV, for spreadsheets: one row per pair."""

from __future__ import annotations

from typing import IO

from ...weight_comparison import Pair, WeightsResult
from ..formats.csv import format_rows

COLUMNS = (
    "path",
    "target",
    "reference",
    "evidence",
    "rows",
    "columns",
    "target_dtype",
    "reference_dtype",
    "relation",
    "layout",
    "rounding",
    "error",
    "largest",
    "unequal",
    "elements",
    "mistake",
    "explanation",
    "holds",
)


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write every pair as UTF-8 with a header row.

    Text that a spreadsheet would run gets a leading apostrophe.
    """
    stream.write(format_rows([COLUMNS, *map(_list_cells, result.pairs)]))


def _list_cells(pair: Pair) -> tuple[object, ...]:
    mistake_cells = ("", "", "")
    if pair.mistake is not None:
        mistake = pair.mistake
        mistake_cells = (mistake.kind, mistake.summary, mistake.actual_parameter)
    return (
        pair.path,
        pair.target,
        pair.reference,
        pair.evidence,
        *pair.shape,
        *pair.dtypes,
        pair.relation,
        pair.layout,
        pair.rounding,
        pair.error,
        pair.max_absolute,
        pair.differing_elements,
        pair.elements,
        *mistake_cells,
    )
