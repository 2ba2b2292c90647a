"""Gradients of convolutions of two spatial axes.

Records omit stride, padding and dilation. Strides follow from the shapes, and every padding that
gives the recorded shape is tried; dilated and grouped convolutions are not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

#: (stride, padding in front) of one axis.
_Geometry = tuple[int, int]
#: Strides that are tried: networks use 1 and 2, patch embeddings the length of the kernel.
_STRIDES = (1, 2, 3, 4)
#: Beginning of the kinds of MindSpore's gradients of convolutions.
CONVOLUTION_GRADIENTS = "conv2dbackprop"


def compute_convolution_weight_gradient(call: Call) -> Interpretations:
    """Compute the gradient of the weight from the output's gradient and the input."""
    if len(call.tensors) < 2 or call.output_shape is None:
        return
    gradient, x = call.tensors[:2]
    if not _fit(x.shape, call.output_shape, gradient.shape):
        return
    for name, windows in _list_windows(x, call.output_shape, gradient.shape):
        yield name, np.tensordot(gradient, windows, axes=((0, 2, 3), (0, 2, 3)))


def compute_convolution_input_gradient(call: Call) -> Interpretations:
    """Compute the gradient of the input from the output's gradient and the weight."""
    if len(call.tensors) < 2 or call.output_shape is None:
        return
    gradient, weight = call.tensors[:2]
    shape = call.output_shape
    if not _fit(shape, weight.shape, gradient.shape):
        return
    contributions = np.tensordot(gradient, weight, axes=((1,), (0,)))
    for name, (row_stride, top), (column_stride, left) in _list_geometries(
        shape, weight.shape, gradient.shape
    ):
        kernel_height, kernel_width = weight.shape[2:]
        height, width = gradient.shape[2:]
        n_rows = max((height - 1) * row_stride + kernel_height, shape[2] + top)
        n_columns = max((width - 1) * column_stride + kernel_width, shape[3] + left)
        padded: Floats = np.zeros((*shape[:2], n_rows, n_columns))
        for i in range(kernel_height):
            for j in range(kernel_width):
                rows = slice(i, i + (height - 1) * row_stride + 1, row_stride)
                columns = slice(j, j + (width - 1) * column_stride + 1, column_stride)
                padded[:, :, rows, columns] += np.moveaxis(contributions[..., i, j], -1, 1)
        yield name, padded[:, :, top : top + shape[2], left : left + shape[3]]


def _fit(x: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...]) -> bool:
    """Return whether three shapes can be those of a convolution without groups."""
    if not len(x) == len(weight) == len(output) == 4:
        return False
    return x[1] == weight[1] and output[1] == weight[0] and x[0] == output[0]


def _list_windows(
    x: AnyArray, weight: tuple[int, ...], output: tuple[int, ...]
) -> Iterator[tuple[str, AnyArray]]:
    """Yield a view (batch, channels, height, width, kernel height, kernel width) by geometry."""
    for name, (row_stride, top), (column_stride, left) in _list_geometries(x.shape, weight, output):
        bottom = max(0, (output[2] - 1) * row_stride + weight[2] - x.shape[2] - top)
        right = max(0, (output[3] - 1) * column_stride + weight[3] - x.shape[3] - left)
        padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, weight[2:], axis=(2, 3))  # type: ignore[call-overload]
        windows = windows[:, :, ::row_stride, ::column_stride]
        yield name, windows[:, :, : output[2], : output[3]]


def _list_geometries(
    x: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...]
) -> Iterator[tuple[str, _Geometry, _Geometry]]:
    """Yield the geometries of both axes that give the output's shape: equal ones only."""
    for geometry in _list_axis_geometries(x[2], weight[2], output[2]):
        if geometry in _list_axis_geometries(x[3], weight[3], output[3]):
            stride, padding = geometry
            yield f"stride {stride}, padding {padding}", geometry, geometry


def _list_axis_geometries(length: int, kernel: int, output: int) -> list[_Geometry]:
    """Return (stride, padding) of one axis: symmetric padding, or one more behind ("same")."""
    geometries = []
    for stride in dict.fromkeys((*_STRIDES, kernel)):
        for padding in range(kernel):
            for behind in (padding, padding + 1):
                padded_length = length + padding + behind
                if padded_length >= kernel and (padded_length - kernel) // stride + 1 == output:
                    geometries.append((stride, padding))
    return list(dict.fromkeys(geometries))


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "conv2dbackpropfilter": compute_convolution_weight_gradient,
    "conv2dbackpropinput": compute_convolution_input_gradient,
}
