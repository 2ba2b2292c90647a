"""Windows that are cut from a longer value, at other places: a convolution that looks ahead.

A causal convolution pads a sequence at its start, or at both ends, and cuts the steps that it
keeps. One that is written out cuts a window for each of its taps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....model.arrays import AnyArray, Ints
from ....model.trace import FORWARD
from ...fault_case import FaultCase
from ...region import Region, Step
from .change import Change

#: Places by which windows are moved.
_SHIFTS = (1, -1, 2, -2)
#: Fewest places of a window; of fewer, another one is another part.
_MIN_WIDTH = 3
#: Windows of one value that are the taps of a convolution.
_MIN_TAPS = 2
#: Axes of a sequence at most; what a convolution gives of an image has more.
_SEQUENCE_AXES = 3


@dataclass(frozen=True)
class _Window:
    """A step that cuts a window from its first input along one of the input's axes."""

    number: int  #: of the step
    axis: int
    coordinates: tuple[Ints, ...]  #: of the elements in the input, one array for each axis


def list_shifted_windows(case: FaultCase, region: Region) -> Iterator[Change]:
    """Move all windows of one value along its axis; what lies beyond its ends is zero."""
    if case.phase != FORWARD:
        return
    for (_, axis), windows in _group_windows(region).items():
        source_input = region.steps[windows[0].number].inputs[0]
        name = source_input.name
        is_sequence = source_input.array.ndim <= _SEQUENCE_AXES
        is_convolution = len(windows) >= _MIN_TAPS or (
            source_input.producer_kind == "convolution" and is_sequence
        )
        cause = "causal-shift" if is_convolution else "row-shift"
        for shift in _SHIFTS:
            outputs = {
                window.number: _move_window(region.steps[window.number], window, shift)
                for window in windows
            }
            number = min(outputs)
            yield Change(
                number,
                outputs.pop(number),
                cause,
                f"what is cut from {name} shifted by {shift} along axis {axis}",
                further_outputs=outputs,
            )


def _group_windows(region: Region) -> dict[tuple[int, int], list[_Window]]:
    """Return the windows of each value and axis."""
    groups: dict[tuple[int, int], list[_Window]] = {}
    for number, step in enumerate(region.steps):
        window = _read_window(number, step)
        if window is not None:
            groups.setdefault((step.inputs[0].value, window.axis), []).append(window)
    return groups


def _read_window(number: int, step: Step) -> _Window | None:
    """Return the window that a step cuts from a computed value; None if it cuts none."""
    if step.kind != "slice" or step.places is None or step.inputs[0].is_parameter:
        return None
    source = step.inputs[0].array
    if step.places.min() < 0 or step.places.max() >= source.size:
        return None
    coordinates = np.unravel_index(step.places, source.shape)
    for axis, places in enumerate(coordinates):
        width = int(np.ptp(places)) + 1
        is_whole = len(np.unique(places)) == width
        n_elements = source.size // source.shape[axis] * width
        if _MIN_WIDTH <= width < source.shape[axis] and is_whole:
            return _Window(number, axis, coordinates) if n_elements == step.output.size else None
    return None


def _move_window(step: Step, window: _Window, shift: int) -> AnyArray:
    """Return the output with each element from an earlier place, for a positive shift."""
    source = step.inputs[0].array
    places = window.coordinates[window.axis] - shift
    is_inside = (places >= 0) & (places < source.shape[window.axis])
    coordinates = list(window.coordinates)
    coordinates[window.axis] = places.clip(0, source.shape[window.axis] - 1)
    output: AnyArray = np.where(is_inside, source[tuple(coordinates)], 0.0)
    return output.reshape(step.output.shape)
