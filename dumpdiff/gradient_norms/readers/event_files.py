"""Norms of gradients in event files of TensorBoard, as two frameworks write them.

MindSpore Transformers (``monitor_config`` with ``local_norm_format: tensorboard``) has a scalar
``local_norm/NAME`` of each parameter, PyTorch Lightning (``self.log_dict(grad_norm(self, 2))``)
``grad_2.0_norm/NAME`` and the norm of all, ``grad_2.0_norm_total``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...model.errors import DumpError
from ...model.input_files import read_head, read_input_bytes
from ...training_logs.tensorboard import is_event_file, read_series
from ..norms import Norms, build_norms

_PATTERN = "events.out.tfevents.*"
_HEAD_SIZE = 256
_TAG = re.compile(r"(?P<prefix>local_norm|grad_2(?:\.0)?_norm)/(?P<name>.+)")
_TOTAL = re.compile(r"grad_2(?:\.0)?_norm_total")
#: Half of the last bit of float32, relative: scalars are of float32.
_ROUNDING = 2.0**-25
_MAX_LISTED = 12  #: steps, or tags, in a message


def find_event_files(path: Path) -> list[Path]:
    """Return the event files in a folder, or the file if it is one."""
    files = [path] if path.is_file() else sorted(path.glob(_PATTERN))
    return [file for file in files if is_event_file(read_head(file, _HEAD_SIZE))]


def read_event_norms(path: str, files: Sequence[Path], step: int | None) -> Norms:
    """Read the norms of one step; ``step`` counts from 1, also where the files count from 0.

    Raises DumpError if there is no norm of a parameter's gradient, or no such step.
    """
    series = read_series(b"".join(map(_read_bytes, files)))
    matches = {tag: match for tag in series if (match := _TAG.fullmatch(tag))}
    if not matches:
        shown_tags = ", ".join(sorted(series)[:_MAX_LISTED]) or "none"
        raise DumpError(
            f"{path}: no scalar in it is the norm of a gradient (its tags: {shown_tags}); "
            "expected local_norm/NAME or grad_2.0_norm/NAME"
        )
    steps = sorted({number for tag in matches for number, _ in series[tag]})
    offset = 1 if steps[0] == 0 else 0
    chosen_step = steps[0] if step is None else step - offset
    if chosen_step not in steps:
        listed = ", ".join(str(number + offset) for number in steps[:_MAX_LISTED])
        raise DumpError(f"{path}: has no step {step}; it has {listed}")
    values = {
        match["name"]: value
        for tag, match in matches.items()
        for number, value in series[tag]
        if number == chosen_step
    }
    totals = [dict(series[tag]).get(chosen_step) for tag in series if _TOTAL.fullmatch(tag)]
    total = next((value for value in totals if value is not None), np.nan)
    numbers = np.array(list(values.values()))
    norms = build_norms(
        path,
        "event files of TensorBoard",
        tuple(values),
        numbers,
        raw_rounding=np.abs(numbers) * _ROUNDING,
        squared=False,
        squared_reason="both frameworks write roots",
    )
    return replace(
        norms,
        step=chosen_step + offset,
        global_norm=total,
        global_norm_rounding=abs(total) * _ROUNDING if np.isfinite(total) else 0.0,
    )


def _read_bytes(file: Path) -> bytes:
    try:
        return read_input_bytes(file)
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from None
