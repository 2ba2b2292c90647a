"""Convolutions of (batch, channels, ...)."""

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


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"convolution": compute_convolution}
