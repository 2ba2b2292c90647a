"""Logs of Megatron-LM, and of programs that print its line: `` iteration        1/       6 | lm loss: ... |``.

Fields are told by their names, never by their place: versions and forks add some. What versions print was read off
core_r0.4 to core_r0.19; see docs/logs.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from .curves import Curves, Record, columns, interval, ordered
from .numbers import anchored, is_nonfinite, number, resolution

FORMAT = "megatron"
ANCHOR = "iteration <n>/<total> | ... |"

_RECORD = re.compile(r"iteration\s+(\d{1,9})\s*/\s*\d+\s*\|")
_BEGIN = re.compile(r"-{5,} end of arguments -{5,}")
_MICROSECONDS = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\]\s+iteration\s")
_LOSSES = ("lm loss", "loss", "reduced_train_loss")
#: Losses that are printed beside that of the model.
_ASIDE = re.compile(r"load_balancing|z_loss|mtp_|aux|seq_|global_|indexer")


def parse(text: str, path: str) -> Curves | None:
    """The run that a log tells of, None if it holds no line of this format."""
    if "iteration" not in text:
        return None
    begins = [match.start() for match in _BEGIN.finditer(text)]
    records: list[Record] = []
    losses: list[str] = []
    norms: list[str] = []
    process = begun = 0
    for match, line in anchored(_RECORD, text):
        fields = _fields(line)
        if not {"learning rate", "number of skipped iterations", "lm loss"} & fields.keys():
            continue  # memory and timing lines have iterations too
        while begun < len(begins) and begins[begun] < match.start():
            begun += 1
            process += bool(records)
        if records and int(match[1]) <= records[-1].step and process == records[-1].process:
            process += 1
        records.append(_record(int(match[1]), fields, process))
        losses.append(fields.get(_loss_key(fields), ""))
        norms.append(fields.get("grad norm", ""))
    if not records:
        return None
    modern = _MICROSECONDS.search(text) is not None
    notes: list[str] = []
    if modern:
        records, notes = _unaveraged(records)
    # The rate beside a step is that of the next one; the first step's is not printed.
    kept, restarts = ordered(records)
    arrays, others = columns(kept)
    every = interval(arrays["steps"])
    return Curves(
        path=path,
        format=FORMAT,
        era="core 0.16 or later" if modern else "before core 0.16",
        rate_of="next",
        loss_resolution=resolution(losses),
        norm_resolution=resolution(norms),
        interval=every,
        averaged=every > 1,
        restarts=restarts,
        others=others,
        notes=tuple(notes),
        **arrays,
    )


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for field in text.split("|"):
        key, colon, value = field.rpartition(":")
        if colon:
            found[key.strip()] = value.strip()
    return found


def _loss_key(fields: Mapping[str, str]) -> str:
    for name in _LOSSES:
        if name in fields:
            return name
    return next((name for name in fields if name.endswith("loss") and not _ASIDE.search(name)), "")


def _record(step: int, fields: Mapping[str, str], process: int) -> Record:
    loss = fields.get(_loss_key(fields), "")
    norm = fields.get("grad norm", "")
    skipped = number(fields.get("number of skipped iterations", "0")) > 0
    # NaN makes the loss of versions before 0.17 vanish, while "number of nan iterations" counts skipped ones only.
    lost = not loss and not skipped
    return Record(
        step=step,
        loss=math.nan if skipped and number(loss) == 0 else number(loss),
        norm=number(norm),
        rate=number(fields.get("learning rate", "")),
        scale=number(fields.get("loss scale", "")),
        skipped=skipped,
        overflow=skipped,
        nonfinite=lost or is_nonfinite(loss) or is_nonfinite(norm),
        others={name: number(value) for name, value in fields.items() if _ASIDE.search(name)},
        process=process,
    )


def _unaveraged(records: list[Record]) -> tuple[list[Record], list[str]]:
    """Since core 0.16 the second line of a process is the mean of the first two: l2 = 2 p2 - p1."""
    put_right = list(records)
    steps: list[int] = []
    for i in range(1, len(records)):
        first, second = records[i - 1], records[i]
        begins = i == 1 or records[i - 2].process != first.process
        if begins and second.process == first.process and second.step == first.step + 1:
            loss = 2 * second.loss - first.loss
            others = {
                name: 2 * value - first.others.get(name, math.nan)
                for name, value in second.others.items()
            }
            put_right[i] = replace(second, loss=loss, others=others)
            steps.append(second.step)
    where = ", ".join(map(str, steps))
    said = f"step {where}: Megatron-LM prints the mean of the first two steps there; the loss of the step was recovered"
    return put_right, [said] if steps else []
