"""What a step inherits from the step before: weights that differ at its beginning.

Weights that differ when a step begins were left by the step before: its gradients, or its update.
They are a finding only where that step explains nothing: then its update is what diverges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.run_result import TaskResult
from ..model.verdict import DIFFERING_STATES


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

    A step that has findings of its own explains every later difference of the weights.
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
        names.append(parameter.name)
        has_agreeing_updates &= bool(before.update)
    if not names:
        return None
    return UpdateGap(earlier, later, tuple(names), has_agreeing_updates)


def list_inherited_findings(task: TaskResult) -> list[int]:
    """Return the findings of a step that the step before left: weights that differ."""
    return [index for index, finding in enumerate(task.findings) if finding.kind == "parameter"]
