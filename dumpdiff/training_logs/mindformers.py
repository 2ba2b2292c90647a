"""Logs of MindSpore Transformers: ``{ Epoch:[  1/  2], step:[    1/    8], loss: 4.143459, ... }``.

The output of releases 0.2 to 1.8 was examined. The head of a line changes with the release, so only
what follows ``Epoch:[`` is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from .curves import Curves, Record, build_columns, order_records
from .log_text import estimate_resolution, find_matching_lines, is_nonfinite, parse_number

FORMAT = "mindformers"
LINE_PATTERN = "{ Epoch:[<n>/<total>], step:[<n>/<total>], loss: ..., }"

#: A comma after the bracket of the step distinguishes the line of a step from those of the
#: monitors. The epoch before it is searched afterwards: a pattern that begins with fixed text is
#: found many times faster.
_RECORD = re.compile(r"step:\[\s*(\d{1,9})/\s*(\d{1,9})\],")
_EPOCH = re.compile(r"Epoch:\[\s*(\d{1,9})/\s*\d+\],\s*$")
_EPOCH_LENGTH = 40  #: characters before the step that are searched for the epoch
_AUXILIARY_LOSSES = ("load_balancing_loss", "mtp_loss", "extra_loss")


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no line of this format."""
    if "step:[" not in text:
        return None
    counter = _StepCounter()
    records: list[Record] = []
    losses: list[str] = []
    norms: list[str] = []
    has_separate_loss = False
    n_restarts = 0
    for match, line in find_matching_lines(_RECORD, text):
        fields = _parse_fields(line)
        if "loss" not in fields:
            continue
        head = text[max(match.start() - _EPOCH_LENGTH, 0) : match.start()]
        epoch_match = _EPOCH.search(head)
        epoch = int(epoch_match[1]) if epoch_match is not None else 1
        step = counter.count(epoch, int(match[1]), int(match[2]))
        if records and step <= records[-1].step:
            n_restarts += 1
            counter.first_printed_step = int(match[1])
        printed_loss = fields["loss"].strip("[]").split("/")[0]
        has_separate_loss = has_separate_loss or "lm_loss" in fields
        losses.append(fields.get("lm_loss", printed_loss))
        norms.append(fields.get("global_norm", ""))
        records.append(_build_record(step, printed_loss, fields, n_restarts))
    if not records:
        return None
    records, restarts, repeat_notes = order_records(records)
    columns = build_columns(records)
    notes = []
    if counter.step_offset:
        notes.append("step numbers that restart within an epoch are continued")
    if not has_separate_loss and not columns["other_losses"]:
        notes.append(
            "the loss includes auxiliary losses (of experts, of multi-token prediction)"
            " if the model has any"
        )
    n_decimals = len(losses[0].partition(".")[2])
    return Curves(
        path=path,
        format=FORMAT,
        format_variant="separate losses" if has_separate_loss else f"{n_decimals} decimals",
        loss_resolution=estimate_resolution(losses),
        norm_resolution=estimate_resolution(norms),
        restarts=restarts,
        notes=(*notes, *repeat_notes),
        **columns,
    )


class _StepCounter:
    """Computes the number of a step in the whole training from its number within the epoch."""

    def __init__(self) -> None:
        self.step_offset = 0  #: steps to add, because the printed numbers restarted within an epoch
        self.first_printed_step = 0  #: of the current process
        self._first_epoch: int | None = None
        self._last: tuple[int, int] = (0, 0)  #: epoch and step of the previous line

    def count(self, epoch: int, step: int, epoch_length: int) -> int:
        """Return the number of a step, from 1 on."""
        if self._first_epoch is None:
            self._first_epoch = epoch
        self.first_printed_step = self.first_printed_step or step
        # A run that was resumed without data sink begins with a later step, and restarts within the
        # epoch.
        is_wrapped = self._last == (epoch, epoch_length) and step == 1
        if is_wrapped and self.first_printed_step > 1:
            self.step_offset += epoch_length
        self._last = (epoch, step)
        n_epochs = epoch - min(self._first_epoch, 1)  # the first releases count epochs from 0
        return n_epochs * epoch_length + step + self.step_offset


def _parse_fields(line: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for field in line.split(", "):
        name, colon, value = field.partition(":")
        if colon:
            fields[name.strip()] = value.strip(" }")
    return fields


def _build_record(
    step: int, printed_loss: str, fields: Mapping[str, str], n_restarts: int
) -> Record:
    norm_text = fields.get("global_norm", "")
    overflow = "true" in fields.get("overflow cond", "").lower()
    loss, total_loss = parse_number(printed_loss), math.nan
    if "lm_loss" in fields:
        loss, total_loss = parse_number(fields["lm_loss"]), loss
    return Record(
        step=step,
        loss=loss,
        total_loss=total_loss,
        norm=parse_number(norm_text),
        rate=parse_number(fields.get("lr", "")),
        scale=parse_number(fields.get("loss_scale", "")),
        skipped=overflow,
        overflow=overflow,
        nonfinite=is_nonfinite(printed_loss) or is_nonfinite(norm_text),
        other_losses={
            name: parse_number(fields[name]) for name in _AUXILIARY_LOSSES if name in fields
        },
        n_restarts=n_restarts,
    )
