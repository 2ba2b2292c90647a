"""Logs of Megatron-LM, and of programs that print its line.

The line is `` iteration        1/       6 | lm loss: ... |``.

Fields are identified by their names, never by their position: versions and forks add fields. The
output of versions core_r0.4 to core_r0.19 was examined; see docs/logs.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from .curves import Curves, Record, build_columns, estimate_interval, order_records
from .log_text import estimate_resolution, find_matching_lines, is_nonfinite, parse_number

FORMAT = "megatron"
LINE_PATTERN = "iteration <n>/<total> | ... |"

_RECORD = re.compile(r"iteration\s+(\d{1,9})\s*/\s*\d+\s*\|")
_BEGIN = re.compile(r"-{5,} end of arguments -{5,}")
_MICROSECONDS = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\]\s+iteration\s")
#: A line with none of these fields is no training step: lines on memory and timing also have
#: iterations.
_STEP_FIELDS = frozenset({"learning rate", "number of skipped iterations", "lm loss"})
_LOSSES = ("lm loss", "loss", "reduced_train_loss")
#: Losses that are printed next to that of the model.
_AUXILIARY_LOSS = re.compile(r"load_balancing|z_loss|mtp_|aux|seq_|global_|indexer")


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no line of this format."""
    if "iteration" not in text:
        return None
    begins = [match.start() for match in _BEGIN.finditer(text)]
    records: list[Record] = []
    losses: list[str] = []
    norms: list[str] = []
    n_restarts = n_begins = 0
    for match, line in find_matching_lines(_RECORD, text):
        fields = _parse_fields(line)
        if not _STEP_FIELDS & fields.keys():
            continue
        while n_begins < len(begins) and begins[n_begins] < match.start():
            n_begins += 1
            n_restarts += bool(records)
        step = int(match[1])
        if records and step <= records[-1].step and n_restarts == records[-1].n_restarts:
            n_restarts += 1
        records.append(_build_record(step, fields, n_restarts))
        losses.append(fields.get(_find_loss_name(fields), ""))
        norms.append(fields.get("grad norm", ""))
    if not records:
        return None
    is_modern = _MICROSECONDS.search(text) is not None
    notes: tuple[str, ...] = ()
    if is_modern:
        records, notes = _undo_averages(records)
    records, restarts, repeat_notes = order_records(records)
    columns = build_columns(records)
    interval = estimate_interval(columns["steps"])
    return Curves(
        path=path,
        format=FORMAT,
        format_variant="core 0.16 or later" if is_modern else "before core 0.16",
        rate_of="next",  # the rate of the first step is not printed
        loss_resolution=estimate_resolution(losses),
        norm_resolution=estimate_resolution(norms),
        interval=interval,
        averaged=interval > 1,
        restarts=restarts,
        notes=(*notes, *repeat_notes),
        **columns,
    )


def _parse_fields(line: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for field in line.split("|"):
        name, colon, value = field.rpartition(":")
        if colon:
            fields[name.strip()] = value.strip()
    return fields


def _find_loss_name(fields: Mapping[str, str]) -> str:
    """Return the name of the field with the loss of the model, or ''."""
    for name in _LOSSES:
        if name in fields:
            return name
    for name in fields:
        if name.endswith("loss") and not _AUXILIARY_LOSS.search(name):
            return name
    return ""


def _build_record(step: int, fields: Mapping[str, str], n_restarts: int) -> Record:
    loss_text = fields.get(_find_loss_name(fields), "")
    norm_text = fields.get("grad norm", "")
    loss = parse_number(loss_text)
    skipped = parse_number(fields.get("number of skipped iterations", "0")) > 0
    if skipped and loss == 0:
        loss = math.nan
    # Versions before 0.17 do not print a loss that is NaN; "number of nan iterations" counts
    # skipped ones only.
    is_missing = not loss_text and not skipped
    return Record(
        step=step,
        loss=loss,
        norm=parse_number(norm_text),
        rate=parse_number(fields.get("learning rate", "")),
        scale=parse_number(fields.get("loss scale", "")),
        skipped=skipped,
        overflow=skipped,
        nonfinite=is_missing or is_nonfinite(loss_text) or is_nonfinite(norm_text),
        other_losses={
            name: parse_number(value)
            for name, value in fields.items()
            if _AUXILIARY_LOSS.search(name)
        },
        n_restarts=n_restarts,
    )


def _undo_averages(records: list[Record]) -> tuple[list[Record], tuple[str, ...]]:
    """Recover the second loss of every process, and return the records and a note.

    Since core 0.16 the second line of a process prints the mean of the first two steps:
    ``loss_2 = 2 * printed_2 - printed_1``.
    """
    corrected_records = list(records)
    corrected_steps: list[int] = []
    for i in range(1, len(records)):
        first, second = records[i - 1], records[i]
        begins_process = i == 1 or records[i - 2].n_restarts != first.n_restarts
        is_next = second.n_restarts == first.n_restarts and second.step == first.step + 1
        if not begins_process or not is_next:
            continue
        other_losses = {
            name: 2 * value - first.other_losses.get(name, math.nan)
            for name, value in second.other_losses.items()
        }
        corrected_records[i] = replace(
            second, loss=2 * second.loss - first.loss, other_losses=other_losses
        )
        corrected_steps.append(second.step)
    if not corrected_steps:
        return corrected_records, ()
    steps = ", ".join(map(str, corrected_steps))
    note = (
        f"step {steps}: Megatron-LM prints the mean of the first two steps there;"
        " the loss of the step was recovered"
    )
    return corrected_records, (note,)
