"""The pairs of all tasks as CSV: step and rank, then the columns of one comparison."""

from __future__ import annotations

from typing import IO

from ...model.errors import DumpError
from ...model.run_result import RunResult
from ..alignment.csv import format_blocks, list_columns
from ..formats.csv import encode_lines, format_rows


def write(result: RunResult, stream: IO[bytes]) -> None:
    """Write one row per step, rank and pair of tensors, as UTF-8 with a header row.

    The results of the tasks are read one after the other. Raises DumpError if one is missing.
    """
    has_header = False
    for task in result.tasks:
        if task.problem:
            continue
        pairs = result.task(task.rank, task.step).pairs
        names = list_columns(pairs)
        if not has_header:
            stream.write(format_rows([["step", "rank", *names]]))
            has_header = True
        place = ",".join("" if number is None else str(number) for number in (task.step, task.rank))
        for block in format_blocks(pairs, names):
            stream.write(encode_lines(f"{place},{line}" for line in block))
    if not has_header:
        raise DumpError("no step or rank could be compared: there are no pairs")
