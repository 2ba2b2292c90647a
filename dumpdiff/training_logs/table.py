"""Tables of metrics as CSV: exports of Weights & Biases and SwanLab, metrics.csv of Lightning.

One column has the step, one the loss. An export names a column after its run:
``my-run - train/loss``, next to ``my-run - train/loss__MIN`` and ``__MAX``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ..model.errors import DumpError
from .curves import Curves, PrintedStep, build_curves
from .log_text import parse_number
from .metric_names import LOSSES, NORMS, RATES, STEPS, find_name

FORMAT = "table"
LINE_PATTERN = "a CSV with columns step and loss"

_RUN_SEPARATORS = (" - ", "-", ": ")  #: between the name of a run and that of a metric
_BOUNDS = ("__min", "__max")
_MAX_COLUMNS = 2000


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a CSV, None if its first line names no step and loss.

    Raises DumpError if it has the losses of several runs.
    """
    first_line = text.partition("\n")[0]
    if "," not in first_line or "loss" not in first_line.lower():
        return None
    rows = csv.reader(io.StringIO(text))
    header = next(rows, [])
    if len(header) > _MAX_COLUMNS:
        return None
    step_column = _find_column(header, STEPS, path)
    loss_column = _find_column(header, LOSSES, path)
    if step_column is None or loss_column is None:
        return None
    columns = (step_column, loss_column, *_find_optional_columns(header, path))
    return _build_curves([_select(row, columns) for row in rows], header[loss_column], path)


def _find_optional_columns(header: Sequence[str], path: str) -> tuple[int | None, int | None]:
    return _find_column(header, NORMS, path), _find_column(header, RATES, path)


def _find_column(header: Sequence[str], candidates: Sequence[str], path: str) -> int | None:
    """Return the column of a metric: its name, or a name of a run before it."""
    names = [name.strip() for name in header]
    name = find_name(names, candidates)
    if name:
        return names.index(name)
    for candidate in candidates:
        endings = tuple(separator + candidate for separator in _RUN_SEPARATORS)
        matching_columns = [
            index
            for index, name in enumerate(names)
            if name.lower().endswith(endings) and not name.lower().endswith(_BOUNDS)
        ]
        if len(matching_columns) > 1:
            runs = ", ".join(names[index] for index in matching_columns)
            raise DumpError(f"{path}: has several runs ({runs}); export one run to one file")
        if matching_columns:
            return matching_columns[0]
    return None


def _select(row: Sequence[str], columns: Sequence[int | None]) -> list[str]:
    """Return the cells of a row in these columns, '' where there is none."""
    cells = []
    for column in columns:
        is_there = column is not None and column < len(row)
        cells.append(row[column].strip() if is_there and column is not None else "")
    return cells


def _build_curves(rows: Sequence[Sequence[str]], variant: str, path: str) -> Curves | None:
    numbered_rows = []
    for row in rows:
        step = parse_number(row[0])
        if row[1] and step >= 0 and step.is_integer():
            numbered_rows.append((int(step), row))
    if not numbered_rows:
        return None
    # Lightning numbers from 0; then the first loss is that of step 1.
    offset = 1 if numbered_rows[0][0] == 0 else 0
    printed_steps = [PrintedStep(step + offset, *row[1:]) for step, row in numbered_rows]
    notes = ["steps are numbered from 0 there, and from 1 here"] if offset else []
    return build_curves(printed_steps, path, FORMAT, f"column {variant}", notes=notes)
