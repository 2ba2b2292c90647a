"""Arithmetic in a narrower type: round the inputs and repeat, or see that every element is a number of that type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.dtypes import unit_roundoff
from ...operators import compute_interpretations
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase

_NARROW = ("float16", "bfloat16")
#: A chain of a few operators in a narrow type, each rounding by half a unit, stays within so many of the largest.
_UNITS = 8.0
_AMPLIFIED = 32.0  #: units of the type beyond which an error is not one of rounding


def rounded_inputs(s: FaultCase) -> Iterator[Candidate]:
    """The last op of the faithful side again: with one input or all rounded, and with its output rounded."""
    if s.call is None or s.is_source:
        return
    inputs = list(s.call.inputs)
    floating = [i for i, value in enumerate(inputs) if value.dtype.kind == "f" and value.ndim]
    for name, plain in compute_interpretations(s.call.kind, inputs, s.call.keywords, output_shape=s.call.output_shape):
        if not s.matches_faithful(plain):
            continue
        for dtype in _NARROW:
            if s.error > _AMPLIFIED * unit_roundoff(dtype):
                continue
            rounded = {
                i: round_to_dtype(inputs[i].astype(np.float32), dtype).astype(np.float64)
                for i in floating
            }
            for some in (*([i] for i in floating), floating):
                again = [rounded[i] if i in some else value for i, value in enumerate(inputs)]
                made = dict(compute_interpretations(s.call.kind, again, s.call.keywords, output_shape=s.call.output_shape)).get(
                    name
                )
                if made is not None:
                    yield Candidate(made, f"an input rounded to {dtype}", "", {}, plain, "", True)
                    yield Candidate(round_to_dtype(made.astype(np.float32), dtype).astype(np.float64),
                                    f"computed in {dtype}", "", {}, plain, "", True)  # fmt: skip
        return


def representable(s: FaultCase) -> Iterator[Candidate]:
    """Every element is a number of a narrower type, and within a few of its units of what it should be."""
    if s.faithful.size < 8 or s.finding.is_given:
        return
    largest = float(np.abs(s.faithful).max())
    for dtype in _NARROW:
        narrow = round_to_dtype(s.faulty.astype(np.float32), dtype)
        own = round_to_dtype(s.faithful.astype(np.float32), dtype)
        if not np.array_equal(narrow, s.faulty) or np.mean(own == s.faithful) > 0.5:
            continue
        reach = _UNITS * unit_roundoff(dtype) * largest
        made = np.clip(s.faulty, s.faithful - reach, s.faithful + reach)
        yield Candidate(
            made, f"computed in {dtype}: every element is a number of that type", "", {}, s.faithful
        )
        return


HYPOTHESES = (
    Hypothesis("low-precision", rounded_inputs),
    Hypothesis("low-precision", representable),
)
