"""Convolutions of (batch, channels, ...) and resampling of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

_STRIDES, _DILATIONS = (1, 2, 3, 4, 8, 16), (1, 2, 4)
#: Products of a convolution beyond which it is not computed.
_MAX_PRODUCTS = 5e7
#: How elements beyond the edge are filled, by the name that reports use, in numpy's words.
PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}


@dataclass(frozen=True)
class ConvolutionSettings:
    """What a record omits of a convolution; padding is (before, after) of every axis."""

    stride: int
    dilation: int
    padding: tuple[int, int]
    mode: str = "zeros"

    def __str__(self) -> str:
        """Return the settings in words."""
        before, after = self.padding
        padding = f"{before}" if before == after else f"({before}, {after})"
        text = f"stride {self.stride}, padding {padding}, dilation {self.dilation}"
        return text if self.mode == "zeros" else f"{text}, padding mode {self.mode}"


def convolve(x: AnyArray, weight: AnyArray, settings: ConvolutionSettings) -> Floats:
    """Return the cross-correlation that both frameworks call a convolution, without a bias.

    ``x`` is (batch, channels, ...), ``weight`` (outputs, channels / groups, ...). The number of
    groups follows from the two.
    """
    n_axes = x.ndim - 2
    widths = [(0, 0), (0, 0), *[settings.padding] * n_axes]
    padded = np.pad(x, widths, mode=PADDING_MODES[settings.mode])  # type: ignore[call-overload]
    kernel_shape = weight.shape[2:]
    extents = tuple(settings.dilation * (length - 1) + 1 for length in kernel_shape)
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded,
        extents,
        axis=axes,  # type: ignore[call-overload]
    )
    steps = (slice(None), slice(None), *[slice(None, None, settings.stride)] * n_axes)
    taps = (*[slice(None)] * x.ndim, *[slice(None, None, settings.dilation)] * n_axes)
    patches = windows[steps][taps]
    n_groups = x.shape[1] // weight.shape[1]
    batch, out_shape = x.shape[0], patches.shape[2 : 2 + n_axes]
    grouped = patches.reshape(batch, n_groups, weight.shape[1], *out_shape, -1)
    grouped = np.moveaxis(grouped, 2, -2)  # (batch, groups, ..., channels, taps)
    columns = grouped.reshape(batch, n_groups, int(np.prod(out_shape)), -1)
    kernels = weight.reshape(n_groups, weight.shape[0] // n_groups, -1)
    result: Floats = np.einsum("bgpk,gok->bgop", columns, kernels, optimize=True)
    return result.reshape(batch, weight.shape[0], *out_shape)


def list_settings(
    x_shape: tuple[int, ...], weight_shape: tuple[int, ...], output_shape: tuple[int, ...]
) -> Iterator[ConvolutionSettings]:
    """Yield the settings that give this output shape, the likeliest first."""
    for stride, dilation in product(_STRIDES, _DILATIONS):
        totals = set()
        for length, taps, output in zip(
            x_shape[2:], weight_shape[2:], output_shape[2:], strict=True
        ):
            extent = dilation * (taps - 1) + 1
            totals.add(range(*_find_padding_range(length, extent, output, stride)))
        common = set.intersection(*(set(total) for total in totals)) if totals else set()
        # equal padding first: with a stride, the end of it may be what no window reads
        paddings = [(total // 2, total // 2) for total in sorted(common) if total % 2 == 0]
        for total in sorted(common):
            less, more = total // 2, total - total // 2
            paddings += [(less, more), (more, less), (total, 0), (0, total)]
        for padding in dict.fromkeys(paddings):
            yield ConvolutionSettings(stride, dilation, padding)


def _find_padding_range(length: int, extent: int, output: int, stride: int) -> tuple[int, int]:
    """Return (smallest, largest + 1) padding of both ends together; an empty range if none fits."""
    smallest = (output - 1) * stride + extent - length
    largest = smallest + stride - 1
    smallest = max(0, smallest)
    if largest > 2 * extent:
        return 0, 0
    return smallest, largest + 1


def compute_convolution(call: Call) -> Interpretations:
    """Compute a convolution with every setting that gives the recorded shape."""
    if len(call.tensors) < 2 or call.output_shape is None:
        return
    x, weight, *extra_tensors = call.tensors
    shape = call.output_shape
    if not (x.ndim == weight.ndim == len(shape) and x.ndim >= 3) or weight.dtype.kind != "f":
        return
    if x.shape[1] % weight.shape[1] or shape[1] != weight.shape[0]:
        return
    if float(np.prod(shape)) * float(np.prod(weight.shape[1:])) > _MAX_PRODUCTS:
        return
    bias: AnyArray | float = 0.0
    if extra_tensors and extra_tensors[0].shape == (weight.shape[0],):
        bias = extra_tensors[0].reshape(-1, *[1] * (x.ndim - 2))
    for settings in list_settings(x.shape, weight.shape, shape):
        try:
            output = convolve(x, weight, settings)
        except ValueError:
            continue
        if output.shape == shape:
            yield str(settings), output + bias


def resize_nearest(x: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """Return an image (batch, channels, ...) in another size by the nearest element before."""
    result = x
    for axis in range(2, x.ndim):
        rows = (np.arange(shape[axis]) * (x.shape[axis] / shape[axis])).astype(np.int64)
        result = np.take(result, rows.clip(max=x.shape[axis] - 1), axis=axis)
    return result


def resize_linear(x: AnyArray, shape: tuple[int, ...], align_corners: bool) -> Floats:
    """Return an image in another size by linear interpolation along each axis."""
    result = x.astype(np.float64)
    for axis in range(2, x.ndim):
        length, new_length = x.shape[axis], shape[axis]
        if align_corners:
            places = np.arange(new_length) * ((length - 1) / max(new_length - 1, 1))
        else:
            places = ((np.arange(new_length) + 0.5) * (length / new_length) - 0.5).clip(min=0.0)
        before = np.floor(places).astype(np.int64).clip(max=length - 1)
        after = (before + 1).clip(max=length - 1)
        share = (places - before).reshape(-1, *[1] * (x.ndim - axis - 1))
        result = np.take(result, before, axis) * (1 - share) + np.take(result, after, axis) * share
    return result


def resize_cubic(x: AnyArray, shape: tuple[int, ...]) -> Floats:
    """Return an image in another size by cubic convolution; Keys 1981, with a = -0.75."""
    result = x.astype(np.float64)
    for axis in range(2, x.ndim):
        length = x.shape[axis]
        places = (np.arange(shape[axis]) + 0.5) * (length / shape[axis]) - 0.5
        before = np.floor(places).astype(np.int64)
        total: AnyArray = np.zeros(())
        for tap in range(-1, 3):
            weights = _weigh_cubic(np.abs(places - before - tap))
            weights = weights.reshape(-1, *[1] * (x.ndim - axis - 1))
            rows = (before + tap).clip(0, length - 1)
            total = total + np.take(result, rows, axis) * weights
        result = total
    return result


def _weigh_cubic(distances: AnyArray) -> Floats:
    a, d = -0.75, distances
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    result: Floats = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return result


def compute_resampling(call: Call) -> Interpretations:
    """Compute an image in the recorded size in each common way."""
    x, shape = call.tensors[0], call.output_shape
    if shape is None or x.ndim != len(shape) or x.ndim < 3 or x.shape[:2] != shape[:2]:
        return
    linear = {4: "bilinear", 5: "trilinear"}.get(x.ndim, "linear")
    yield "nearest", resize_nearest(x, shape)
    yield linear, resize_linear(x, shape, align_corners=False)
    yield f"{linear} with aligned corners", resize_linear(x, shape, align_corners=True)
    if x.ndim == 4:
        yield "bicubic", resize_cubic(x, shape)
    if all(length % own == 0 for own, length in zip(x.shape, shape, strict=True)):
        repeats = [length // own for own, length in zip(x.shape, shape, strict=True)]
        yield "repeated images", np.tile(x, repeats)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "convolution": compute_convolution,
    "upsample": compute_resampling,
}
