"""Arithmetic in a narrower dtype: recomputed with rounded inputs, or seen from the elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.arrays import AnyArray
from ...model.dtypes import get_unit_roundoff
from ...operators import Call, compute_interpretations
from ...operators.elementwise import ROUNDINGS
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis

#: The coarser one first: most of its numbers are numbers of the finer one, too.
_NARROW_DTYPES = ("bfloat16", "float16")
#: A chain of a few operators in a narrow dtype, each rounding by half a unit, errs by at most this
#: many units of the largest element.
_MAX_UNITS = 8.0
#: Units of the dtype beyond which an error is not a rounding error.
_MAX_ROUNDING_UNITS = 32.0
#: Fewest elements that show a narrow dtype.
_MIN_ELEMENTS = 8
#: If more of the faithful side's elements are numbers of the narrow dtype too, it shows nothing.
_MAX_REPRESENTABLE = 0.5


def round_to_narrow(array: AnyArray, dtype: str) -> AnyArray:
    """Return the array, rounded to a narrow dtype, in float64."""
    return round_to_dtype(array.astype(np.float32), dtype).astype(np.float64)


def suggest_rounded_inputs(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the faithful side's last op with rounded inputs, and with a rounded output."""
    call = case.call
    if call is None or case.is_source:
        return
    interpretation = _find_interpretation(case, call)
    if interpretation is None:
        return
    name, unchanged = interpretation
    inputs = call.inputs
    floating = [i for i, value in enumerate(inputs) if value.dtype.kind == "f" and value.ndim]
    for dtype in _NARROW_DTYPES:
        if case.error > _MAX_ROUNDING_UNITS * get_unit_roundoff(dtype):
            continue
        rounded_inputs = {i: round_to_narrow(inputs[i], dtype) for i in floating}
        for rounded_positions in (*([i] for i in floating), floating):
            new_inputs = list(inputs)
            for i in rounded_positions:
                new_inputs[i] = rounded_inputs[i]
            predicted = dict(_interpret(call, new_inputs)).get(name)
            if predicted is None:
                continue
            cause, text = "low-precision", f"an input rounded to {dtype}"
            if _are_scales(case, [inputs[i] for i in rounded_positions]):
                cause, text = "quantization-scale", f"a quantization scale rounded to {dtype}"
            yield Candidate(
                predicted,
                text,
                unchanged=unchanged,
                cause=cause,
                is_chaotic=True,
            )
            yield Candidate(
                round_to_narrow(predicted, dtype),
                f"computed in {dtype}",
                unchanged=unchanged,
                is_chaotic=True,
            )


def _are_scales(case: FaultCase, arrays: list[AnyArray]) -> bool:
    """Return whether a value that is rounded next is divided by these arrays."""
    is_rounded = bool(case.list_consumer_kinds() & ROUNDINGS.keys())
    is_quotient = case.call is not None and case.call.kind in ("mul", "div")
    return is_rounded and is_quotient and all(array.size < case.faithful.size for array in arrays)


def _find_interpretation(case: FaultCase, call: Call) -> tuple[str, AnyArray] | None:
    """Return the interpretation of the call that gives the faithful side's value."""
    for name, output in _interpret(call, list(call.inputs)):
        if case.matches_faithful(output):
            return name, output
    return None


def _interpret(call: Call, inputs: list[AnyArray]) -> Iterator[tuple[str, AnyArray]]:
    return compute_interpretations(call.kind, inputs, call.keywords, output_shape=call.output_shape)


def suggest_narrow_elements(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a narrower dtype, if every element of the faulty side is a number of that dtype."""
    if case.faithful.size < _MIN_ELEMENTS or case.finding.is_given:
        return
    largest = float(np.abs(case.faithful).max())
    for dtype in _NARROW_DTYPES:
        narrow_faulty = round_to_dtype(case.faulty.astype(np.float32), dtype)
        narrow_faithful = round_to_dtype(case.faithful.astype(np.float32), dtype)
        if not np.array_equal(narrow_faulty, case.faulty):
            continue
        if np.mean(narrow_faithful == case.faithful) > _MAX_REPRESENTABLE:
            continue
        max_error = _MAX_UNITS * get_unit_roundoff(dtype) * largest
        yield Candidate(
            np.clip(case.faulty, case.faithful - max_error, case.faithful + max_error),
            f"computed in {dtype}: every element is a number of that type",
            unchanged=case.faithful,
        )
        return


HYPOTHESES = (
    Hypothesis("low-precision", suggest_rounded_inputs),
    Hypothesis("low-precision", suggest_narrow_elements),
)
