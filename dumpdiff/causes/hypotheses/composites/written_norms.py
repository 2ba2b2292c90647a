"""Norms that are written out: left out as a whole, without their weights, or of the other kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....model.trace import FORWARD
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step, StepInput
from .change import Change, list_floating_inputs

#: Kinds of the value by which a norm multiplies, or divides.
_ROOT_KINDS = {"mul": {"rsqrt", "reciprocal", "pow"}, "div": {"sqrt"}}
#: Relative L2 within which a recorded value is the normalized one, computed in float64.
_EQUAL_DISTANCE = 1e-5
#: Numbers of groups that are tried.
_GROUP_COUNTS = (2, 4, 8, 16)
_NAMES = {False: "RMS norm", True: "layer norm"}


@dataclass(frozen=True, eq=False)
class _Norm:
    """The steps of a norm: x, or x minus its mean, over its root mean square; then its weights."""

    x: StepInput
    is_centered: bool
    axes: tuple[int, ...]
    eps: float
    number: int  #: of the step that normalizes
    last_number: int  #: of the step that multiplies by the weight, or adds the bias
    weights: tuple[AnyArray, ...]  #: the weight, and the bias if there is one

    @property
    def name(self) -> str:
        return _NAMES[self.is_centered]

    def compute(self, *, is_centered: bool, has_weights: bool = True) -> Floats:
        """Return the output with or without the mean and the weights."""
        normalized = _normalize(self.x.array, self.axes, self.eps, is_centered=is_centered)
        return self.weigh(normalized) if has_weights else normalized

    def weigh(self, normalized: Floats) -> Floats:
        """Return a normalized value times the weight, plus the bias, if there are any."""
        if not self.weights:
            return normalized
        weight, *biases = self.weights
        result: Floats = normalized * weight + sum(biases)
        return result


def list_written_norms(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave a norm out, or its weights, or subtract the mean on one side only."""
    if case.phase != FORWARD:
        return
    for norm in _find_norms(region):
        number, shape = norm.last_number, region.steps[norm.last_number].output.shape
        steps = f"{norm.name} of {norm.x.name}"
        yield Change(
            number, norm.x.array.reshape(shape), "norm-missing", f"no {steps}", "normalizes it"
        )
        other = norm.compute(is_centered=not norm.is_centered).reshape(shape)
        text = f"{_NAMES[not norm.is_centered]} of {norm.x.name}"
        yield Change(number, other, "norm-kind", text, f"has {norm.name}")
        yield from _change_groups(region, norm)
        if norm.weights:
            bare = norm.compute(is_centered=norm.is_centered, has_weights=False).reshape(shape)
            text = "weight and bias" if len(norm.weights) > 1 else "its weight"
            yield Change(number, bare, "affine-missing", f"{steps} without {text}")


def _change_groups(region: Region, norm: _Norm) -> Iterator[Change]:
    """Normalize groups of the last axis, each by itself."""
    shape, width = region.steps[norm.last_number].output.shape, norm.x.array.shape[-1]
    if norm.axes != (norm.x.array.ndim - 1,):
        return
    for n_groups in _GROUP_COUNTS:
        if width % n_groups or n_groups == width:
            continue
        groups = norm.x.array.reshape(*norm.x.array.shape[:-1], n_groups, -1)
        normalized = _normalize(groups, (groups.ndim - 1,), norm.eps, is_centered=norm.is_centered)
        output = norm.weigh(normalized.reshape(norm.x.array.shape)).reshape(shape)
        text = f"{norm.name} of {norm.x.name} in {n_groups} groups"
        yield Change(norm.last_number, output, "norm-groups", text, "has one group")


def _find_norms(region: Region) -> list[_Norm]:
    norms = []
    for number, step in enumerate(region.steps):
        for _, root in list_floating_inputs(step):
            values = [item for _, item in list_floating_inputs(step) if item is not root]
            is_root = root.producer_kind in _ROOT_KINDS.get(step.kind, set())
            if not is_root or len(values) != 1 or values[0].is_parameter:
                continue
            norm = _read_norm(region, number, values[0], root.array)
            if norm is not None:
                norms.append(norm)
    return norms


def _read_norm(region: Region, number: int, value: StepInput, root: AnyArray) -> _Norm | None:
    """Return the norm that a step completes; None if its output is no norm of what it reads."""
    step = region.steps[number]
    x, is_centered = value, False
    for other in region.steps:
        inputs = [item for _, item in list_floating_inputs(other)]
        if other.value == value.value and other.kind == "sub" and len(inputs) > 1:
            x, is_centered = inputs[0], True
    if x.array.shape != step.output.shape or root.ndim != x.array.ndim:
        return None
    axes = tuple(axis for axis, length in enumerate(root.shape) if length < x.array.shape[axis])
    inverse = root if step.kind == "mul" else 1 / root
    centered = x.array - x.array.mean(axes, keepdims=True) if is_centered else x.array
    eps = float(np.median(1 / inverse**2 - np.mean(centered**2, axes, keepdims=True)))
    normalized = _normalize(x.array, axes, eps, is_centered=is_centered)
    if not axes or not compute_residual(normalized, step.output) <= _EQUAL_DISTANCE:
        return None
    last_number, weights = _find_weights(region, number)
    return _Norm(x, is_centered, axes, eps, number, last_number, tuple(weights))


def _normalize(x: AnyArray, axes: tuple[int, ...], eps: float, *, is_centered: bool) -> Floats:
    centered = x - x.mean(axes, keepdims=True) if is_centered else x
    result: Floats = centered / np.sqrt(np.mean(centered**2, axes, keepdims=True) + eps)
    return result


def _find_weights(region: Region, number: int) -> tuple[int, list[AnyArray]]:
    """Return (number of the last step of a norm, its weight and bias)."""
    weights: list[AnyArray] = []
    for kind in ("mul", "add"):
        weight = None
        if len(region.consumers[number]) == 1:
            consumer = region.consumers[number][0]
            weight = _find_weight(region.steps[consumer], kind)
        if weight is None:
            break
        weights.append(weight)
        number = consumer
    return number, weights


def _find_weight(step: Step, kind: str) -> AnyArray | None:
    """Return the parameter that a step of a kind multiplies by, or adds; None if there is none."""
    for _, item in list_floating_inputs(step):
        if step.kind == kind and item.is_parameter:
            return item.array
    return None
