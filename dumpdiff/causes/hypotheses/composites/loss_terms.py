"""Losses in a region: another function of the elements, or another divisor of their sums.

A loss often has several terms that one function computes, so all of them change together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ....operators.losses import DEFAULT_THRESHOLD, THRESHOLD_NAMES, compute_element_losses
from ...fault_case import FaultCase
from ...region import Region, Step
from ..element_losses import LOSS_NAMES
from .change import LOSS_KINDS, Change, list_floating_inputs

#: Losses of differences, which are tried in place of one another.
_DIFFERENCE_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss")
#: Kinds of steps that are the function of a loss if it is written out -> the kind of loss.
_WRITTEN_KINDS = {"abs": "l1_loss", "square": "mse_loss"}
#: Counts that are tried in place of one, and fewest elements of which a sum is divided.
_MAX_COUNTS, _MIN_ELEMENTS = 6, 4


def list_other_loss_functions(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take another function of the differences, in all steps that have one: squares, lengths."""
    if case.phase != FORWARD or not case.is_of_loss:
        return
    numbers_of_kinds: dict[str, list[int]] = {}
    for number, step in enumerate(region.steps):
        kind = _read_loss_kind(step)
        if kind:
            numbers_of_kinds.setdefault(kind, []).append(number)
    for own_kind, numbers in numbers_of_kinds.items():
        places = f" at {len(numbers)} places" if len(numbers) > 1 else ""
        for kind in _DIFFERENCE_LOSSES:
            outputs = {number: _compute_loss(region.steps[number], kind) for number in numbers}
            changed = {number: output for number, output in outputs.items() if output is not None}
            if kind == own_kind or len(changed) < len(numbers):
                continue
            first = numbers[0]
            yield Change(
                first,
                changed.pop(first),
                "loss-kind",
                f"{LOSS_NAMES[kind]}{places}",
                f"has {LOSS_NAMES[own_kind]}",
                further_outputs=changed,
            )


def list_other_thresholds(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take the other side's threshold of a loss that is quadratic below it, or the default."""
    if case.phase != FORWARD:
        return
    other_steps = () if case.faulty_region is None else case.faulty_region.steps
    for number, step in enumerate(region.steps):
        if step.kind not in THRESHOLD_NAMES:
            continue
        name, own = THRESHOLD_NAMES[step.kind], _read_threshold(step)
        others = {_read_threshold(other) for other in other_steps if other.kind == step.kind}
        for threshold in sorted({*others, DEFAULT_THRESHOLD} - {own}):
            changed_step = replace(step, keywords={**step.keywords, name: np.asarray(threshold)})
            output = changed_step.compute(step.list_arrays())
            if output is not None:
                text = f"{LOSS_NAMES[step.kind]} with {name} = {threshold:g}"
                yield Change(number, output, "loss-threshold", text, f"has {own:g}")


def _read_threshold(step: Step) -> float:
    threshold = step.keywords.get(THRESHOLD_NAMES[step.kind], np.asarray(DEFAULT_THRESHOLD))
    return float(threshold.reshape(-1)[0])


def _read_loss_kind(step: Step) -> str:
    """Return the kind of loss that a step computes of differences, '' if none."""
    if step.kind in _WRITTEN_KINDS:
        inputs = list_floating_inputs(step)
        is_of_difference = len(inputs) == 1 and inputs[0][1].producer_kind == "sub"
        return _WRITTEN_KINDS[step.kind] if is_of_difference else ""
    return step.kind if step.kind in _DIFFERENCE_LOSSES else ""


def _compute_loss(step: Step, kind: str) -> AnyArray | None:
    """Return the output of a step with another kind of loss; None if its form is unclear."""
    arrays = [item.array for _, item in list_floating_inputs(step)]
    if step.kind in _WRITTEN_KINDS:
        return compute_element_losses(kind, arrays[0], np.zeros_like(arrays[0]))
    if len(arrays) < 2 or arrays[0].size != arrays[1].size:
        return None
    losses = compute_element_losses(kind, arrays[0], arrays[1].reshape(arrays[0].shape))
    if step.output.size == losses.size:
        return losses.reshape(step.output.shape)
    reductions = {"mean": losses.mean(), "sum": losses.sum()}
    form = step.interpretation.rpartition(", ")[2]
    return np.asarray(reductions[form]) if form in reductions else None


def list_other_denominators(case: FaultCase, region: Region) -> Iterator[Change]:
    """Divide sums by the number of all elements, or by the other side's count, not by a count.

    Or take the sum divided by a count in place of a mean.
    """
    if case.phase != FORWARD or case.faithful.size != 1:
        return
    counts = list(_list_counts(case.faulty_region))[:_MAX_COUNTS]
    yield from _list_divided_sums(region, counts)
    sizes = {n: size for n, step in enumerate(region.steps) if (size := _count_averaged(step))}
    for count in counts:
        outputs = {
            number: region.steps[number].output * (size / count) for number, size in sizes.items()
        }
        if outputs:
            first = min(outputs)
            yield Change(
                first,
                outputs.pop(first),
                "loss-reduction",
                f"sums divided by {count:.0f}",
                f"divides by the number of all elements ({', '.join(map(str, sizes.values()))})",
                further_outputs=outputs,
            )


def _list_divided_sums(region: Region, other_counts: Sequence[float]) -> Iterator[Change]:
    """Divide by other counts, or by how many elements, rows or sequences are summed up."""
    steps = {step.value: step for step in region.steps}
    tried: set[tuple[int, float]] = set()
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        if step.kind != "div" or len(inputs) != 2 or inputs[1][1].value < 0:
            continue
        numerator, divisor = inputs[0][1], inputs[1][1]
        if not _is_count(divisor.array):
            continue
        own = float(divisor.array.reshape(-1)[0])
        sizes = _list_sizes(steps[numerator.value]) if numerator.value in steps else []
        for count in (*sizes, *other_counts):
            if count == own or (divisor.value, count) in tried:
                continue
            tried.add((divisor.value, count))
            is_whole = ", the number of all" if count in sizes else ""
            yield Change(
                number,
                step.output,
                "loss-reduction",
                f"sums divided by {count:.0f}{is_whole}",
                f"divides by {own:.0f}, computed by {divisor.name}",
                replaced_values={divisor.value: np.full_like(divisor.array, count)},
            )


def _list_sizes(step: Step) -> list[int]:
    """Return how many elements, rows and sequences a step sums up; none if it sums nothing."""
    inputs = list_floating_inputs(step)
    if step.kind != "sum" or step.output.size != 1 or not inputs:
        return []
    shape = inputs[0][1].array.shape
    if inputs[0][1].array.size < _MIN_ELEMENTS:
        return []
    return [int(np.prod(shape[:n_axes])) for n_axes in range(len(shape), 0, -1)]


def _list_counts(region: Region | None) -> Iterator[float]:
    """Yield the whole numbers above one that the steps of a region compute."""
    seen: set[float] = set()
    for step in region.steps if region is not None else ():
        for array in (step.output, *(item.array for item in step.inputs if item.value >= 0)):
            number = float(array.reshape(-1)[0]) if _is_count(array) else 0.0
            if number and number not in seen:
                seen.add(number)
                yield number


def _is_count(array: AnyArray) -> bool:
    """Return whether an array is one whole number above one."""
    if array.size != 1 or array.dtype.kind not in "iuf":
        return False
    number = float(array.reshape(-1)[0])
    return number > 1 and number == round(number)


def _count_averaged(step: Step) -> int:
    """Return of how many elements a step takes the mean, 0 if it takes none."""
    inputs = list_floating_inputs(step)
    if not inputs or step.output.size != 1:
        return 0
    is_mean = step.kind == "mean"
    is_mean |= step.kind in LOSS_KINDS and step.interpretation.rpartition(", ")[2] == "mean"
    return inputs[0][1].array.size if is_mean else 0
