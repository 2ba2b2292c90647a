"""Another way to reduce a tensor: mean, maximum, or one of its elements along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....operators.pooling import (
    POOLING_KINDS,
    list_pooling_settings,
    pool,
    take_first_elements,
)
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step
from .change import Change, list_floating_inputs

#: Kinds of ops that reduce a tensor, or take a part of it.
_REDUCING_KINDS = {
    "mean", "sum", "max", "min", "slice", "gather_rows", "index", "squeeze", "reshape",
    *POOLING_KINDS,
}  # fmt: skip
#: Elements along an axis that are tried one by one.
_MAX_ELEMENTS = 64
#: Begins the text of a step that takes one element of an axis. Where that leaves a vector or a
#: number, another element is another input; where it leaves more, another summary.
_ELEMENT = "element"
#: Axes that are reduced together, at most.
_MAX_REDUCED_AXES = 3
#: Relative L2 within which a reduction gives a recorded output.
_EQUAL_DISTANCE = 1e-5


def list_poolings(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Pool windows by maximum or mean, reduce other axes, take another element of an axis."""
    for number, step in enumerate(region.steps):
        inputs = [item.array for _, item in list_floating_inputs(step) if not item.is_parameter]
        if step.kind not in _REDUCING_KINDS or not inputs or not step.output.ndim:
            continue
        x = inputs[0]
        if x.size <= step.output.size:
            continue
        alternatives = _list_windows(step, x) or _list_reductions(step, x)
        own_text = next(
            (
                text
                for text, output in alternatives
                if compute_residual(output, step.output) <= _EQUAL_DISTANCE
            ),
            "",
        )
        for text, output in alternatives:
            if own_text and text != own_text:
                changed = output.reshape(step.output.shape)
                is_choice = all(each.startswith(_ELEMENT) for each in (text, own_text))
                cause = "input-source" if is_choice and step.output.ndim < 2 else "pooling"
                yield Change(number, changed, cause, text, f"takes {own_text}")


def _list_windows(step: Step, x: AnyArray) -> list[tuple[str, Floats]]:
    """Return (text, output) of the poolings of windows with the settings of the step."""
    if step.kind not in POOLING_KINDS:
        return []
    nouns = {"max_pool": "the maximum", "avg_pool": "the mean"}
    for settings in list_pooling_settings(x.shape, step.output.shape):
        output = pool(x, step.kind, settings)
        if compute_residual(output, step.output) > _EQUAL_DISTANCE:
            continue
        other_kind = POOLING_KINDS[step.kind == POOLING_KINDS[0]]
        outputs = [(f"{nouns[step.kind]} of {settings}", output)]
        for other in list_pooling_settings(x.shape, step.output.shape):
            for kind in (other_kind, step.kind):
                if kind == "max_pool" and not other.counts_padding:
                    continue
                outputs.append((f"{nouns[kind]} of {other}", pool(x, kind, other)))
        if not max(settings.padding):
            first_elements = take_first_elements(x, settings)
            outputs.append((f"the first element of {settings}", first_elements))
        return outputs
    return []


def _list_reductions(step: Step, x: AnyArray) -> list[tuple[str, Floats]]:
    """Return (text, output) of the reductions of a tensor to the size of the step's output."""
    outputs: list[tuple[str, Floats]] = []
    for n_axes in range(1, min(_MAX_REDUCED_AXES, x.ndim) + 1):
        for axes in combinations(range(x.ndim), n_axes):
            length = int(np.prod([x.shape[axis] for axis in axes]))
            if length < 2 or length * step.output.size != x.size:
                continue
            names = " and ".join(str(axis) for axis in axes)
            place = f"axis {names}" if n_axes == 1 else f"axes {names}"
            outputs += [
                (f"the mean over {place}", x.mean(axis=axes)),
                (f"the maximum over {place}", x.max(axis=axes)),
                (f"the minimum over {place}", x.min(axis=axes)),
            ]
            if n_axes == 1:
                outputs += _list_elements(x, axes[0])
    return outputs


def _list_elements(x: AnyArray, axis: int) -> Iterator[tuple[str, Floats]]:
    """Yield (text, output) of what is taken along one axis: an element, a mean of all but one."""
    length = x.shape[axis]
    if length > 2:
        rest, start = (np.delete(x, place, axis) for place in (0, -1))
        yield f"the mean over axis {axis} without its first element", rest.mean(axis=axis)
        yield f"the mean over axis {axis} without its last element", start.mean(axis=axis)
        yield f"the maximum over axis {axis} without its first element", rest.max(axis=axis)
    for place in range(min(length, _MAX_ELEMENTS)):
        yield f"{_ELEMENT} {place} of axis {axis}", x.take(place, axis)
    if length > _MAX_ELEMENTS:
        yield f"{_ELEMENT} {length - 1} of axis {axis}", x.take(-1, axis)
