"""Logs of the Hugging Face Trainer and of ms-swift: printed dictionaries, JSON lines, ``trainer_state.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .curves import Curves, Record, columns, interval, ordered
from .numbers import is_nonfinite, number, resolution

FORMAT = "trainer"
ANCHOR = "{'loss': ..., 'learning_rate': ...}"

#: A dictionary of a step, or the progress bar before it: of both only the dictionary always is there.
_RECORD = re.compile(r"\{'(?:loss|lm loss)':[^{}\n]*\}|\b(\d{1,9})/(\d{1,9}) \[")
_PAIR = re.compile(r"'([^']+)':\s*('[^']*'|[^,'}]+)")
_STEPS = ("global_step/max_steps", "iteration", "step")
_LOSSES = ("loss", "lm loss")
_NORMS = ("grad_norm", "grad norm")
_ASIDE = ("load_balancing_loss", "mtp_1_loss", "mtp_loss", "z_loss")


def parse(text: str, path: str) -> Curves | None:
    """The run that a log tells of, None if it holds no record of this format."""
    if "'loss'" not in text and '"loss"' not in text and "lm loss" not in text:
        return None
    found = list(
        _of_json(text) if text.lstrip()[:1] in ("{", "[") and '"' in text[:2000] else _printed(text)
    )
    if not found:
        return None
    records: list[Record] = []
    process = 0
    for count, (step, fields) in enumerate(found, 1):
        at = step if step is not None else count
        if records and at <= records[-1].step:
            process += 1
        records.append(_record(at, fields, process))
    kept, restarts = ordered(records)
    arrays, others = columns(kept)
    every = interval(arrays["steps"])
    counted = any(step is None for step, _ in found)
    return Curves(
        path=path,
        format=FORMAT,
        era="ms-swift"
        if any("global_step/max_steps" in fields for _, fields in found)
        else "Trainer",
        rate_of="unknown",  # before transformers 4.51 the next step's, since then the one that was used
        loss_resolution=resolution(_first(fields, _LOSSES) for _, fields in found),
        norm_resolution=resolution(_first(fields, _NORMS) for _, fields in found),
        interval=every,
        averaged=every > 1,
        restarts=restarts,
        others=others,
        notes=("the log numbers no steps: records were counted; trainer_state.json has them",)
        if counted
        else (),
        **arrays,
    )


def _printed(text: str) -> Iterator[tuple[int | None, Mapping[str, str]]]:
    """Dictionaries as Python prints them; the step is theirs, else that of the progress bar before them."""
    bars = [match for match in _RECORD.finditer(text) if match[1] is not None]
    longest = max((int(bar[2]) for bar in bars), default=0)  # evaluation has a bar of its own
    shown: int | None = None
    last = 0
    for match in _RECORD.finditer(text):
        if match[1] is not None:
            shown = int(match[1]) if int(match[2]) == longest else shown
            continue
        fields = {key: value.strip("' ") for key, value in _PAIR.findall(match[0])}
        step = _step(fields)
        if step is None and shown is not None:
            step = shown + 1 if shown == last else shown  # the bar was drawn again before it moved
        last = step or last
        yield step, fields


def _of_json(text: str) -> Iterator[tuple[int | None, Mapping[str, str]]]:
    """``trainer_state.json`` in one piece, or one object a line; an unreadable line is passed over."""
    try:
        whole = json.loads(text)
        entries = whole.get("log_history", [whole]) if isinstance(whole, dict) else whole
    except (ValueError, RecursionError):
        entries = [entry for line in text.splitlines() if (entry := _object(line)) is not None]
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and any(key in entry for key in _LOSSES):
            fields = {
                str(key): str(value)
                for key, value in entry.items()
                if not isinstance(value, (dict, list))
            }
            yield _step(fields), fields


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _step(fields: Mapping[str, str]) -> int | None:
    for name in _STEPS:
        digits = fields.get(name, "").partition("/")[0]
        if digits.isascii() and digits.isdigit() and len(digits) < 10:
            return int(digits)
    return None


def _first(fields: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((fields[name] for name in names if name in fields), "")


def _record(step: int, fields: Mapping[str, str], process: int) -> Record:
    loss, norm = _first(fields, _LOSSES), _first(fields, _NORMS)
    return Record(
        step=step,
        loss=number(loss),
        norm=number(norm),
        rate=number(_first(fields, ("learning_rate", "learning rate", "lr"))),
        scale=number(fields.get("loss_scale", "")),
        nonfinite=is_nonfinite(loss) or is_nonfinite(norm),
        others={name: number(fields[name]) for name in _ASIDE if name in fields},
        process=process,
    )
