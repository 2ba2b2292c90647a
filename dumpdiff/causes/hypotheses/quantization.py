"""Fake quantization: another scale, zero point, range, axis or rounding, or none at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import AnyArray
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..quantizer_fit import Quantizer, fit_quantizer

#: Operands, the nearest first, that may be what was quantized.
_MAX_OPERANDS = 12
#: Relative difference within which two scales are equal.
_EQUAL_SCALES = 3e-6
#: Numbers of levels of 2 to 14 bits: all of them, or one less, so that zero is in the middle.
_USUAL_COUNTS = {2**n_bits - missing for n_bits in range(2, 15) for missing in (0, 1)}
#: Two limits of another number of bits differ by a factor of two or more: by one bit.
_MIN_BITS = 0.5
_ROUNDING_WORDS = {
    "round": "rounded to the nearest step",
    "floor": "rounded down (floor)",
    "ceil": "rounded up (ceil)",
    "trunc": "rounded toward zero (trunc)",
}


def suggest_other_quantizer(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another quantizer of the same values, or that they are not quantized."""
    if not case.is_forward_value or case.faithful.ndim < 1:
        return
    operands = [
        operand
        for operand in case.list_shared_operands()
        if int(np.prod(operand.shape)) == case.faithful.size and operand.is_floating
    ]
    for operand in operands[:_MAX_OPERANDS]:
        x = operand.array.reshape(case.faithful.shape)
        faithful_quantizer = fit_quantizer(x, case.faithful)
        if faithful_quantizer is None or not np.any(faithful_quantizer.quantized != x):
            continue
        change = compare_with_faulty(x, faithful_quantizer, case.faulty, case.limit)
        if change is None:
            continue
        predicted, cause, description, contrast = change
        yield Candidate(
            predicted,
            description,
            contrast,
            unchanged=faithful_quantizer.quantized,
            cause=cause,
        )
        return


def compare_with_faulty(
    x: AnyArray, faithful: Quantizer, faulty_values: AnyArray, limit: float
) -> tuple[AnyArray, str, str, str] | None:
    """Return (predicted, cause, description, contrast) of values that were made otherwise of x.

    None if they are neither x nor x quantized in another way.
    """
    if compute_residual(x, faulty_values) <= limit:
        cause, description, contrast = describe_missing_quantizer(faithful)
        return x, cause, description, contrast
    faulty = fit_quantizer(x, faulty_values)
    if faulty is None:
        return None
    difference = describe_difference(faulty, faithful)
    return None if difference is None else (faulty.quantized, *difference)


def describe_missing_quantizer(faithful: Quantizer) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of values that one side does not quantize."""
    return "quantization-missing", "values that are not quantized", _describe(faithful)


def describe_difference(faulty: Quantizer, faithful: Quantizer) -> tuple[str, str, str] | None:
    """Return (cause, description, contrast) of two quantizers; None if they are equal."""
    if faulty.axis != faithful.axis:
        is_single = faulty.axis is None or faithful.axis is None
        cause = "quantization-scale" if is_single else "quantization-axis"
        return cause, _describe_axis(faulty), f"has {_describe_axis(faithful)}"
    if faulty.offset != faithful.offset:
        shift = faithful.offset - faulty.offset
        return "zero-point", f"a zero point shifted by {shift} where it is subtracted", ""
    return _describe_steps(faulty, faithful)


def _describe_steps(faulty: Quantizer, faithful: Quantizer) -> tuple[str, str, str] | None:
    """Return (cause, description, contrast) of other limits, rounding or scales; None if equal."""
    shift = _find_limit_shift(faulty, faithful)
    is_unclipped = _exceeds(faulty, faithful) or _exceeds(faithful, faulty)
    if is_unclipped or (shift and _changes_range(faulty, faithful)):
        if _has_usual_range(faulty) and _has_usual_range(faithful):
            return "quantization-range", _describe_range(faulty), f"has {_describe_range(faithful)}"
        return None
    if faulty.rounding != faithful.rounding:
        own, other = _ROUNDING_WORDS[faulty.rounding], _ROUNDING_WORDS[faithful.rounding]
        return "rounding-mode", f"steps {own}", f"has steps {other}"
    description = _describe_scales(faulty.scale / faithful.scale)
    if description:
        return "quantization-scale", description, ""
    return ("zero-point", f"a zero point shifted by {-shift}", "") if shift else None


def _describe_scales(ratios: AnyArray) -> str:
    """Return how the scales differ; '' if they do not."""
    if np.abs(ratios - 1).max() <= _EQUAL_SCALES:
        return ""
    middle = float(np.median(ratios))
    if np.abs(ratios / middle - 1).max() <= _EQUAL_SCALES:
        return f"a quantization scale {middle:.6g} times the other"
    low, high = float(ratios.min()), float(ratios.max())
    return f"other quantization scales, {low:.4g} to {high:.4g} times those"


def _find_limit_shift(faulty: Quantizer, faithful: Quantizer) -> int:
    """Return by how many steps a limit that both sides reach is moved; 0 if by none."""
    for limit, other in ((faulty.high, faithful.high), (faulty.low, faithful.low)):
        if limit is not None and other is not None and limit != other:
            return limit - other
    return 0


def _exceeds(quantizer: Quantizer, other: Quantizer) -> bool:
    """Return whether a quantizer does not clip where the other one does."""
    is_above = other.high is not None and quantizer.high is None and quantizer.highest > other.high
    is_below = other.low is not None and quantizer.low is None and quantizer.lowest < other.low
    return is_above or is_below


def _has_usual_range(quantizer: Quantizer) -> bool:
    """Return whether the levels are those of a number of bits; true if no limit is reached.

    Another limit is that of the values before: they were clamped.
    """
    low, high = quantizer.low, quantizer.high
    if low is not None and high is not None:
        return high - low + 1 in _USUAL_COUNTS
    limit = high if high is not None else low
    return limit is None or abs(limit) in _USUAL_COUNTS or abs(limit) + 1 in _USUAL_COUNTS


def _changes_range(faulty: Quantizer, faithful: Quantizer) -> bool:
    """Return whether the number of levels differs: a moved zero point keeps it.

    If one limit is not reached on some side, it differs if the other one shows another number of
    bits: 127 or 128 against 255.
    """
    spans = []
    for quantizer in (faulty, faithful):
        if quantizer.low is None or quantizer.high is None:
            break
        spans.append(quantizer.high - quantizer.low)
    if len(spans) == 2:
        return spans[0] != spans[1]
    for limit, other in ((faulty.high, faithful.high), (faulty.low, faithful.low)):
        if limit is not None and other is not None and limit and other:
            return bool(abs(np.log2(abs(limit / other))) > _MIN_BITS)
    return False


def _describe(quantizer: Quantizer) -> str:
    scale = "one scale per row" if quantizer.scale.ndim else f"scale {float(quantizer.scale):.4g}"
    return f"quantizes them ({scale}, {_describe_range(quantizer)})"


def _describe_axis(quantizer: Quantizer) -> str:
    if quantizer.axis is None:
        return "one scale for the whole tensor"
    names = {0: "per row", quantizer.scale.ndim - 1: "per column"}
    name = names.get(quantizer.axis, "per channel")
    return f"one scale {name} (axis {quantizer.axis})"


def _describe_range(quantizer: Quantizer) -> str:
    low, high = quantizer.low, quantizer.high
    if low is not None and high is not None:
        return f"{high - low + 1} levels, from {low} to {high} steps"
    if high is not None:
        return f"levels up to {high} steps"
    if low is not None:
        return f"levels down to {low} steps"
    return f"no limit (steps from {quantizer.lowest} to {quantizer.highest})"


HYPOTHESES = (Hypothesis("quantization-scale", suggest_other_quantizer),)
