"""Pooling: the maximum or mean of windows of (batch, channels, ...)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray, Floats
from .recomputation import compute_relative_distance

#: Kinds, as the rules name them, of the two ways to pool.
POOLING_KINDS = ("max_pool", "avg_pool")
#: Longest window, and largest stride, of a pooling that is no mean of everything.
_MAX_WINDOW = 8


@dataclass(frozen=True)
class PoolingSettings:
    """What a record omits of a pooling; all axes have the same. Padding is (before, after)."""

    window: int
    stride: int
    padding: tuple[int, int]
    counts_padding: bool = True  #: a mean divides by all elements of the window, also by padding

    def __str__(self) -> str:
        """Return the settings in words."""
        before, after = self.padding
        padding = f"{before}" if before == after else f"({before}, {after})"
        text = f"windows of {self.window}, stride {self.stride}, padding {padding}"
        return text if self.counts_padding or not after else f"{text} that is not counted"


def pool(x: AnyArray, kind: str, settings: PoolingSettings) -> Floats:
    """Return the maximum ('max_pool') or mean ('avg_pool') of each window of x.

    Axes of one element, which a pooling of images as volumes has, are left out.
    """
    x = x.reshape(_drop_single_axes(x.shape))
    n_axes = x.ndim - 2
    reduced_axes = tuple(range(x.ndim, x.ndim + n_axes))
    if kind == "max_pool":
        largest: Floats = _cut_windows(x, settings, -np.inf).max(axis=reduced_axes)
        return largest
    total = _cut_windows(x, settings, 0.0).sum(axis=reduced_axes)
    counts: AnyArray = np.full(total.shape, float(settings.window**n_axes))
    if not settings.counts_padding:
        counts = _cut_windows(np.ones_like(x), settings, 0.0).sum(axis=reduced_axes)
    mean: Floats = total / counts
    return mean


def _cut_windows(x: AnyArray, settings: PoolingSettings, fill: float) -> AnyArray:
    """Return (batch, channels, outputs, window) of (batch, channels, ...), each with its axes."""
    n_axes = x.ndim - 2
    padded = np.pad(x, [(0, 0), (0, 0), *[settings.padding] * n_axes], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (settings.window,) * n_axes, axis=tuple(range(2, x.ndim))
    )  # type: ignore[call-overload]
    strided: AnyArray = windows[
        (slice(None), slice(None), *[slice(None, None, settings.stride)] * n_axes)
    ]
    return strided


def find_pooling_settings(
    x: AnyArray, kind: str, output: AnyArray, max_distance: float
) -> PoolingSettings | None:
    """Return the settings with which a pooling gives its recorded output; None if none do."""
    for settings in list_pooling_settings(x.shape, output.shape):
        if compute_relative_distance(pool(x, kind, settings), output) <= max_distance:
            return settings
    return None


def bound_maximum_gradient(
    x: AnyArray, gradient: AnyArray, settings: PoolingSettings, error: float
) -> tuple[Floats, Floats]:
    """Return the smallest and the largest gradient of a maximum whose input has an error.

    What flows back to a window belongs to any of its elements that may be the largest.
    """
    images = x.reshape(_drop_single_axes(x.shape)).astype(np.float64)
    window_axes = tuple(range(images.ndim, 2 * images.ndim - 2))
    windows = _cut_windows(images, settings, -np.inf)
    is_largest = windows >= windows.max(axis=window_axes, keepdims=True) - error
    is_sure = is_largest & (is_largest.sum(axis=window_axes, keepdims=True) == 1)
    places = _cut_windows(np.arange(images.size).reshape(images.shape), settings, 0)
    parts = gradient.reshape(windows.shape[: images.ndim] + (1,) * len(window_axes))

    def add_up(shares: AnyArray) -> Floats:
        total = np.zeros(x.size)
        np.add.at(total, places[is_largest], shares[is_largest])
        return total.reshape(x.shape)

    low, high = (np.where(is_sure, parts, bound(parts, 0.0)) for bound in (np.minimum, np.maximum))
    return add_up(low), add_up(high)


def take_first_elements(x: AnyArray, settings: PoolingSettings) -> Floats:
    """Return the first element of each window of x, as a slice with a stride; without padding."""
    x = x.reshape(_drop_single_axes(x.shape))
    starts = (slice(0, length - settings.window + 1, settings.stride) for length in x.shape[2:])
    elements: Floats = x[(slice(None), slice(None), *starts)]
    return elements


def list_pooling_settings(
    shape: tuple[int, ...], output_shape: tuple[int, ...]
) -> Iterator[PoolingSettings]:
    """Yield the settings that give this output shape, the likeliest first."""
    shape, output_shape = _drop_single_axes(shape), _drop_single_axes(output_shape)
    if len(shape) < 3 or len(shape) != len(output_shape) or shape[:2] != output_shape[:2]:
        return
    lengths = list(zip(shape[2:], output_shape[2:], strict=True))
    shortest_axis = min(length for length, _ in lengths)
    windows = list(range(2, min(_MAX_WINDOW, shortest_axis) + 1))
    if shortest_axis > _MAX_WINDOW:
        windows.append(shortest_axis)
    for window in windows:
        for stride in (window, *range(1, window)):
            for padding in _list_paddings(window, stride, lengths):
                yield PoolingSettings(window, stride, padding)
                if padding[1]:
                    yield PoolingSettings(window, stride, padding, counts_padding=False)


def _list_paddings(
    window: int, stride: int, lengths: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the paddings that give these (input, output) lengths.

    More of it after the input than before: a window that goes beyond the end (``ceil_mode``), or
    ``pad_mode="same"``. What no window reads is left out.
    """
    for before in range(window // 2 + 1):
        needed = {(output - 1) * stride + window - length - before for length, output in lengths}
        after = max(needed)
        if before - stride < min(needed) and after <= before:
            yield before, before
        elif len(needed) == 1 and before < after < before + stride:
            yield before, after


def _drop_single_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return (batch, channels, ...) without axes of one element."""
    return (*shape[:2], *(length for length in shape[2:] if length > 1))
