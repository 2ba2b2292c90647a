"""One op of a trace as a call: its whole tensors, its numbers, what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.trace import Trace


@dataclass(frozen=True)
class Execution:
    """What one op read and wrote, as recorded; ``inputs`` in slot order, with the parameters of a module call last."""

    inputs: tuple[AnyArray | float, ...]
    named: Mapping[str, AnyArray | float]
    output: AnyArray  #: the first one


def execution(trace: Trace, tensors: Iterable[int]) -> Execution | None:
    """The execution whose tensors have these ids; None without a whole output, or if an input is statistics only.

    Raises nothing: a tensor that cannot be read counts as not recorded.
    """
    inputs: list[AnyArray | float] = []
    named: dict[str, AnyArray | float] = {}
    output: AnyArray | None = None
    table = trace.tensors
    for row in tensors:
        role, slot = str(table["role"].iat[row]), str(table["slot"].iat[row]).partition(".")[2]
        if role == "output" and output is not None:
            continue
        value = _value(trace, row)
        if value is None:
            if role == "output" or not table["constant"].iat[row]:
                return None
        elif role == "output":
            output = np.asarray(value)
        elif role == "parameter" or slot.replace(".", "").isdigit():
            inputs.append(value)
        else:
            named[slot] = value
    return None if output is None else Execution(tuple(inputs), named, output)


def whole(trace: Trace, tensor: int) -> AnyArray | None:
    """The whole tensor in its recorded shape (files of reshaped outputs carry the input's); None if there is none."""
    try:
        array = trace.array(tensor)
    except (DumpError, KeyError, OSError, ValueError):
        return None
    shape = trace.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape, dtype=np.int64):
        return array.reshape(shape)
    return array


def _value(trace: Trace, row: int) -> AnyArray | float | None:
    """The whole tensor, or the number that an immediate value is; None if neither was recorded."""
    if trace.tensors["file"].iat[row]:
        return whole(trace, row)
    number = float(trace.tensors["max"].iat[row])
    single = trace.tensors["size"].iat[row] == 1 or trace.tensors["shape"].iat[row] == ()
    return (
        number if trace.tensors["constant"].iat[row] and single and not np.isnan(number) else None
    )
