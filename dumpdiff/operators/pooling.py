"""Pooling: the maximum or mean of windows of (batch, channels, ...)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray, Floats

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
    widths = [(0, 0), (0, 0), *[settings.padding] * n_axes]
    axes = tuple(range(2, x.ndim))
    steps = (slice(None), slice(None), *[slice(None, None, settings.stride)] * n_axes)
    reduced_axes = tuple(range(x.ndim, x.ndim + n_axes))

    def cut(array: AnyArray, fill: float) -> AnyArray:
        padded = np.pad(array, widths, constant_values=fill)
        extents = (settings.window,) * n_axes
        windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=axes)  # type: ignore[call-overload]
        strided: AnyArray = windows[steps]
        return strided

    if kind == "max_pool":
        largest: Floats = cut(x, -np.inf).max(axis=reduced_axes)
        return largest
    total = cut(x, 0.0).sum(axis=reduced_axes)
    counts: AnyArray = np.full(total.shape, float(settings.window**n_axes))
    if not settings.counts_padding:
        counts = cut(np.ones_like(x), 0.0).sum(axis=reduced_axes)
    mean: Floats = total / counts
    return mean


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
