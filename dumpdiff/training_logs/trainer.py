"""Logs of the Hugging Face Trainer and of ms-swift.

Three forms are read: printed dictionaries, JSON lines, and ``trainer_state.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .curves import Curves, Record, build_columns, estimate_interval, order_records
from .log_text import estimate_resolution, is_nonfinite, parse_number

FORMAT = "trainer"
LINE_PATTERN = "{'loss': ..., 'learning_rate': ...}"

#: The dictionary of a step, or the progress bar before it; only the dictionary is always printed.
_RECORD = re.compile(r"\{'(?:loss|lm loss)':[^{}\n]*\}|\b(\d{1,9})/(\d{1,9}) \[")
_PAIR = re.compile(r"'([^']+)':\s*('[^']*'|[^,'}]+)")
_SWIFT_STEP = "global_step/max_steps"
_STEPS = (_SWIFT_STEP, "iteration", "step")
_STEP_NUMBER = re.compile(r"[0-9]{1,9}")  #: longer numbers are damage, not steps
_LOSSES = ("loss", "lm loss")
_NORMS = ("grad_norm", "grad norm")
_RATES = ("learning_rate", "learning rate", "lr")
_AUXILIARY_LOSSES = ("load_balancing_loss", "mtp_1_loss", "mtp_loss", "z_loss")
_JSON_SAMPLE = 2000  #: characters in which JSON has a double quote


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no record of this format."""
    if "'loss'" not in text and '"loss"' not in text and "lm loss" not in text:
        return None
    is_json = text.lstrip()[:1] in ("{", "[") and '"' in text[:_JSON_SAMPLE]
    numbered_fields = list(_read_json(text) if is_json else _read_printed(text))
    if not numbered_fields:
        return None
    records: list[Record] = []
    n_restarts = 0
    for count, (printed_step, fields) in enumerate(numbered_fields, 1):
        step = count if printed_step is None else printed_step
        if records and step <= records[-1].step:
            n_restarts += 1
        records.append(_build_record(step, fields, n_restarts))
    records, restarts = order_records(records)
    columns = build_columns(records)
    interval = estimate_interval(columns["steps"])
    all_fields = [fields for _, fields in numbered_fields]
    notes = []
    if any(step is None for step, _ in numbered_fields):
        notes.append(
            "the log does not number its steps: records were counted; use trainer_state.json"
        )
    return Curves(
        path=path,
        format=FORMAT,
        format_variant="ms-swift"
        if any(_SWIFT_STEP in fields for fields in all_fields)
        else "Trainer",
        rate_of="unknown",  # before transformers 4.51 the rate of the next step, later the one used
        loss_resolution=estimate_resolution(_get_first(fields, _LOSSES) for fields in all_fields),
        norm_resolution=estimate_resolution(_get_first(fields, _NORMS) for fields in all_fields),
        interval=interval,
        averaged=interval > 1,
        restarts=restarts,
        notes=tuple(notes),
        **columns,
    )


def _read_printed(text: str) -> Iterator[tuple[int | None, Mapping[str, str]]]:
    """Yield step and fields of each dictionary that Python printed.

    The step is in the dictionary, or else in the progress bar before it; None if there is neither.
    """
    matches = list(_RECORD.finditer(text))
    bar_lengths = [int(match[2]) for match in matches if match[1] is not None]
    training_length = max(bar_lengths, default=0)  # an evaluation has a shorter bar
    bar_step: int | None = None
    last_step = 0
    for match in matches:
        if match[1] is not None:
            if int(match[2]) == training_length:
                bar_step = int(match[1])
            continue
        fields = {name: value.strip("' ") for name, value in _PAIR.findall(match[0])}
        step = _find_step(fields)
        if step is None and bar_step is not None:
            # The bar may be printed a second time before it advances.
            step = bar_step + 1 if bar_step == last_step else bar_step
        last_step = step or last_step
        yield step, fields


def _read_json(text: str) -> Iterator[tuple[int | None, Mapping[str, str]]]:
    """Yield step and fields of each record of ``trainer_state.json``, or of JSON lines.

    Unreadable lines are skipped.
    """
    for entry in _load_entries(text):
        if not isinstance(entry, dict):
            continue
        has_loss = any(name in entry for name in _LOSSES)
        if not has_loss:
            continue
        fields = {}
        for name, value in entry.items():
            if not isinstance(value, (dict, list)):
                fields[str(name)] = str(value)
        yield _find_step(fields), fields


def _load_entries(text: str) -> list[Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return [_load_line(line) for line in text.splitlines()]
    if isinstance(document, dict):
        document = document.get("log_history", [document])
    return document if isinstance(document, list) else []


def _load_line(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _find_step(fields: Mapping[str, str]) -> int | None:
    for name in _STEPS:
        digits = fields.get(name, "").partition("/")[0]
        if _STEP_NUMBER.fullmatch(digits):
            return int(digits)
    return None


def _get_first(fields: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of the first of ``names`` that exists, or ''."""
    return next((fields[name] for name in names if name in fields), "")


def _build_record(step: int, fields: Mapping[str, str], n_restarts: int) -> Record:
    loss_text, norm_text = _get_first(fields, _LOSSES), _get_first(fields, _NORMS)
    return Record(
        step=step,
        loss=parse_number(loss_text),
        norm=parse_number(norm_text),
        rate=parse_number(_get_first(fields, _RATES)),
        scale=parse_number(fields.get("loss_scale", "")),
        nonfinite=is_nonfinite(loss_text) or is_nonfinite(norm_text),
        other_losses={
            name: parse_number(fields[name]) for name in _AUXILIARY_LOSSES if name in fields
        },
        n_restarts=n_restarts,
    )
