"""Logs of the Hugging Face Trainer and of what uses it: ms-swift, LLaMA-Factory.

Three forms are read: printed dictionaries, JSON lines (also of LLaMA-Factory, Weights & Biases and
verl), and ``trainer_state.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .curves import Curves, Record, build_columns, estimate_interval, order_records
from .epochs import number_steps
from .log_text import estimate_resolution, is_nonfinite, parse_number
from .metric_names import LOSSES, NORMS, RATES, STEPS, find_name

FORMAT = "trainer"
LINE_PATTERN = "{'loss': ..., 'learning_rate': ...}"

#: The dictionary of a step, or the progress bar before it; only the dictionary is always printed.
_RECORD = re.compile(r"\{[^{}\n]{0,500}'(?:loss|lm loss)':[^{}\n]*\}|\b(\d{1,9})/(\d{1,9}) \[")
_JSON_LOSS = re.compile(r'"(?:\w+/)?\w*loss"')
_PAIR = re.compile(r"'([^']+)':\s*('[^']*'|[^,'}]+)")
_SWIFT_STEP, _LLAMA_FACTORY_STEP = "global_step/max_steps", "current_steps"
_STEP_NUMBER = re.compile(r"[0-9]{1,9}")  #: longer numbers are damage, not steps
_AUXILIARY_LOSSES = ("load_balancing_loss", "mtp_1_loss", "mtp_loss", "z_loss")
_SUMMARY = "train_runtime"  #: only in the last record, whose loss is that of all steps
_JSON_SAMPLE = 2000  #: characters in which JSON has a double quote
_COPY_WINDOW = 16  #: records before one among which its copy is searched
_COPY_SHARE = 0.4  #: of all records; fewer equal ones are equal by chance


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no record of this format."""
    if "'loss'" not in text and not _JSON_LOSS.search(text) and "lm loss" not in text:
        return None
    is_json = text.lstrip()[:1] in ("{", "[") and '"' in text[:_JSON_SAMPLE]
    printed_steps: Sequence[tuple[int | None, Mapping[str, str]]]
    printed_steps = list(_read_json(text) if is_json else _read_printed(text))
    if not printed_steps:
        return None
    printed_steps, notes = _drop_copies(printed_steps)
    steps = [step for step, _ in printed_steps]
    all_fields = [fields for _, fields in printed_steps]
    numbers, number_notes = number_steps(steps, all_fields, text)
    records: list[Record] = []
    n_restarts = 0
    for step, fields in zip(numbers, all_fields, strict=True):
        if records and step <= records[-1].step:
            n_restarts += 1
        records.append(_build_record(step, fields, n_restarts))
    records, restarts, repeat_notes = order_records(records)
    columns = build_columns(records)
    interval = estimate_interval(columns["steps"])
    return Curves(
        path=path,
        format=FORMAT,
        format_variant=_find_variant(all_fields),
        rate_of="unknown",  # before transformers 4.51 the rate of the next step, later the one used
        loss_resolution=estimate_resolution(_get_first(fields, LOSSES) for fields in all_fields),
        norm_resolution=estimate_resolution(_get_first(fields, NORMS) for fields in all_fields),
        interval=interval,
        averaged=interval > 1,
        restarts=restarts,
        notes=(*notes, *number_notes, *repeat_notes),
        **columns,
    )


def _find_variant(all_fields: Iterable[Mapping[str, str]]) -> str:
    """Return the program that printed the records, by the name of their step."""
    for fields in all_fields:
        if _SWIFT_STEP in fields:
            return "ms-swift"
        if _LLAMA_FACTORY_STEP in fields:
            return "LLaMA-Factory"
    return "Trainer"


def _drop_copies(
    printed_steps: Sequence[tuple[int | None, Mapping[str, str]]],
) -> tuple[list[tuple[int | None, Mapping[str, str]]], list[str]]:
    """Return the records without those that another host printed, and a note on them.

    The first process of every host prints the same numbers, a little earlier or later.
    """
    kept_steps: list[tuple[int | None, Mapping[str, str]]] = []
    for printed_step in printed_steps:
        if printed_step not in kept_steps[-_COPY_WINDOW:]:
            kept_steps.append(printed_step)
    n_copies = len(printed_steps) - len(kept_steps)
    if n_copies < _COPY_SHARE * len(printed_steps):
        return list(printed_steps), []
    return kept_steps, [f"{n_copies} records are copies that other hosts printed: left out"]


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
        nested_entry = entry.get("data")  # verl
        all_values = {**entry, **nested_entry} if isinstance(nested_entry, dict) else entry
        if _SUMMARY in entry or not find_name(all_values, LOSSES):
            continue
        fields = {}
        for name, value in all_values.items():
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
    for name in STEPS:
        digits = fields.get(name, "").partition("/")[0].removesuffix(".0")
        if _STEP_NUMBER.fullmatch(digits):
            return int(digits)
    return None


def _get_first(fields: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of the first of ``names`` that exists, or ''."""
    return fields.get(find_name(fields, names), "")


def _build_record(step: int, fields: Mapping[str, str], n_restarts: int) -> Record:
    loss_text, norm_text = _get_first(fields, LOSSES), _get_first(fields, NORMS)
    return Record(
        step=step,
        loss=parse_number(loss_text),
        norm=parse_number(norm_text),
        rate=parse_number(_get_first(fields, RATES)),
        scale=parse_number(fields.get("loss_scale", "")),
        nonfinite=is_nonfinite(loss_text) or is_nonfinite(norm_text),
        other_losses={
            name: parse_number(fields[name]) for name in _AUXILIARY_LOSSES if name in fields
        },
        n_restarts=n_restarts,
    )
