"""What a step inherits from the step before: weights that differ at its beginning.

Weights that differ when a step begins were left by the step before: its gradients, or its update.
What an update that agrees has left is noise, which the next step is allowed to have. What else
differs is a finding only where the step before explains nothing: then its update is what diverges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.inheritance import MAX_GROWTH, Inheritance
from ..model.run_result import ParameterState, TaskResult
from ..model.verdict import DIFFERING_STATES

#: Error of a weight over that which the new weight of the step before had. The two are one tensor;
#: statistics and whole tensors may give different errors.
_SAME_ERROR = 2.0
#: Relative error of a weight up to which it may be noise of an update that was not recorded. A step
#: of training changes a weight by 5 % at most. Adam makes noise of the share ``e`` of the gradients
#: to noise of the share sqrt(e) of the step, because the elements that are smaller than the noise
#: go either way; ``e`` is 1e-6 in float32.
_MAX_UPDATE_NOISE = 0.05 * math.sqrt(1e-6)


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


def find_inheritance(task: TaskResult, tasks: Sequence[TaskResult]) -> Inheritance | None:
    """Return what the weights of a task may differ by when its step begins.

    It is what the updates of the step before left, on all ranks, if nothing in that step diverged.
    None if the task agrees without it.
    """
    earlier = find_earlier_task(task, tasks)
    if earlier is None or task.problem or has_diverged(earlier):
        return None
    if task.inheritance is None and task.verdict == "aligned":
        return None
    largest_error = 0.0
    for sibling in tasks:
        if sibling.step == task.step:
            left_errors = _list_left_errors(find_earlier_task(sibling, tasks))
            for weight in sibling.parameters:
                if weight.weight_error <= left_errors.get(weight.name, 0.0):
                    largest_error = max(largest_error, weight.weight_error)
    return Inheritance(_list_left_errors(earlier), largest_error) if largest_error else None


def _list_left_errors(earlier: TaskResult | None) -> dict[str, float]:
    """Return the error that each weight of the next step may have, if the values of it agree."""
    return {
        state.name: compute_left_error(state)
        for state in (() if earlier is None else earlier.parameters)
        if not {state.weight, state.gradient, state.update} & set(DIFFERING_STATES)
    }


def has_diverged(task: TaskResult) -> bool:
    """Return whether a step has findings of its own, which explain what later steps inherit."""
    return any(finding.kind != "isolated" for finding in task.findings)


def find_update_gap(earlier: TaskResult, later: TaskResult) -> UpdateGap | None:
    """Return the weights that an unexplained update made differ; None if there are none.

    A step that has findings of its own explains every later difference of the weights. So does its
    update if that agrees and left no less: what differs then is the noise that it left.
    """
    if has_diverged(earlier):
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
        if parameter.weight_error <= compute_left_error(before):
            continue
        names.append(parameter.name)
        has_agreeing_updates &= bool(before.update)
    if not names:
        return None
    return UpdateGap(earlier, later, tuple(names), has_agreeing_updates)


def compute_left_error(before: ParameterState) -> float:
    """Return the error of a weight that a step whose values agree may have left.

    A recorded new weight is the weight of the next step: their errors are the same.
    """
    is_recorded = bool(before.update) and math.isfinite(before.update_error)
    return _SAME_ERROR * before.update_error if is_recorded else _MAX_UPDATE_NOISE


def list_inherited_findings(task: TaskResult, inherited_error: float) -> list[int]:
    """Return the findings of a step that follow from weights which the step before made differ.

    These are the weights, and errors that are no larger than theirs explain. ``inherited_error`` is
    the largest error of a weight when the step begins, on any rank.
    """
    inherited = []
    for index, finding in enumerate(task.findings):
        error = finding.metrics.get("error", math.nan)
        if finding.kind == "parameter" or error <= MAX_GROWTH * inherited_error:
            inherited.append(index)
    return inherited


def compute_inherited_error(tasks: Sequence[TaskResult]) -> float:
    """Return the largest error of a weight at the beginning of a step, on any of its ranks."""
    errors = [
        parameter.weight_error
        for task in tasks
        for parameter in task.parameters
        if math.isfinite(parameter.weight_error)
    ]
    return max(errors, default=0.0)
