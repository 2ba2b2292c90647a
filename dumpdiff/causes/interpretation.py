"""The interpretation of a step: what gives its recorded output from its recorded inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..operators import compute_relative_distance
from ..operators.losses import THRESHOLD_NAMES, find_threshold
from ..operators.pooling import POOLING_KINDS, PoolingSettings, find_pooling_settings
from .element_places import (
    CAST_DISTANCE,
    find_join,
    find_padding,
    find_places,
    find_selection,
    find_window,
)
from .region import Step

#: Norms of each vector; a number that stands for no epsilon.
_VECTOR_NORMS = {"rms_norm", "layer_norm"}
_TINY_EPSILON = 1e-30
#: Kinds that may select elements by a mask.
_SELECTING_KINDS = {"gather_nd", "slice"}
#: Kinds whose output is cut from their input along one axis.
_CUTTING_KINDS = {"slice", "split"}
#: What a pooling of all elements of a channel is.
_GLOBAL_POOLINGS = {"max_pool": "max", "avg_pool": "mean"}


def interpret_step(step: Step, max_distance: float) -> Step | None:
    """Return the step with the interpretation that gives its recorded output; None if none does."""
    step = _read_global_pooling(step)
    if step.kind in POOLING_KINDS:
        settings = _find_pooling_settings(step)
        return None if settings is None else replace(step, pooling=settings)
    if step.output.dtype.kind == "f":
        step = _add_threshold(_add_epsilon(step))
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
    places = _find_places(step)
    return None if places is None else replace(step, places=places)


def _find_places(step: Step) -> Ints | None:
    """Return where the elements of the output are among those of the inputs; None if unclear."""
    arrays = step.list_arrays()
    places = find_places(arrays, step.output)
    if places is not None or not arrays:
        return places
    if step.kind == "concat":
        return find_join(arrays, step.output)
    if step.kind == "pad":
        return find_padding(arrays[0], step.output)
    if step.kind in _SELECTING_KINDS:
        places = find_selection(arrays, step.output)
    if places is None and step.kind in _CUTTING_KINDS:
        return find_window(arrays[0], step.output)
    return places


def _read_global_pooling(step: Step) -> Step:
    """Return a pooling with one window for all of a channel as the reduction that it is."""
    shape = step.inputs[0].array.shape if step.inputs else ()
    if step.kind not in POOLING_KINDS or step.output.size != math.prod(shape[:2]):
        return step
    return replace(step, kind=_GLOBAL_POOLINGS[step.kind], inputs=step.inputs[:1])


def _add_epsilon(step: Step) -> Step:
    """Return a norm that records no epsilon with the one that gives its output best.

    The record of a module holds none, and 1e-5 for 1e-6 is more than noise where inputs are small.
    With f = <y - b, y0 - b> / <y0 - b, y0 - b> per row, y0 the output without an epsilon and b the
    one of zeros: epsilon = v (1 / f^2 - 1), v the mean square.
    """
    arrays = step.list_arrays()
    is_recorded = any(name in step.keywords for name in ("eps", "epsilon"))
    is_recorded = is_recorded or any(0 < float(a) < 1 for a in arrays if not a.ndim)
    if step.kind not in _VECTOR_NORMS or is_recorded or not arrays or not arrays[0].ndim:
        return step
    x = arrays[0]
    outputs = []
    for first_input, eps in ((x, _TINY_EPSILON), (np.zeros_like(x), 1.0)):
        changed = replace(step, keywords={**step.keywords, "eps": np.asarray(eps)})
        outputs.append(next((y for _, y in changed.interpret([first_input, *arrays[1:]])), None))
    bare, bias = outputs
    if bare is None or bias is None or x.shape != step.output.shape:
        return step
    centered = x - x.mean(axis=-1, keepdims=True) if step.kind == "layer_norm" else x
    variance = np.mean(centered * centered, axis=-1)
    direction = bare - bias
    with np.errstate(all="ignore"):
        factors = np.sum((step.output - bias) * direction, axis=-1)
        factors = factors / np.sum(direction * direction, axis=-1)
        eps = float(np.median(variance * (1 / factors**2 - 1)))
    if not 0 < eps < 1:
        return step
    return replace(step, keywords={**step.keywords, "eps": np.asarray(eps)})


def _add_threshold(step: Step) -> Step:
    """Return a loss that records no threshold with the one that its elements show."""
    name = THRESHOLD_NAMES.get(step.kind, "")
    tensors = [array for array in step.list_arrays() if array.ndim]
    if not name or name in step.keywords or len(tensors) < 2:
        return step
    if any(array.size != step.output.size for array in tensors[:2]) or step.output.size < 2:
        return step
    prediction, target = (array.reshape(step.output.shape) for array in tensors[:2])
    threshold = find_threshold(step.kind, np.abs(prediction - target), step.output)
    if not threshold:
        return step
    return replace(step, keywords={**step.keywords, name: np.asarray(threshold)})


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
    return find_pooling_settings(x, step.kind, step.output, CAST_DISTANCE)


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
