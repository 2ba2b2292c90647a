"""A contradiction about one record, and its statistics, in words."""

from __future__ import annotations

import numpy as np

from ..model.trace import Trace
from .contradictions import Contradiction, Kind


def build_contradiction(
    trace: Trace, kind: Kind, row: int, recorded: str, computed: str
) -> Contradiction:
    """Return a contradiction about the tensor in ``row``."""
    tensors = trace.tensors
    return Contradiction(
        kind,
        row,
        get_op_name(trace, row),
        str(tensors["slot"].iat[row]),
        str(tensors["file"].iat[row]),
        recorded,
        computed,
    )


def format_statistics(trace: Trace, row: int) -> str:
    """Return the recorded statistics of a tensor in words: 'max 3.5, min -1, norm 12.25'."""
    values = {name: float(trace.tensors[name].iat[row]) for name in ("max", "min", "mean", "norm")}
    is_nonfinite = int(trace.tensors["nonfinite"].iat[row]) == 1
    return format_numbers(values, is_nonfinite)


def format_numbers(values: dict[str, float], is_nonfinite: bool) -> str:
    """Return statistics in words; a NaN is only mentioned where one was recorded."""
    words = []
    for name, value in values.items():
        if not np.isnan(value) or (is_nonfinite and name in ("max", "min")):
            words.append(f"{name} {value:.6g}")
    return ", ".join(words) or "no statistics"


def get_op_name(trace: Trace, row: int) -> str:
    """Return the name of the op whose tensor is in ``row``."""
    return str(trace.ops["name"].iat[int(trace.tensors["op"].iat[row])])
