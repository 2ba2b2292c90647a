"""Numbers that are solved for: an argument of an op, a factor or an offset of its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from ....comparison.mask_fill import FILLING_KINDS
from ....model.arrays import AnyArray
from ....model.dtypes import MASK_MAGNITUDE
from ....model.trace import BACKWARD, FORWARD
from ...fault_case import FaultCase
from ...parameter_fit import MIN_FITTED, fit_number
from ...region import Region, Step
from ..attention import SCORE_KINDS
from ..factors import read_log_base
from ..norms import LABEL_LOSSES
from .change import Change, compute_with, list_floating_inputs
from .parts import feeds_gate
from .quantizers import scales_quantized

#: A smaller factor is zero; a factor so near to -1 is another sign.
_ZERO_FACTOR, _SIGN_DISTANCE = 1e-6, 1e-4
#: An addend below this share of the recorded one is none.
_ADDING_KINDS, _ZERO_ADDEND = ("add", "sub"), 1e-5
#: Decimals of a number that is added to a gate; the rest is rounding.
_GATE_DIGITS = 6
#: Kinds of which one input alone may be scaled.
_BRANCHED_KINDS = {"add", "sub", "concat"}
#: Numbers of levels by which the range of a value is divided: of 2 to 16 bits, signed or not.
_LEVELS = [2.0**n_bits - difference for n_bits in range(1, 17) for difference in (0, 1)]
_LEVEL_DISTANCE = 1e-5
#: Relative difference of a recorded power from the exact one that is rounding.
_POWER_DISTANCE = 1e-4
_WAVE_KINDS = {"sin", "cos"}
#: Numbers by which angles are multiplied on one side only: waves of other angles show no way there.
_ANGLE_FACTORS = tuple(
    factor for number in (math.pi, 2 * math.pi, math.pi / 2, 2.0) for factor in (number, 1 / number)
)
#: Of logarithms to other bases.
_LOGARITHM_FACTORS = (1 / math.log(10), 1 / math.log(2))
_ROOT_KINDS = {"rsqrt", "sqrt", "pow", "div", "reciprocal"}


def list_plain_divisors(case: FaultCase, region: Region) -> Iterator[Change]:
    """Divide by a number that the other side's records hold, not by a computed count or size."""
    whole_numbers = {number for number in case.faulty_numbers if number == round(number) > 1}
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        if step.kind != "div" or len(inputs) != 2 or case.phase != FORWARD:
            continue
        position, divisor = inputs[1]
        if divisor.value < 0 or divisor.is_parameter:
            continue
        for divisor_number in sorted(whole_numbers):
            output = compute_with(step, position, np.full_like(divisor.array, divisor_number))
            if output is not None:
                yield Change(
                    number,
                    output,
                    "pooling",
                    f"divided by {divisor_number:g} in {step.name}",
                    f"divides by {divisor.name}",
                )


def list_other_arguments(case: FaultCase, region: Region) -> Iterator[Change]:
    """Change a number that an op takes: to that of the other side's last op, or to the best one.

    Not a result of another op: that differs for a reason of its own.
    """
    for number, step in enumerate(region.steps):
        for position, step_input in enumerate(step.inputs):
            is_number = step_input.array.ndim == 0 and step_input.array.dtype.kind == "f"
            if is_number and not step_input.producer_kind:
                yield from _change_argument(case, region, number, position)


def _change_argument(
    case: FaultCase, region: Region, number: int, position: int
) -> Iterator[Change]:
    step = region.steps[number]
    recorded = float(step.inputs[position].array)

    def run(value: float) -> AnyArray | None:
        output = compute_with(step, position, np.asarray(value))
        return None if output is None else region.run(number, output)

    value = _read_other_number(case, region, number)
    if value is None and case.faithful.size >= MIN_FITTED:
        # what hides scores hides them as well with any other large number
        start = 0.0 if abs(recorded) >= MASK_MAGNITUDE else recorded
        value = fit_number(run, start, case.faulty)
    if value is None:
        return
    output = compute_with(step, position, np.asarray(value))
    if output is None:
        return
    if step.kind == "add" and feeds_gate(case, region, number):
        value = round(value, _GATE_DIGITS) + 0.0  # -0 becomes 0
        description = f"{value:.4g} added to a gate before its sigmoid, in {step.name}"
        contrast = f"adds {recorded:.4g}"
        yield Change(number, output, "forget-bias", description, contrast, {"number": value})
        return
    if step.kind in _ADDING_KINDS and abs(value) < _ZERO_ADDEND * abs(recorded):
        return  # a number that is left out: a missing step
    bases = _read_bases(case, region, number, (recorded, value))
    if bases is not None:
        description = f"frequencies of base {bases[1]:.6g}, whose logarithm {step.name} takes"
        parameters = {"theta": bases[1]}
        yield Change(
            number, output, "rope-theta", description, f"has base {bases[0]:.6g}", parameters
        )
        return
    powers = _find_power_bases(region, number, (recorded, value))
    if powers is not None:
        description = f"frequencies of base {powers[1]:.6g}, with {value:.4g} in {step.name}"
        contrast = f"has base {powers[0]:.6g}, with {recorded:.4g}"
        parameters = {"number": value}
        yield Change(number, output, "rope-theta", description, contrast, parameters)
        return
    cause, word = name_argument(case, region, number, (recorded, value))
    yield Change(
        number,
        output,
        cause,
        f"{word} = {value:.4g} in {step.name}" if word != "epsilon" else f"epsilon = {value:.2g}",
        f"has {recorded:.4g}" if word != "epsilon" else f"uses {recorded:.2g}",
        {word: value},
    )


def _read_other_number(case: FaultCase, region: Region, number: int) -> float | None:
    """Return the number that the faulty side's last op takes where the region's last step has one.

    None if a step is not the last, or if the two ops differ in more than one number.
    """
    call = case.faulty_call
    step = region.steps[number]
    is_last = number == len(region.steps) - 1
    if call is None or not is_last or call.kind != step.kind:
        return None
    own_numbers = [float(item.array) for item in step.inputs if item.array.ndim == 0]
    if len(own_numbers) != 1 or len(call.numbers) != 1 or own_numbers[0] == call.numbers[0]:
        return None
    return call.numbers[0]


def _read_bases(
    case: FaultCase, region: Region, number: int, values: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the bases of exp(-ln(base) k / n) if a step takes their logarithms; else None."""
    kinds_after = region.find_kinds_after(number) | case.consumer_kinds
    recorded_base, base = map(read_log_base, values)
    if region.steps[number].kind != "mul" or "exp" not in kinds_after:
        return None
    return None if recorded_base is None or base is None else (recorded_base, base)


def _find_power_bases(
    region: Region, number: int, values: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the bases of exp(-ln(base) k / n) for another n, or another factor of k; else None.

    ``values``: the recorded number and the other one, by which the exponent is multiplied or
    divided.
    """
    step = region.steps[number]
    recorded, value = values
    if step.kind not in ("mul", "div") or not recorded or not value:
        return None
    if "exp" not in region.find_kinds_after(number):
        return None
    power = value / recorded if step.kind == "mul" else recorded / value
    for other in region.steps:
        numbers = [float(item.array) for item in other.inputs if item.array.ndim == 0]
        bases = [base for base in map(read_log_base, numbers) if base is not None]
        if other is not step and other.kind == "mul" and len(bases) == 1 and power > 0:
            return bases[0], bases[0] ** power
    return None


def name_argument(
    case: FaultCase, region: Region, number: int, values: tuple[float, float]
) -> tuple[str, str]:
    """Return (cause, word) of a number that an op takes; ``values``: the recorded and the other."""
    step = region.steps[number]
    recorded, value = values
    if scales_quantized(case, region, number):
        are_levels = all(np.any(np.isclose(item, _LEVELS, rtol=_LEVEL_DISTANCE)) for item in values)
        return "quantization-range" if are_levels else "quantization-scale", "the number"
    kinds_after = region.find_kinds_after(number) | case.consumer_kinds
    is_small = 0 <= recorded < 0.5 and 0 <= value < 1
    is_addend = step.kind == "add"
    is_of_labels = is_addend and bool(kinds_after & LABEL_LOSSES)
    is_under_root = is_addend and not is_of_labels and bool(kinds_after & _ROOT_KINDS)
    if is_small and (is_under_root or step.kind.endswith("norm")):
        return "epsilon", "epsilon"
    if _is_power(step, recorded) and kinds_after & _WAVE_KINDS:
        return "rope-theta", "rotary base"
    is_mask = max(map(abs, values)) >= MASK_MAGNITUDE
    if is_mask and (step.kind in FILLING_KINDS or kinds_after & SCORE_KINDS):
        return "mask-fill", "the fill"
    if step.kind in ("mul", "div"):
        return "scale" if kinds_after & SCORE_KINDS else "constant-factor", "the number"
    return "constant-offset" if is_of_labels else "argument", "the number"


def _is_power(step: Step, base: float) -> bool:
    """Return whether a step raises a number to the power of a tensor."""
    exponents = [item.array for _, item in list_floating_inputs(step) if item.array.ndim]
    if step.kind != "pow" or len(exponents) != 1:
        return False
    power = np.power(base, exponents[0])
    return power.size == step.output.size and bool(
        np.allclose(power, step.output.reshape(power.shape), rtol=_POWER_DISTANCE)
    )


def list_factors(case: FaultCase, region: Region) -> Iterator[Change]:
    """Multiply the output of a step by the best number."""
    for number, step in _list_floating_steps(region):

        def multiply(factor: float, step: Step = step) -> AnyArray:
            return factor * step.output

        factor = fit_output(case, region, number, multiply, 1.0)
        factors = [] if factor is None else [factor]
        if not factors and _WAVE_KINDS & {region.steps[i].kind for i in region.consumers[number]}:
            factors = [*_ANGLE_FACTORS]
        if not factors and step.kind == "log":
            factors = [*_LOGARITHM_FACTORS]
        for factor in factors:
            cause, description = _describe_factor(case, region, number, factor)
            parameters = {"factor": factor}
            yield Change(number, multiply(factor), cause, description, parameters=parameters)


def list_branch_factors(case: FaultCase, region: Region) -> Iterator[Change]:
    """Multiply what enters a sum or a joined tensor by the best number."""
    values = {step.value for step in region.steps}
    for number, step in enumerate(region.steps):
        if step.kind not in _BRANCHED_KINDS:
            continue
        for position, step_input in list_floating_inputs(step):
            if step_input.value in values or step_input.is_parameter:
                continue

            def multiply(
                factor: float,
                step: Step = step,
                position: int = position,
                array: AnyArray = step_input.array,
            ) -> AnyArray:
                output = compute_with(step, position, factor * array)
                return step.output if output is None else output

            factor = fit_output(case, region, number, multiply, 1.0)
            if factor is None or abs(factor) < _ZERO_FACTOR:
                continue
            cause = "constant-factor"
            if step.kind != "concat":
                causes = {FORWARD: "residual-scale", BACKWARD: "gradient-scaled"}
                cause = causes.get(case.phase, "clip")  # of an update, it scales gradients
            yield Change(
                number,
                multiply(factor),
                cause,
                f"{step_input.name} {factor:.6g} times the {case.faithful_side}'s in {step.name} "
                f"({step.kind})",
                parameters={"factor": factor},
            )


def list_offsets(case: FaultCase, region: Region) -> Iterator[Change]:
    """Add the best number to the output of a step."""
    for number, step in _list_floating_steps(region):

        def add(offset: float, step: Step = step) -> AnyArray:
            return step.output + offset

        offset = fit_output(case, region, number, add, 0.0)
        if offset is not None:
            description = f"{step.name} ({step.kind}) plus {offset:.4g}"
            parameters = {"offset": offset}
            yield Change(number, add(offset), "constant-offset", description, parameters=parameters)


def _list_floating_steps(region: Region) -> list[tuple[int, Step]]:
    """Return (number, step) of the steps with a floating output."""
    return [entry for entry in enumerate(region.steps) if entry[1].output.dtype.kind == "f"]


def fit_output(
    case: FaultCase,
    region: Region,
    number: int,
    change: Callable[[float], AnyArray],
    start: float,
) -> float | None:
    """Return the number for which the changed output of a step explains the faulty value best.

    None if no number explains much of it, or if too few elements would tell.
    """
    if case.faithful.size < MIN_FITTED:
        return None

    def run(value: float) -> AnyArray | None:
        return region.run(number, change(value))

    return fit_number(run, start, case.faulty)


def _describe_factor(
    case: FaultCase, region: Region, number: int, factor: float
) -> tuple[str, str]:
    """Return (cause, description) of a step's output multiplied by a number."""
    step = region.steps[number]
    description = f"{step.name} ({step.kind}) {factor:.6g} times the {case.faithful_side}'s"
    if abs(factor) < _ZERO_FACTOR:
        cause = "gradient-stopped" if case.phase == BACKWARD else "missing-term"
        return cause, f"{step.name} ({step.kind}) left out"
    kinds_after = region.find_kinds_after(number)
    consumers = [region.steps[consumer] for consumer in region.consumers[number]]
    is_branch = bool(consumers) and all(_adds_branches(consumer) for consumer in consumers)
    if case.phase != FORWARD:
        cause = "gradient-scaled" if case.phase == BACKWARD else "clip"
    elif abs(factor + 1) < _SIGN_DISTANCE and "exp" in kinds_after:
        cause, description = "decay-sign", f"{step.name} ({step.kind}) with the other sign"
    elif kinds_after & SCORE_KINDS:
        cause = "scale"
        description = f"attention scores {factor:.6g} times the {case.faithful_side}'s"
    else:
        cause = "residual-scale" if is_branch else "constant-factor"
    return cause, description


def _adds_branches(step: Step) -> bool:
    """Return whether a step adds two computed values: not a value and its bias."""
    addends = [item for _, item in list_floating_inputs(step)]
    has_bias = any(item.is_parameter and item.array.ndim == 1 for item in addends)
    return step.kind == "add" and not has_bias
