"""Scalars in event files of TensorBoard, read without TensorBoard or TensorFlow.

A file is a row of records (length, checksum, bytes, checksum), each the protobuf message ``Event``:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..checkpoints.protobuf import Field, iterate_fields, to_signed
from ..model.errors import DumpError
from .curves import Curves, PrintedStep, RateOf, build_curves
from .log_text import MAX_STEP
from .metric_names import LOSSES, NORMS, RATES, find_name

FORMAT = "tensorboard"

_HEAD = struct.Struct("<QI")  #: length of a record, and its checksum
_CHECKSUM_BYTES = 4
#: Fields of Event, Summary, Value and TensorProto.
_STEP, _SUMMARY, _VALUE = 2, 5, 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_TENSOR_CONTENT, _FLOAT_VALUES = 4, 5
_MAX_RECORD = 1 << 26  #: bytes; one with scalars has some hundred, one with an image more
_FILE_VERSION = b"brain.Event:"  #: in the first record of every file
#: Megatron-LM records the rate of the next step under this tag, as it prints it.
_NEXT_RATE = "learning-rate"
_NEMO_LOSS = "reduced_train_loss"


def is_event_file(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of an event file."""
    return _FILE_VERSION in head[: _HEAD.size + 64]


def parse(data: bytes, path: str) -> Curves:
    """Return the run in an event file. Raises DumpError if it has no scalar that is a loss."""
    series = read_series(data)
    loss_name = find_name(series, LOSSES)
    if not loss_name:
        shown_tags = ", ".join(sorted(series)[:8]) or "none"
        raise DumpError(
            f"{path}: no scalar in it is a training loss (its tags: {shown_tags});"
            f" expected one of {', '.join(LOSSES)}"
        )
    norms = dict(series.get(find_name(series, NORMS), []))
    rate_name = find_name(series, RATES)
    rates = dict(series.get(rate_name, []))
    losses = series[loss_name]
    # Lightning and NeMo number from 0; then the first loss is that of step 1.
    offset = 1 if losses[0][0] == 0 or loss_name == _NEMO_LOSS else 0
    printed_steps = [
        PrintedStep(
            step + offset,
            _format_float32(loss),
            _format_float32(norms.get(step)),
            _format_float32(rates.get(step)),
        )
        for step, loss in losses
        if 0 < step + offset <= MAX_STEP
    ]
    if not printed_steps:
        raise DumpError(f"{path}: no step of {loss_name} has a number from 1 on")
    rate_of: RateOf = "next" if rate_name == _NEXT_RATE else "unknown"
    notes = ["steps are numbered from 0 there, and from 1 here"] if offset else []
    return build_curves(
        printed_steps, path, FORMAT, f"tag {loss_name}", rate_of=rate_of, notes=notes
    )


def _format_float32(value: float | None) -> str:
    """Return a value with the digits that float32 keeps, '' for None."""
    return "" if value is None else f"{value:.7e}"


def read_series(data: bytes) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of every scalar by its tag.

    A file that is still written, or was cut off, ends before its last record.
    """
    series: dict[str, list[tuple[int, float]]] = {}
    for begin, end in _iterate_records(data):
        for step, tag, value in _read_event(data, begin, end):
            series.setdefault(tag, []).append((step, value))
    return series


def _iterate_records(data: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while position + _HEAD.size <= len(data):
        length, _ = _HEAD.unpack_from(data, position)
        begin = position + _HEAD.size
        if length > _MAX_RECORD or begin + length > len(data):
            return
        yield begin, begin + length
        position = begin + length + _CHECKSUM_BYTES


def _read_event(data: bytes, begin: int, end: int) -> list[tuple[int, str, float]]:
    """Return step, tag and value of each scalar of an event, none if its bytes are damaged."""
    step = 0
    scalars: list[tuple[str, float]] = []
    try:
        for field in iterate_fields(data, begin, end):
            if field.number == _STEP:
                step = to_signed(field.value)
            elif field.number == _SUMMARY:
                scalars = list(_iterate_scalars(data, field))
    except ValueError:
        return []
    return [(step, tag, value) for tag, value in scalars]


def _iterate_scalars(data: bytes, summary: Field) -> Iterator[tuple[str, float]]:
    for field in iterate_fields(data, summary.begin, summary.end):
        if field.number != _VALUE:
            continue
        tag, value = _read_value(data, field)
        if value is not None:
            yield tag, value


def _read_value(data: bytes, message: Field) -> tuple[str, float | None]:
    """Return the tag of one value, and its number if it is a scalar."""
    tag, number = "", None
    for field in iterate_fields(data, message.begin, message.end):
        content = data[field.begin : field.end]
        if field.number == _TAG:
            tag = content.decode("utf-8", errors="replace")
        elif field.number == _SIMPLE_VALUE and len(content) == 4:
            number = struct.unpack("<f", content)[0]
        elif field.number == _TENSOR:
            number = _read_tensor(data, field)
    return tag, number


def _read_tensor(data: bytes, message: Field) -> float | None:
    """Return the number of a float tensor with one element, None for any other."""
    for field in iterate_fields(data, message.begin, message.end):
        is_number = field.number in (_TENSOR_CONTENT, _FLOAT_VALUES)
        if is_number and field.end - field.begin == 4:
            number: float = struct.unpack("<f", data[field.begin : field.end])[0]
            return number
    return None
