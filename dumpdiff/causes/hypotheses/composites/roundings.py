"""Steps that were rounded to, or computed in, a narrower type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....comparison.narrow_dtypes import round_to_dtype
from ....model.arrays import AnyArray
from ....model.dtypes import get_unit_roundoff
from ...fault_case import FaultCase
from ...region import Region
from .change import Change

#: Errors beyond this many units of a narrow type are no rounding errors.
_MAX_ROUNDING_UNITS = 32.0


def list_roundings(case: FaultCase, region: Region) -> Iterator[Change]:
    """Round the output of a step, and its inputs too, to a narrower type."""
    for dtype in ("float16", "bfloat16"):
        if case.error > _MAX_ROUNDING_UNITS * get_unit_roundoff(dtype):
            continue
        for number, step in enumerate(region.steps):
            if step.output.dtype.kind != "f":
                continue
            yield Change(
                number,
                _round(step.output, dtype),
                "low-precision",
                f"{step.name} ({step.kind}) rounded to {dtype}",
                is_chaotic=True,
            )
            inputs = [_round(item, dtype) for item in step.list_arrays()]
            output = step.compute(inputs)
            if output is not None:
                yield Change(
                    number,
                    _round(output, dtype),
                    "low-precision",
                    f"{step.name} ({step.kind}) computed in {dtype}",
                    is_chaotic=True,
                )


def _round(array: AnyArray, dtype: str) -> AnyArray:
    if array.dtype.kind != "f":
        return array
    return round_to_dtype(array.astype(np.float32), dtype).astype(np.float64)
