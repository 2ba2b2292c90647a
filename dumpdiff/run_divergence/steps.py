"""What a step inherits from the step before: weights that differ at its beginning.

Weights that differ when a step begins were left by the step before: its gradients, or its update.
They are a finding only where that step explains nothing: then its update is what diverges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.run_result import ParameterState, TaskResult
from ..model.verdict import DIFFERING_STATES

#: Error of a value over the largest error of a weight when the step begins, up to which it is a
#: consequence: the growth that divergence.forward_walk allows from op to op.
_GROWTH = 10.0
#: Error of a weight over that which the new weight of the step before had. The two are one tensor;
#: statistics and whole tensors may give different errors.
_SAME_ERROR = 2.0
#: Relative error of a weight up to which it may be noise of an update that was not recorded: two
#: correct runs of one step of Adam in float32 differ by up to 1e-5 of a weight.
_MAX_UPDATE_NOISE = 5e-5


@dataclass(frozen=True)
class UpdateGap:
    """Weights that agree before a step and differ after it, although the step's values agree."""

    earlier: TaskResult
    later: TaskResult
    parameters: tuple[str, ...]  #: as the target calls them
    #: the new weights that the step recorded agree: the difference arose after them
    has_agreeing_updates: bool


def find_earlier_task(task: TaskResult, tasks: Sequence[TaskResult]) -> TaskResult | None:
    """Return the task of the same rank one step earlier, None if it was not compared."""
    earlier_task = None
    for candidate in tasks:
        is_earlier = (
            candidate.rank == task.rank
            and candidate.step is not None
            and task.step is not None
            and candidate.step < task.step
        )
        if is_earlier and not candidate.problem:
            earlier_task = candidate
    return earlier_task


def find_update_gap(earlier: TaskResult, later: TaskResult) -> UpdateGap | None:
    """Return the weights that an unexplained update made differ; None if there are none.

    A step that has findings of its own explains every later difference of the weights. So does its
    update if that agrees and left no less: what differs then is the noise that it left.
    """
    if any(finding.kind != "isolated" for finding in earlier.findings):
        return None
    earlier_states = {parameter.name: parameter for parameter in earlier.parameters}
    names = []
    has_agreeing_updates = True
    for parameter in later.parameters:
        if parameter.weight not in DIFFERING_STATES:
            continue
        before = earlier_states.get(parameter.name)
        if before is None:
            continue
        states = (before.weight, before.gradient, before.update)
        if any(state in DIFFERING_STATES for state in states):
            continue
        if is_left_over(before, parameter):
            continue
        names.append(parameter.name)
        has_agreeing_updates &= bool(before.update)
    if not names:
        return None
    return UpdateGap(earlier, later, tuple(names), has_agreeing_updates)


def is_left_over(before: ParameterState, parameter: ParameterState) -> bool:
    """Return whether the error of a weight is what the step before left as noise.

    A recorded new weight is the weight of the next step: their errors are the same. Without it, an
    update is noisy because Adam divides small gradients by their own size.
    """
    if before.update:
        return parameter.weight_error <= _SAME_ERROR * before.update_error
    return parameter.weight_error <= _MAX_UPDATE_NOISE


def compute_inherited_error(tasks: Sequence[TaskResult]) -> float:
    """Return the largest error of a weight at the beginning of a step, on any of its ranks."""
    errors = [
        parameter.weight_error
        for task in tasks
        for parameter in task.parameters
        if math.isfinite(parameter.weight_error)
    ]
    return max(errors, default=0.0)


def has_only_left_over(earlier: TaskResult, task: TaskResult, inherited_error: float) -> bool:
    """Return whether all findings of a step are what the step before left as noise.

    ``inherited_error`` is the largest error of a weight when the step begins.
    """
    inherited = list_inherited_findings(task, inherited_error)
    if task.n_findings > len(task.findings) or len(inherited) < len(task.findings):
        return False
    earlier_states = {parameter.name: parameter for parameter in earlier.parameters}
    for parameter in task.parameters:
        if parameter.weight not in DIFFERING_STATES:
            continue
        before = earlier_states.get(parameter.name)
        if before is None or not is_left_over(before, parameter):
            return False
    return True


def list_inherited_findings(task: TaskResult, inherited_error: float) -> list[int]:
    """Return the findings of a step that the step before left.

    These are weights that differ, and errors that are no larger than those of the weights explain.
    """
    inherited = []
    for index, finding in enumerate(task.findings):
        error = finding.metrics.get("error", math.nan)
        if finding.kind == "parameter" or error <= _GROWTH * inherited_error:
            inherited.append(index)
    return inherited
