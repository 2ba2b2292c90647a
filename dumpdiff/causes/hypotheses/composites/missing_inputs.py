"""Inputs and steps that are left out, or counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import BACKWARD
from ...fault_case import FaultCase, find_masked
from ...region import Region, StepInput
from ..attention import is_cross_attention
from .activations import ACTIVATION_KINDS
from .change import Change, compute_with, feeds_softmax, list_floating_inputs


def list_missing_inputs(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave an addend or a factor out, count an addend twice, or take an input as zero."""
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        for position, step_input in inputs:
            array = step_input.array
            neutral = np.ones_like(array) if step.kind in ("mul", "div") else np.zeros_like(array)
            output = compute_with(step, position, neutral)
            if output is not None:
                yield Change(number, output, *_name_missing_input(case, region, number, step_input))
            if step.kind == "add" and len(inputs) > 1:
                output = compute_with(step, position, 2 * array)
                is_bias = step_input.is_parameter and array.ndim == 1
                cause = "bias-doubled" if is_bias else "residual-scale"
                if case.phase == BACKWARD:
                    cause = "gradient-scaled"
                if output is not None:
                    yield Change(number, output, cause, f"{step_input.name} added twice")


def _name_missing_input(
    case: FaultCase, region: Region, number: int, step_input: StepInput
) -> tuple[str, str]:
    """Return (cause, description) of an input that is left out."""
    step = region.steps[number]
    if case.phase == BACKWARD:
        return "gradient-stopped", f"the gradient through {step_input.name} missing"
    if step_input.is_parameter and step_input.array.ndim == 1 and step.kind != "mul":
        return "bias-missing", f"without its bias ({step_input.name})"
    if step.kind in ("add", "sub", "masked_fill", "where") and step_input.array.ndim > 1:
        if _is_mask(step_input.array) or feeds_softmax(case, region, number):
            return name_score_term(case, step_input)
        is_skip = step_input.agrees and not step_input.is_parameter
        if is_skip and step_input.array.shape == step.output.shape:
            return "skip-missing", f"without {step_input.name} in the sum {step.name}"
    skip = _describe_weighted_skip(region, step_input) if step.kind == "add" else ""
    if skip:
        return "skip-missing", f"without {skip} in the sum {step.name}"
    return "missing-term", f"without {step_input.name} in {step.name} ({step.kind})"


def _describe_weighted_skip(region: Region, step_input: StepInput) -> str:
    """Return 'D times u' of an addend that is a value times a vector of weights; '' of others."""
    for step in region.steps:
        if step.value != step_input.value or step.kind != "mul":
            continue
        tensors = [item for _, item in list_floating_inputs(step)]
        weights = [item for item in tensors if item.is_parameter and item.array.ndim == 1]
        values = [item for item in tensors if not item.is_parameter]
        if len(weights) == len(values) == 1:
            return f"{weights[0].name} times {values[0].name}"
    return ""


def list_bypassed_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave a step out: what follows reads one of its inputs in place of its output."""
    for number, step in enumerate(region.steps):
        for _, step_input in list_floating_inputs(step):
            if step_input.array.size != step.output.size or step.kind == "cast":
                continue
            if step.places is not None:
                continue
            others = [other for _, other in list_floating_inputs(step) if other is not step_input]
            cause, description = _name_bypass(case, region, number, others)
            yield Change(number, step_input.array.reshape(step.output.shape), cause, description)


def _name_bypass(
    case: FaultCase, region: Region, number: int, others: Sequence[StepInput]
) -> tuple[str, str]:
    """Return (cause, description) of a step that is left out."""
    step = region.steps[number]
    if others:
        return _name_missing_input(case, region, number, others[0])
    if step.kind.endswith("norm"):
        return "norm-missing", f"without {step.name} ({step.kind})"
    if step.kind in ACTIVATION_KINDS:
        return "activation-kind", f"without {step.name} ({step.kind})"
    if step.kind in ("mul", "div"):
        cause = "scale" if feeds_softmax(case, region, number) else "constant-factor"
        numbers = [float(item.array) for item in step.inputs if item.array.size == 1] or [1.0]
        return cause, f"without the factor of {step.name} ({step.kind} {numbers[0]:.6g})"
    return "missing-step", f"without {step.name} ({step.kind})"


def name_score_term(case: FaultCase, step_input: StepInput) -> tuple[str, str]:
    """Return (cause, description) of a term of attention scores that is left out or replaced."""
    if _is_mask(step_input.array):
        cause = "cross-mask" if is_cross_attention(case.finding.scope) else "mask-missing"
        return cause, f"no mask ({step_input.name})"
    return "relative-bias", f"scores without the bias {step_input.name}"


def _is_mask(array: AnyArray) -> bool:
    """Return whether an array to be added holds zeros and masking constants only."""
    is_masked = find_masked(array)
    return bool(is_masked.any() and not array[~is_masked].any())
