"""Logs of MindSpore Transformers: ``{ Epoch:[  1/  2], step:[    1/    8], loss: 4.143459, ... }``.

Read off releases 0.2 to 1.8; the head of a line changes with the release, so what follows ``Epoch:[`` is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from .curves import Curves, Record, columns, ordered
from .numbers import anchored, is_nonfinite, number, resolution

FORMAT = "mindformers"
ANCHOR = "{ Epoch:[<n>/<total>], step:[<n>/<total>], loss: ..., }"

#: A comma behind the step's bracket tells the line of a step from those of the monitors. What stands before it is
#: looked at afterwards: a pattern that begins with plain text is found many times faster.
_RECORD = re.compile(r"step:\[\s*(\d{1,9})/\s*(\d{1,9})\],")
_EPOCH = re.compile(r"Epoch:\[\s*(\d{1,9})/\s*\d+\],\s*$")
_HEAD = 40  #: characters before the step that hold the epoch
_ASIDE = ("load_balancing_loss", "mtp_loss", "extra_loss")


def parse(text: str, path: str) -> Curves | None:
    """The run that a log tells of, None if it holds no line of this format."""
    if "step:[" not in text:
        return None
    records: list[Record] = []
    losses: list[str] = []
    norms: list[str] = []
    total = wrapped = process = begin = 0
    first: int | None = None
    last: tuple[int, int] = (0, 0)
    for match, line in anchored(_RECORD, text):
        head = _EPOCH.search(text[max(match.start() - _HEAD, 0) : match.start()])
        fields = _fields(line)
        if "loss" not in fields:
            continue
        epoch, step, length = int(head[1]) if head is not None else 1, int(match[1]), int(match[2])
        first = epoch if first is None else first
        begin = begin or step
        if last == (epoch, length) and step == 1 and begin > 1:
            wrapped += length  # resumed without data sink: the step wraps, the epoch does not
        last = (epoch, step)
        at = (
            (epoch - min(first, 1)) * length + step + wrapped
        )  # the first releases count epochs from 0
        if records and at <= records[-1].step:
            process, begin = process + 1, step
        printed = fields["loss"].strip("[]").split("/")[0]
        total += "lm_loss" in fields
        losses.append(fields.get("lm_loss", printed))
        norms.append(fields.get("global_norm", ""))
        records.append(_record(at, printed, fields, process))
    if not records:
        return None
    kept, restarts = ordered(records)
    arrays, others = columns(kept)
    notes = ["steps are counted on where they begin anew within an epoch"] if wrapped else []
    if not total and not others:
        notes.append(
            "the loss includes auxiliary losses (of experts, of multi-token prediction) if the model has any"
        )
    return Curves(
        path=path,
        format=FORMAT,
        era="separate losses" if total else f"{len(losses[0].partition('.')[2])} decimals",
        loss_resolution=resolution(losses),
        norm_resolution=resolution(norms),
        restarts=restarts,
        others=others,
        notes=tuple(notes),
        **arrays,
    )


def _fields(line: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for field in line.split(", "):
        key, colon, value = field.partition(":")
        if colon:
            found[key.strip()] = value.strip(" }")
    return found


def _record(step: int, printed: str, fields: Mapping[str, str], process: int) -> Record:
    norm = fields.get("global_norm", "")
    overflow = "true" in fields.get("overflow cond", "").lower()
    separate = fields.get("lm_loss")
    return Record(
        step=step,
        loss=number(printed if separate is None else separate),
        total=math.nan if separate is None else number(printed),
        norm=number(norm),
        rate=number(fields.get("lr", "")),
        scale=number(fields.get("loss_scale", "")),
        skipped=overflow,
        overflow=overflow,
        nonfinite=is_nonfinite(printed) or is_nonfinite(norm),
        others={name: number(fields[name]) for name in _ASIDE if name in fields},
        process=process,
    )
