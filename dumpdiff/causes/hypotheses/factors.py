"""A factor on the whole tensor: a scale, a doubled loss, a clipped gradient; or all zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations

import numpy as np

from ...model.arrays import Floats
from ...model.finding import Finding
from ...model.trace import BACKWARD, FORWARD, OPTIMIZER
from ...operators.elementwise import ROUNDINGS
from ..fault_case import FaultCase, compute_residual, find_masked
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor
from ..scalings import select_scalings
from .attention import is_attention
from .wave_tables import is_wave_table

#: Largest whole factor of a single number. Any number is some multiple of any other, so only whole
#: factors say something.
_MAX_WHOLE_FACTOR = 64
#: Fewest numbers of a table that are a function of others.
_MIN_TABLE = 4
#: Axes of an operand whose elements are counted.
_MAX_COUNTED_AXES = 4
#: Relative distance, in limits of the case, within which such a factor is whole.
_WHOLE_LIMITS = 4
#: Logarithms of the factors of the corrections of Adam's two moments in the first step, with the
#: usual betas.
_MOMENT_FACTORS = np.log([0.1, 10.0, 1e-3, 1e3, 1e-3**0.5, 1e3**0.5, 0.9, 0.999])
_MOMENT_DISTANCE = 1e-3
#: Logarithms of the bases of frequencies, and their relative distance that is rounding.
_MIN_LOG_BASE, _MAX_LOG_BASE = float(np.log(10)), float(np.log(1e9))
_LOG_DISTANCE = 1e-4
#: Relative distance of a factor from -1 that is rounding.
_SIGN_DISTANCE = 1e-4
#: Functions that a program may take of a number that it multiplies by, and their relative distance
#: that is rounding. Of whole numbers and their inverses, a root is a scale.
_NUMBER_FUNCTIONS: Mapping[str, Callable[[float], float]] = {"exponential": np.exp}
_FUNCTION_DISTANCE = 1e-5
_LOSS_KINDS = {"cross_entropy", "nll_loss", "log_softmax", "logsumexp"}
#: Kinds of ops that consume attention scores.
_SCORE_CONSUMERS = {"softmax", "scaled_masked_softmax", "masked_fill", "exp"}


def suggest_factor(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = c faithful, with c by least squares over unmasked elements."""
    is_masked = find_masked(case.faithful)
    if case.faithful.size < 1 or case.is_source or _multiplies_by_result(case):
        return
    factor = fit_factor(np.where(is_masked, 0, case.faithful), np.where(is_masked, 0, case.faulty))
    if case.faithful.size == 1:
        factor = _round_to_whole_factor(factor, case.limit, _list_counts(case))
    if case.phase == OPTIMIZER:
        distances = np.abs(np.log(abs(factor) or 1) - _MOMENT_FACTORS)
        if np.min(distances) < _MOMENT_DISTANCE:
            return  # the same moment, corrected or not: nothing was clipped
    if not np.isfinite(factor) or factor == 0:
        return
    if abs(factor + 1) < _SIGN_DISTANCE and _subtracts_other_input(case):
        yield Candidate(
            -case.faithful,
            "the difference of its inputs in the other order",
            unchanged=case.faithful,
            cause="input-order",
        )
        return
    if abs(factor + 1) < _SIGN_DISTANCE and _enters_exponential(case):
        yield Candidate(
            -case.faithful, "the other sign", unchanged=case.faithful, cause="decay-sign"
        )
        return
    if abs(factor + 1) < _SIGN_DISTANCE and _is_of_rotation(case):
        yield Candidate(
            -case.faithful,
            "a rotation in the other direction",
            unchanged=case.faithful,
            cause="rope-direction",
        )
        return
    cause = choose_factor_cause(case.finding, case.consumer_kinds, case.is_of_loss)
    if case.phase == FORWARD and is_masked.any() and case.consumer_kinds & _SCORE_CONSUMERS:
        cause = "scale"
    if case.phase == FORWARD and case.is_quantization_scale:
        cause = "quantization-scale"
    elif cause == "residual-scale" and not _is_branch(case):
        cause = "constant-factor"
    yield (
        _describe_by_bases(case, factor)
        or _describe_by_function(case, factor)
        or Candidate(
            np.where(is_masked, case.faithful, factor * case.faithful),
            describe_factor(cause, factor, case.faithful_side),
            recorded=case.describe_own_scalings(factor),
            parameters={"factor": factor},
            unchanged=case.faithful,
            cause=cause,
        )
    )


def _multiplies_by_result(case: FaultCase) -> bool:
    """Return whether both sides multiply by one number that steps of the region computed.

    Any two such numbers differ by a factor, which says nothing of why they do.
    """
    return all(
        region is not None
        and len(region.steps) > 1
        and region.steps[-1].kind == "mul"
        and any(
            item.array.size == 1 and item.value >= 0 and not item.agrees
            for item in region.steps[-1].inputs
        )
        for region in (case.region, case.faulty_region)
    )


def _subtracts_other_input(case: FaultCase) -> bool:
    """Return whether the last ops are b - a and a - b."""
    calls = (case.call, case.faulty_call)
    if any(call is None or call.kind != "sub" or len(call.inputs) < 2 for call in calls):
        return False
    inputs, faulty_inputs = (call.inputs[:2] for call in calls if call is not None)
    return all(
        own.shape == other.shape and compute_residual(other, own) <= case.limit
        for own, other in zip(inputs, faulty_inputs[::-1], strict=True)
    )


def _describe_by_bases(case: FaultCase, factor: float) -> Candidate | None:
    """Return the factor as another base of frequencies; None if it is none."""
    bases = _find_bases(case, factor) if _enters_exponential(case) else None
    if bases is None:
        return None
    return Candidate(
        factor * case.faithful,
        f"frequencies of base {bases[0]:.6g}",
        f"has base {bases[1]:.6g}",
        recorded=case.describe_own_scalings(factor),
        parameters={"theta": bases[0]},
        unchanged=case.faithful,
        cause="rope-theta",
    )


def _describe_by_function(case: FaultCase, factor: float) -> Candidate | None:
    """Return the factor as a function of a number that one side leaves out; None if it is none."""
    texts = _find_function(case, factor)
    if texts is None:
        return None
    return Candidate(
        factor * case.faithful,
        *texts,
        parameters={"factor": factor},
        unchanged=case.faithful,
        cause="missing-step",
        is_evident=True,
    )


def _is_of_rotation(case: FaultCase) -> bool:
    """Return whether the value is a table of sines, or a product with one, or a factor of it."""
    if case.phase != FORWARD:
        return False
    factors = list(case.call.inputs) if case.call is not None and case.call.kind == "mul" else []
    for kind, operands in case.consumers:
        factors += [operand.array for operand in operands if kind == "mul"]
    return any(map(is_wave_table, (case.faithful, *factors)))


def _is_branch(case: FaultCase) -> bool:
    """Return whether the value, or what a few ops make of it, is added to another computed value.

    The logits of a loss are no branch, nor is a product to which its bias is added.
    """
    if case.consumer_kinds & _LOSS_KINDS or _enters_exponential(case):
        return False
    addends = [operands for kind, operands in case.consumers if kind == "add"]
    return not addends or any(
        not operand.parameter or len(operand.shape) > 1
        for operands in addends
        for operand in operands
    )


def _enters_exponential(case: FaultCase) -> bool:
    """Return whether an exponential of the value is taken: it is a rate, no branch of a sum."""
    return case.phase == FORWARD and "exp" in case.consumer_kinds


def _find_bases(case: FaultCase, factor: float) -> tuple[float, float] | None:
    """Return the bases of two tables of frequencies, faulty and faithful; None if these are none.

    The frequencies of positions and of time steps are often computed as exp(-ln(base) k / n): both
    sides then hold the logarithm of a number that people write.
    """
    for number in case.numbers:
        faulty_number = number * factor
        if not np.isclose(case.faulty_numbers, faulty_number).any():
            continue
        faulty_base, base = read_log_base(faulty_number), read_log_base(number)
        if faulty_base is not None and base is not None:
            return faulty_base, base
    return None


def _find_function(case: FaultCase, factor: float) -> tuple[str, str] | None:
    """Return (description, contrast) if one side's number is a function of the other side's."""
    sides = (select_scalings(case.faulty_scalings), select_scalings(case.faithful_scalings))
    if [len(scalings) for scalings in sides] != [1, 1]:
        return None
    (faulty,), (faithful,) = sides
    if not np.isclose(faulty.factor, factor * faithful.factor, rtol=_FUNCTION_DISTANCE, atol=0):
        return None
    for name, function in _NUMBER_FUNCTIONS.items():
        with np.errstate(all="ignore"):
            of_faulty, of_faithful = function(faulty.factor), function(faithful.factor)
        if np.isclose(of_faulty, faithful.factor, rtol=_FUNCTION_DISTANCE, atol=0):
            text = f"a factor of {faulty.factor:.6g} ({faulty.op}), without its {name}"
            return text, f"has {faithful.factor:.6g}, its {name} ({faithful.op})"
        if np.isclose(of_faithful, faulty.factor, rtol=_FUNCTION_DISTANCE, atol=0):
            text = f"a factor of {faulty.factor:.6g} ({faulty.op})"
            return text, f"has {faithful.factor:.6g}, of which that is the {name} ({faithful.op})"
    return None


def read_log_base(number: float) -> float | None:
    """Return the base of three digits whose logarithm a number is, up to its sign; else None."""
    logarithm = abs(number)
    if not _MIN_LOG_BASE < logarithm < _MAX_LOG_BASE:
        return None
    base = float(f"{np.exp(logarithm):.3g}")
    return base if np.isclose(np.log(base), logarithm, rtol=_LOG_DISTANCE, atol=0) else None


def describe_factor(cause: str, factor: float, faithful_side: str) -> str:
    """Return the description of a value that is a multiple of the other side's."""
    if cause == "scale":
        return f"attention scores {factor:.6g} times the {faithful_side}'s"
    return f"{factor:.6g} times the {faithful_side}'s value"


def _round_to_whole_factor(factor: float, limit: float, counts: Collection[int]) -> float:
    """Return the whole number, or its inverse, that ``factor`` is; else NaN.

    A large one has to be one of ``counts``: of elements over which one side takes the mean.
    """
    inverse = 1 / factor if factor else 0.0
    for exponent, value in ((1, factor), (-1, inverse)):
        whole_number = round(value)
        max_distance = _WHOLE_LIMITS * limit * abs(whole_number)
        is_possible = 1 < abs(whole_number) <= _MAX_WHOLE_FACTOR or abs(whole_number) in counts
        if is_possible and abs(value - whole_number) <= max_distance:
            return float(whole_number) ** exponent
    return float("nan")


def _list_counts(case: FaultCase) -> set[int]:
    """Return the numbers of elements of some axes of the operands."""
    counts: set[int] = set()
    for operand in case.operands:
        lengths = operand.shape[:_MAX_COUNTED_AXES]
        for n_axes in range(1, len(lengths) + 1):
            counts |= {math.prod(chosen) for chosen in combinations(lengths, n_axes)}
    return counts


def choose_factor_cause(finding: Finding, consumer_kinds: frozenset[str], is_of_loss: bool) -> str:
    """Return the cause that a factor is at this place."""
    if finding.phase == OPTIMIZER:
        return "clip"
    if is_of_loss:
        return "constant-factor"
    if finding.phase == BACKWARD:
        return "gradient-scaled"
    return _choose_forward_factor_cause(finding, consumer_kinds)


def _choose_forward_factor_cause(finding: Finding, consumer_kinds: frozenset[str]) -> str:
    if consumer_kinds & _SCORE_CONSUMERS and is_attention(finding.scope):
        return "scale"
    if "matmul" in consumer_kinds:
        return "constant-factor"
    if consumer_kinds & ROUNDINGS.keys():
        return "quantization-scale"
    return "residual-scale" if "add" in consumer_kinds else "constant-factor"


def suggest_zeros(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a value of zeros. One number is zero for many reasons.

    What is computed from zeros, such as the first state of a recurrence, is zero, too.
    """
    if case.phase != FORWARD or case.faithful.size < 2 or not _is_computed(case):
        return
    has_zero_operand = any(
        int(np.prod(operand.shape)) == case.faulty.size and not np.any(operand.array)
        for operand in case.faulty_operands
    )
    if not has_zero_operand:
        zeros = np.zeros_like(case.faithful)
        yield Candidate(zeros, "all zeros", unchanged=case.faithful, cause="zeroed")


def suggest_no_gradient(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a gradient of zeros. A moment of an optimizer is zero before its first update."""
    if case.phase == BACKWARD and _is_computed(case):
        zeros = np.zeros_like(case.faithful)
        yield Candidate(zeros, "no gradient", unchanged=case.faithful, cause="gradient-stopped")


def _is_computed(case: FaultCase) -> bool:
    """Return whether the value is floating, computed, and not zero on the faithful side."""
    is_floating = case.faithful.dtype.kind == "f"
    return is_floating and not case.finding.is_given and bool(np.any(case.faithful))


#: What one constant table may be to another, as a function of its numbers.
_TABLE_FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "squares": np.square,
    "square roots": np.sqrt,
    "exponentials": np.exp,
    "logarithms": np.log,
    "inverses": np.reciprocal,
}


def suggest_function_of_table(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a constant table that holds a function of the other one's numbers."""
    if not case.is_source or case.finding.kind != "constant" or case.faithful.size < _MIN_TABLE:
        return
    for name, function in _TABLE_FUNCTIONS.items():
        yield Candidate(
            function(case.faithful),
            f"the {name} of its numbers",
            "holds the numbers themselves",
            unchanged=case.faithful,
            cause="missing-step",
        )


HYPOTHESES = (
    Hypothesis("missing-step", suggest_function_of_table),
    Hypothesis("gradient-stopped", suggest_no_gradient),
    Hypothesis("constant-factor", suggest_factor),
)

#: Zeros follow from many causes: all others come first.
ZERO_HYPOTHESES = (Hypothesis("zeroed", suggest_zeros),)
