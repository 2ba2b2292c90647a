"""Another activation, or a value that is clamped: also where one side wrote it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import OPTIMIZER
from ....operators.activations import (
    ACTIVATIONS,
    ACTIVATIONS_BY_KIND,
    NUMBERED_ACTIVATIONS,
    is_shown,
)
from ....operators.elementwise import ROUNDINGS
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step
from .change import Change, compute_with, find_inputs_before, list_floating_inputs
from .fitted_numbers import fit_output

ACTIVATION_KINDS = {
    "silu", "gelu", "fast_gelu", "relu", "sigmoid", "tanh", "softplus", "mish", "hardswish", "elu",
    "leaky_relu", "relu6", "erf", "selu", "celu", "hardsigmoid", "hardtanh", "logsigmoid",
    "softsign", "clamp",
}  # fmt: skip
#: Kinds whose inputs or outputs models clamp; a search for a limit in other steps costs time.
_PRODUCT_KINDS = {"matmul", "addmm", "convolution", "attention"}
_CLAMPED_KINDS = {
    *ACTIVATION_KINDS,
    *_PRODUCT_KINDS,
    "mul",
    "batch_norm",
    "group_norm",
    "layer_norm",
}
#: Elements that rule out most functions before all are compared.
_SAMPLE = 64
#: Tolerances within which a function gives a recorded output.
_TOLERANCES = 4
#: Largest number of an activation.
_MAX_NUMBER = 20.0
#: Limit from which the search for a clamp starts, as share of the largest element.
_FIRST_LIMIT = 0.7
#: A limit below this share of the largest element is no limit: the value is zero, or rectified.
_MIN_LIMIT = 1e-3
#: Relative distance of a number from a fitted limit that is rounding.
_LIMIT_DISTANCE = 1e-4


@dataclass(frozen=True, eq=False)
class _Activation:
    """A step whose output is an activation of ``x``."""

    number: int  #: of the step
    name: str
    function: Callable[[AnyArray], AnyArray]
    value: int  #: class of ``x``
    x: AnyArray


def list_activations(case: FaultCase, region: Region) -> Iterator[Change]:
    """Replace an activation by another one, leave it out, or give it another number."""
    if case.phase == OPTIMIZER:
        return  # an update applies none
    activations = _find_activations(case, region)
    for activation in activations:
        for name in ("identity", *ACTIVATIONS):  # others equal it where they are not bent
            if name == activation.name:
                continue
            cause, description, contrast = _describe_other(region, activation, name)
            output = ACTIVATIONS[name](activation.x)
            yield Change(activation.number, output, cause, description, contrast)
    for activation in activations:
        for name, (numbered_function, start) in NUMBERED_ACTIVATIONS.items():
            compute = partial(numbered_function, activation.x)
            number = fit_output(case, region, activation.number, compute, start)
            if number is None:
                continue
            yield Change(
                activation.number,
                compute(number),
                "activation-kind",
                name.format(number),
                f"has {activation.name}",
                {"number": number},
            )


def list_common_activations(case: FaultCase, region: Region) -> Iterator[Change]:
    """Replace all activations of one kind, which one function computes."""
    if case.phase == OPTIMIZER:
        return
    numbers_of_kinds: dict[str, list[int]] = {}
    for number, step in enumerate(region.steps):
        if step.kind in ACTIVATIONS_BY_KIND and len(list_floating_inputs(step)) == 1:
            numbers_of_kinds.setdefault(step.kind, []).append(number)
    for own_kind, numbers in numbers_of_kinds.items():
        if len(numbers) < 2:
            continue
        others = [
            (kind, name)
            for kind, names in ACTIVATIONS_BY_KIND.items()
            for name in names
            if kind != own_kind
        ]
        for kind, name in others:
            steps = {
                number: replace(region.steps[number], kind=kind, interpretation=name, keywords={})
                for number in numbers
            }
            yield Change(
                numbers[0],
                region.steps[numbers[0]].output,
                "activation-kind",
                f"{name} at {len(numbers)} places",
                f"has {own_kind}",
                predicted=region.replace_steps(steps).unchanged,
            )


def _describe_other(region: Region, activation: _Activation, name: str) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of another activation in place of one."""
    if name == "identity" and is_soft_cap(region, activation.number):
        return "soft-cap", "no soft cap", "has c tanh(x / c)"
    is_variant = "gelu" in activation.name and "gelu" in name
    cause = "gelu-variant" if is_variant else "activation-kind"
    return cause, "no activation" if name == "identity" else name, f"has {activation.name}"


def is_soft_cap(region: Region, number: int) -> bool:
    """Return whether a step is the tanh of c tanh(x / c), which keeps x between -c and c."""
    step = region.steps[number]
    around = [region.steps[consumer] for consumer in region.consumers[number]]
    around += [other for other in region.steps if other.value == step.inputs[0].value]
    factors = [_read_factor(other) for other in around]
    is_scaled = len(factors) == 2 and factors[0] > 1
    return step.kind == "tanh" and is_scaled and bool(np.isclose(factors[0] * factors[1], 1))


def _read_factor(step: Step) -> float:
    """Return the one number by which a step multiplies, 0 if there is none."""
    numbers = [float(item.array.reshape(-1)[0]) for item in step.inputs if item.array.size == 1]
    if step.kind not in ("mul", "div") or len(numbers) != 1 or not numbers[0]:
        return 0.0
    return numbers[0] if step.kind == "mul" else 1 / numbers[0]


def _find_activations(case: FaultCase, region: Region) -> list[_Activation]:
    """Return the activations of a region, recognized by their values; parts of one are left out."""
    max_distance = _TOLERANCES * case.tolerance
    functions = {**ACTIVATIONS, **_list_numbered_activations(region)}
    activations: list[_Activation] = []
    for number, step in enumerate(region.steps):
        if step.places is not None or step.output.dtype.kind != "f" or step.output.size < 2:
            continue
        names = dict.fromkeys((*ACTIVATIONS_BY_KIND.get(step.kind, ()), *functions))
        for value, x in find_inputs_before(region, number).items():
            candidates = [
                (name, functions[name])
                for name in names
                if name != "identity" and is_shown(name, x)
            ]
            name = _name_activation(x, step.output, candidates, max_distance)
            if name:
                # an earlier activation of the same values, such as the sigmoid of silu, is a part
                activations = [other for other in activations if other.value != value]
                activations.append(_Activation(number, name, functions[name], value, x))
                break
    return activations


def _list_numbered_activations(region: Region) -> dict[str, Callable[[AnyArray], AnyArray]]:
    """Return the activations with the numbers that the steps of the region take, by name."""
    inputs = [step_input for step in region.steps for step_input in step.inputs]
    numbers = {float(item.array) for item in inputs if item.value < 0 and not item.array.ndim}
    functions: dict[str, Callable[[AnyArray], AnyArray]] = {}
    for name, (function, _) in NUMBERED_ACTIVATIONS.items():
        for number in numbers:
            if 0 < number < _MAX_NUMBER and number != 1:
                functions[name.format(number)] = partial(_apply, function, number)
    return functions


def _apply(function: Callable[[AnyArray, float], AnyArray], number: float, x: AnyArray) -> AnyArray:
    return function(x, number)


def _name_activation(
    x: AnyArray,
    output: AnyArray,
    candidates: Sequence[tuple[str, Callable[[AnyArray], AnyArray]]],
    max_distance: float,
) -> str:
    """Return the first function that gives ``output``; '' if none does."""
    flat_x, flat_output = x.reshape(-1), output.reshape(-1)
    rows = slice(None, None, max(1, flat_x.size // _SAMPLE))
    for name, function in candidates:
        if compute_residual(function(flat_x[rows]), flat_output[rows]) > max_distance:
            continue
        if compute_residual(function(flat_x), flat_output) <= max_distance:
            return name
    return ""


def list_clamps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Clamp what a step computes or reads to the best limit.

    What is read counts if a product or an activation reads it, or if a product computed it.
    """
    for number, step in enumerate(region.steps):
        is_clampable = step.kind in _CLAMPED_KINDS and step.places is None
        if is_clampable and step.output.dtype.kind == "f" and step.output.size > 1:
            name = f"{step.name} ({step.kind})"
            yield from _clamp(case, region, number, name, step.output, np.positive)
        for position, step_input in list_floating_inputs(step):
            is_quantized = step.kind == "div" and bool(
                (region.find_kinds_after(number) | case.consumer_kinds) & ROUNDINGS.keys()
            )
            is_product = bool({step.kind, step_input.producer_kind} & _PRODUCT_KINDS)
            is_clampable = is_product or is_quantized
            if not is_clampable or not step_input.agrees or step_input.is_parameter:
                continue
            compute = partial(_compute_step, step, position)
            yield from _clamp(case, region, number, step_input.name, step_input.array, compute)
    for activation in _find_activations(case, region):
        number, function = activation.number, activation.function
        name = f"what {activation.name} reads"
        yield from _clamp(case, region, number, name, activation.x, function)


def _compute_step(step: Step, position: int, array: AnyArray) -> AnyArray:
    """Return a step's output with another input; the recorded one if it does not fit."""
    output = compute_with(step, position, array)
    return step.output if output is None else output


def _clamp(
    case: FaultCase,
    region: Region,
    number: int,
    name: str,
    x: AnyArray,
    function: Callable[[AnyArray], AnyArray],
) -> Iterator[Change]:
    """Clamp ``x``, of which a step's output is a function: above, below, and on both sides."""
    largest = float(np.abs(x).max())
    for clamp, text, sign in (
        (np.minimum, "{} clamped to at most {:.4g}", 1),
        (np.maximum, "{} clamped to at least {:.4g}", -1),
        (_clamp_both, "{} clamped to {:.4g} on both sides", 1),
    ):

        def compute(limit: float, clamp: Callable[..., AnyArray] = clamp) -> AnyArray:
            return function(clamp(x, limit))

        limit = fit_output(case, region, number, compute, sign * _FIRST_LIMIT * largest)
        if limit is None or not _MIN_LIMIT * largest < abs(limit) < largest:
            continue
        is_kept = (clamp(x, limit) == x) & ~np.isclose(np.abs(x), abs(limit), rtol=_LIMIT_DISTANCE)
        if len(np.unique(x[is_kept])) > 1:  # a constant, also with zeros, is no clamped array
            yield Change(
                number,
                compute(limit),
                "clamp",
                text.format(name, abs(limit) if clamp is _clamp_both else limit),
                "does not clamp it",
                {"limit": limit},
            )


def _clamp_both(x: AnyArray, limit: float) -> AnyArray:
    return np.clip(x, -abs(limit), abs(limit))
