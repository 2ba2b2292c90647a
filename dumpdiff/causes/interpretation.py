"""The interpretation of a step: what gives its recorded output from its recorded inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..model.arrays import AnyArray
from ..operators import compute_relative_distance
from ..operators.pooling import POOLING_KINDS, PoolingSettings, list_pooling_settings, pool
from .element_places import CAST_DISTANCE, find_places, find_window
from .region import Step


def interpret_step(step: Step, max_distance: float) -> Step | None:
    """Return the step with the interpretation that gives its recorded output; None if none does."""
    if step.kind in POOLING_KINDS:
        settings = _find_pooling_settings(step)
        return None if settings is None else replace(step, pooling=settings)
    if step.output.dtype.kind == "f":
        best_name, best_distance = "", float("inf")
        for name, output in step.interpret(step.list_arrays()):
            distance = compute_relative_distance(output, step.output)
            if distance < best_distance:
                best_name, best_distance = name, distance
            if distance <= max_distance:
                break
        if best_distance <= max_distance:
            return replace(step, interpretation=best_name)
    if step.kind == "expand" and _repeats_input(step):
        return replace(step, is_broadcast=True)
    kept = _find_kept_elements(step) if step.kind == "dropout" else None
    if kept is not None:
        return replace(step, kept=kept)
    places = find_places(step.list_arrays(), step.output)
    if places is None and step.kind == "slice" and step.inputs:
        places = find_window(step.inputs[0].array, step.output)
    if places is None:
        return None
    return replace(step, places=places)


def _repeats_input(step: Step) -> bool:
    """Return whether the output is the first input, repeated along axes of one element."""
    if not step.inputs:
        return False
    try:
        output = np.broadcast_to(step.inputs[0].array, step.output.shape)
    except ValueError:
        return False
    return np.array_equal(output, step.output)


def _find_pooling_settings(step: Step) -> PoolingSettings | None:
    """Return the settings with which a pooling gives its recorded output; None if none do."""
    x = step.inputs[0].array if step.inputs else np.zeros(0)
    if x.dtype.kind != "f":
        return None
    for settings in list_pooling_settings(x.shape, step.output.shape):
        if compute_relative_distance(pool(x, step.kind, settings), step.output) <= CAST_DISTANCE:
            return settings
    return None


def _find_kept_elements(step: Step) -> AnyArray | None:
    """Return 0 for each element that dropout drops, 1 / (1 - p) for the others; None if unclear."""
    x = step.inputs[0].array if step.inputs else np.zeros(0)
    if x.dtype.kind != "f" or x.size != step.output.size:
        return None
    x, output = x.reshape(step.output.shape), step.output
    is_kept = (output != 0) | (x == 0)
    factors = output[is_kept & (x != 0)] / x[is_kept & (x != 0)]
    if not factors.size or np.ptp(factors) > CAST_DISTANCE * abs(factors[0]):
        return None
    return np.where(is_kept, float(np.median(factors)), 0.0)
