"""One op of a trace as a call: its whole tensors, its numbers and its output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import Trace


@dataclass(frozen=True)
class Execution:
    """What one op read and wrote, as recorded.

    ``inputs`` are in slot order, with the parameters of a module call last.
    """

    inputs: tuple[AnyArray | float, ...]
    keywords: Mapping[str, AnyArray | float]
    output: AnyArray  #: the first one


def read_execution(trace: Trace, tensors: Iterable[int]) -> Execution | None:
    """Return the execution whose tensors have these ids.

    None if there is no whole output, or if only statistics of an input were recorded. Raises
    nothing: a tensor that cannot be read counts as not recorded.
    """
    inputs: list[AnyArray | float] = []
    keywords: dict[str, AnyArray | float] = {}
    output: AnyArray | None = None
    table = trace.tensors
    for row in tensors:
        slot_kind = str(table["slot_kind"].iat[row])
        slot_name = str(table["slot"].iat[row]).partition(".")[2]
        if slot_kind == "output" and output is not None:
            continue
        value = _read_value(trace, row)
        if value is None:
            if slot_kind == "output" or not table["constant"].iat[row]:
                return None
        elif slot_kind == "output":
            output = np.asarray(value)
        elif slot_kind == "parameter" or slot_name.replace(".", "").isdecimal():
            inputs.append(value)
        else:
            keywords[slot_name] = value
    if output is None:
        return None
    return Execution(tuple(inputs), keywords, output)


def _read_value(trace: Trace, row: int) -> AnyArray | float | None:
    """Return the whole tensor, or an immediate number; None if neither was recorded."""
    table = trace.tensors
    if table["file"].iat[row]:
        return load_readable_tensor(trace, row)
    if not table["constant"].iat[row]:
        return None
    is_single = table["size"].iat[row] == 1 or table["shape"].iat[row] == ()
    number = float(table["max"].iat[row])
    if not is_single or np.isnan(number):
        return None
    return number
