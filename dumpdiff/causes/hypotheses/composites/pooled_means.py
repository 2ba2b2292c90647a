"""The mean of the means of groups, and the mean of all: images, segments or steps of a batch.

They differ where groups count differently many pixels or tokens. With the counts c of the groups
and their sums s, the one is mean(s / c) and the other sum(s) / sum(c), which is mean(s / mean(c)).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....model.formatting import format_first_numbers
from ...fault_case import FaultCase
from ...hypothesis import Statement
from ...region import Region, Step, StepInput
from .change import Change, list_floating_inputs

#: Groups of a batch, and counts that a sentence lists.
_MAX_GROUPS, _N_LISTED = 1 << 12, 4
_SUM_KINDS = {"sum", "mean"}
#: Kinds of steps between a sum and the quotient that keep it a multiple of the sum.
_SCALING_KINDS = {"mul", "div"}


def list_pooled_means(case: FaultCase, region: Region) -> Iterator[Change]:
    """Divide the sums of all groups by their common count, where each has its own.

    Of one number hardly any change can be tried, so all quotients of the region are changed first.
    """
    if case.faithful.size != 1:
        return
    counts: dict[int, Floats] = {}
    for step in region.steps:
        divisor = _get_divisor(step)
        if divisor is not None:
            counts[divisor.value] = np.asarray(divisor.array, dtype=np.float64)
    numbers = {value: array for value, array in counts.items() if array.size == 1}
    if len(set(map(float, numbers.values()))) > 1:
        listed = np.array([float(array) for array in numbers.values()])
        yield _pool(region, dict.fromkeys(numbers, listed.mean()), listed)
    vectors = {
        value: array
        for value, array in counts.items()
        if 1 < array.size <= _MAX_GROUPS and np.ptp(array) > 0
    }
    for group in (vectors, *({value: array} for value, array in vectors.items())):
        if group and (group is vectors or len(vectors) > 1):
            means = {value: np.full(array.shape, array.mean()) for value, array in group.items()}
            yield _pool(region, means, next(iter(group.values())))


def _pool(region: Region, means: Mapping[int, AnyArray], counts: Floats) -> Change:
    """Return the change in which each group has the mean of the counts."""
    n_groups, listed = counts.size, _format_counts(counts)
    return Change(
        0,
        region.steps[0].output,
        "loss-reduction",
        f"the sums of all {n_groups} groups divided by their common count",
        f"divides each by its own: {listed}",
        mirror=Statement(
            f"the sum of each of {n_groups} groups divided by its own count: {listed}",
            "divides them by their common count",
        ),
        replaced_values={value: np.asarray(array) for value, array in means.items()},
    )


def list_means_of_groups(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take the mean of the groups' means, where the sum of all is divided by the common count.

    At all quotients of the region, then at single ones.
    """
    if case.faithful.size != 1:
        return
    steps = {step.value: step for step in region.steps}
    changes = []
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        if step.kind != "div" or len(inputs) != 2 or step.output.size != 1:
            continue
        total, count = (_find_sum(steps, item) for _, item in inputs)
        if total is None or count is None or total.n_groups != count.n_groups:
            continue
        counts = count.sum_groups()
        if counts.all() and np.ptp(counts) > 0 and counts.size <= _MAX_GROUPS:
            changes.append(_take_means(number, step, total.sum_groups() / counts, counts))
    if len(changes) > 1:
        further_outputs = {change.number: change.output for change in changes[1:]}
        yield replace(changes[0], further_outputs=further_outputs)
    yield from changes


def _take_means(number: int, step: Step, means: Floats, counts: Floats) -> Change:
    n_groups, listed = means.size, _format_counts(counts)
    return Change(
        number,
        means.mean().reshape(step.output.shape),
        "loss-reduction",
        f"the mean of the means of {n_groups} groups, of counts {listed}",
        "divides the sum of all groups by their common count",
        mirror=Statement(
            "the sum of all groups divided by their common count",
            f"has the mean of the means of {n_groups} groups, of counts {listed}",
        ),
    )


@dataclass(frozen=True, eq=False)
class _Sum:
    """A multiple of the sum of all elements of an array, whose first axis has the groups."""

    array: AnyArray
    factor: float

    @property
    def n_groups(self) -> int:
        return len(self.array) if self.array.ndim else 1

    def sum_groups(self) -> Floats:
        """Return (groups,) what each contributes to the multiple of the sum."""
        sums: Floats = self.array.reshape(self.n_groups, -1).sum(axis=1) * self.factor
        return sums


def _find_sum(steps: Mapping[int, Step], item: StepInput) -> _Sum | None:
    """Return the sum of which an input is a multiple; None if none was recorded."""
    factor, value = 1.0, item.value
    while value in steps:
        step = steps[value]
        if step.kind in _SUM_KINDS:
            array = step.inputs[0].array
            total = float(array.sum())
            return _Sum(array, factor * float(step.output) / total) if total else None
        tensors = [own for own in step.inputs if own.value in steps]
        if step.kind not in _SCALING_KINDS or len(tensors) != 1 or not float(tensors[0].array):
            return None
        factor *= float(step.output) / float(tensors[0].array)
        value = tensors[0].value
    return None


def _get_divisor(step: Step) -> StepInput | None:
    """Return the computed divisor of a step; None if it has none."""
    if step.kind != "div" or len(step.inputs) < 2:
        return None
    divisor = step.inputs[1]
    is_count = divisor.array.dtype.kind == "f" and not divisor.is_parameter
    return divisor if divisor.value >= 0 and is_count and np.all(divisor.array > 0) else None


def _format_counts(counts: Floats) -> str:
    return format_first_numbers([f"{count:.6g}" for count in counts.reshape(-1)], _N_LISTED)
