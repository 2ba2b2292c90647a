"""Fit a fake quantizer to a value and its quantized form.

y = scale (clip(round(x / scale) + zero point, low, high) - zero point); Jacob et al.,
arXiv:1712.05877. Neither the scale nor the limits need to be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import AnyArray, Floats
from ..operators.elementwise import ROUNDINGS

#: Distance from a whole number of steps within which a value lies on the grid: float32 has 24 bits,
#: and an 8-bit grid needs 8 of them.
_GRID_DISTANCE = 0.02
#: Differences below this share of the largest element are rounding errors of float32.
_MIN_DIFFERENCE = 1e-5
#: Largest number of steps on one side of zero: grids finer than 14 bits drown in rounding errors.
_MAX_STEPS = 1 << 14
#: Fewest elements, and different values, that show a grid.
_MIN_ELEMENTS, _MIN_VALUES = 8, 3
#: Slices of an axis, each with its own scale, at most.
_MAX_SLICES = 4096
#: How far x / scale may be from the step it was rounded to: (least, most), by rounding.
_DISTANCES = {"round": (-0.5, 0.5), "floor": (0.0, 1.0), "trunc": (0.0, 1.0), "ceil": (-1.0, 0.0)}
#: Largest number of steps between two elements that are next to each other.
_MAX_DIVISOR = 6
#: A grid that is too coarse leaves distances below this: the scale is a multiple of the true one.
_COARSE_DISTANCE = 0.3


@dataclass(frozen=True, eq=False)
class Quantizer:
    """A fake quantizer. Limits count steps from zero; None if no element reaches them."""

    scale: AnyArray  #: of no axes, or one scale for each slice, ready to divide
    axis: int | None  #: of the scales; None for one scale of the whole tensor
    rounding: str
    low: int | None
    high: int | None
    lowest: int  #: step of the smallest element
    highest: int  #: step of the largest one
    offset: int  #: steps that are added to every element: a zero point that is not subtracted
    quantized: AnyArray  #: what it gives

    def quantize(self, x: AnyArray) -> Floats:
        """Return x, quantized."""
        steps = ROUNDINGS[self.rounding](x / self.scale)
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return (np.clip(steps, low, high) + self.offset) * self.scale


def fit_quantizer(x: AnyArray, y: AnyArray) -> Quantizer | None:
    """Return the quantizer that gives ``y`` of ``x``; None if none does. The shapes are equal."""
    if x.size < _MIN_ELEMENTS or not np.all(np.isfinite(y)) or not np.all(np.isfinite(x)):
        return None
    scale = _fit_scale(x.reshape(-1), y.reshape(-1))
    if scale is not None:
        return _fit_steps(x, y, np.asarray(scale), None)
    for axis in dict.fromkeys((0, x.ndim - 1, 1)):
        if x.ndim < 2 or axis >= x.ndim or not 2 <= x.shape[axis] <= _MAX_SLICES:
            continue
        scales = _fit_scales(x, y, axis)
        if scales is not None:
            return _fit_steps(x, y, scales, axis)
    return None


def _fit_scales(x: AnyArray, y: AnyArray, axis: int) -> AnyArray | None:
    """Return one scale for each slice along an axis; None if a slice is not on a grid."""
    scales = []
    for x_slice, y_slice in zip(np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0), strict=True):
        scale = _fit_scale(x_slice.reshape(-1), y_slice.reshape(-1))
        if scale is None:
            return None
        scales.append(scale)
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.array(scales).reshape(shape)


def _fit_scale(x: AnyArray, y: AnyArray) -> float | None:
    """Return the distance of the grid on which ``y`` lies; None if it lies on none."""
    largest = float(np.abs(y).max())
    differences = np.diff(np.sort(y))
    differences = differences[differences > _MIN_DIFFERENCE * largest]
    if len(differences) + 1 < _MIN_VALUES:
        return None
    coarse_scale = None
    for divisor in range(1, _MAX_DIVISOR + 1):
        coarse_scale = _refine_scale(y, float(differences.min()) / divisor)
        if coarse_scale is not None:
            break
    if coarse_scale is None:
        return None
    # with few elements no two neighbors of the grid may be there: x tells the true distance
    steps = np.rint(y / coarse_scale)
    is_inside = (steps > steps.min()) & (steps < steps.max())
    distances = np.abs(x / coarse_scale - steps)[is_inside]
    largest_distance = float(distances.max()) if distances.size else 0.5
    if 0 < largest_distance < _COARSE_DISTANCE:
        divisor = int(0.5 / largest_distance + _GRID_DISTANCE)
        return _refine_scale(y, coarse_scale / divisor)
    return coarse_scale


def _refine_scale(y: AnyArray, scale: float) -> float | None:
    """Return the scale, fitted to all elements; None if they are not on the grid."""
    if float(np.abs(y).max()) > _MAX_STEPS * scale:
        return None
    for _ in range(2):
        steps = np.rint(y / scale)
        scale = float(steps @ y / (steps @ steps))
    if np.abs(y / scale - np.rint(y / scale)).max() > _GRID_DISTANCE:
        return None
    return scale


def _fit_steps(x: AnyArray, y: AnyArray, scale: AnyArray, axis: int | None) -> Quantizer | None:
    """Return the quantizer with a scale; None if its steps do not follow from x."""
    steps = np.rint(y / scale)
    exact_steps = x / scale
    offset = int(np.rint(np.median(steps - exact_steps)))
    offset = 0 if abs(offset) <= 1 else offset
    steps = steps - offset
    lowest, highest = int(steps.min()), int(steps.max())
    is_above = (steps == highest) & (exact_steps > highest + 1 + _GRID_DISTANCE)
    is_below = (steps == lowest) & (exact_steps < lowest - 1 - _GRID_DISTANCE)
    distances = (exact_steps - steps)[~is_above & ~is_below]
    if not distances.size:
        return None
    magnitudes = np.where(exact_steps < 0, -1, 1)[~is_above & ~is_below] * distances
    for rounding, (least, most) in _DISTANCES.items():
        tested_distances = magnitudes if rounding == "trunc" else distances
        is_clipped = (steps == highest) | (steps == lowest)
        inner = tested_distances[~is_clipped[~is_above & ~is_below]]
        if not inner.size:
            continue
        if inner.min() < least - _GRID_DISTANCE or inner.max() > most + _GRID_DISTANCE:
            continue
        high_distance = (exact_steps - steps)[steps == highest].max()
        low_distance = (exact_steps - steps)[steps == lowest].min()
        has_high = high_distance > most + _GRID_DISTANCE
        has_low = low_distance < least - _GRID_DISTANCE
        return Quantizer(
            scale,
            axis,
            rounding,
            lowest if has_low else None,
            highest if has_high else None,
            lowest,
            highest,
            offset,
            (steps + offset) * scale,
        )
    return None


def list_other_quantizers(quantizer: Quantizer, x: AnyArray) -> Iterator[Quantizer]:
    """Yield the quantizer with one thing changed: rounding, zero point or limits."""
    for rounding in ROUNDINGS:
        if rounding != quantizer.rounding:
            yield _requantize(replace(quantizer, rounding=rounding), x)
    low, high = quantizer.low, quantizer.high
    for shift in (1, -1, 2, -2):
        moved_low = None if low is None else low + shift
        moved_high = None if high is None else high + shift
        if low is not None or high is not None:
            yield _requantize(replace(quantizer, low=moved_low, high=moved_high), x)
    for limit in (7, 15, 31, 63, 127, 255, 511):
        for lowest in (0, -limit, -limit - 1):
            yield _requantize(replace(quantizer, low=lowest, high=limit), x)
    yield _requantize(replace(quantizer, low=None, high=None), x)


def _requantize(quantizer: Quantizer, x: AnyArray) -> Quantizer:
    quantized = quantizer.quantize(x)
    steps = np.rint(quantized / quantizer.scale)
    lowest, highest = int(steps.min()), int(steps.max())
    return replace(quantizer, quantized=quantized, lowest=lowest, highest=highest)
