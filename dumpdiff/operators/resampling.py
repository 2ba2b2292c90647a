"""Images of (batch, channels, ...) in another size.

Every interpolation is a matrix for each axis, so one function builds them all. What they differ in
is the kernel, the places of the pixels, and whether the kernel is widened for smaller images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

#: Coefficients of the cubic kernel: of OpenCV and PyTorch, and of Keys 1981, Pillow and
#: TensorFlow 2, which PyTorch takes for ``antialias`` too.
_CUBIC, _KEYS_CUBIC = -0.75, -0.5
#: What a reading's name says behind "with" of the pixels that coincide; nothing: the edges do.
ALIGNMENTS = ("", "aligned corners", "asymmetric pixels")


def _weigh_linear(distances: AnyArray) -> Floats:
    weights: Floats = np.maximum(1 - distances, 0.0)
    return weights


def _weigh_cubic(distances: AnyArray, coefficient: float) -> Floats:
    """Return the weights of cubic convolution; Keys 1981, doi:10.1109/TASSP.1981.1163711."""
    a, d = coefficient, distances
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    weights: Floats = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return weights


@dataclass(frozen=True)
class Resampling:
    """One way to interpolate; ``radius``: pixels on either side that the kernel weighs."""

    weigh: Callable[[AnyArray], Floats]
    radius: int
    #: where the pixels of both images coincide: in the corners of the image ('edges'), or the first
    #: ('asymmetric') or first and last pixels ('corners') with each other
    alignment: str = "edges"
    has_antialiasing: bool = False

    def build_matrix(self, length: int, new_length: int) -> Floats:
        """Return the weight (new_length, length) of each pixel along one axis."""
        scale = length / new_length
        places = (np.arange(new_length) + 0.5) * scale - 0.5
        if self.alignment == "asymmetric":
            places = np.arange(new_length) * scale
        elif self.alignment == "corners":
            places = np.arange(new_length) * ((length - 1) / max(new_length - 1, 1))
        if self.has_antialiasing:
            distances = np.abs(places[:, None] - np.arange(length)) / max(scale, 1.0)
            weights = self.weigh(distances)
            shares: Floats = weights / weights.sum(axis=1, keepdims=True)
            return shares
        matrix = np.zeros((new_length, length))
        before = np.floor(places).astype(np.int64)
        for tap in range(1 - self.radius, self.radius + 1):
            columns = (before + tap).clip(0, length - 1)  # the edge is repeated
            weights = self.weigh(np.abs(places - before - tap))
            np.add.at(matrix, (np.arange(new_length), columns), weights)
        return matrix

    def resize(self, x: AnyArray, shape: tuple[int, ...]) -> Floats:
        """Return the images in another size."""
        result = x.astype(np.float64)
        for axis in range(2, x.ndim):
            matrix = self.build_matrix(x.shape[axis], shape[axis])
            result = np.moveaxis(np.tensordot(matrix, result, (1, axis)), 0, axis)
        return result


_LINEAR = partial(Resampling, _weigh_linear, 1)
_CUBIC_KERNEL = partial(Resampling, partial(_weigh_cubic, coefficient=_CUBIC), 2)
_KEYS_KERNEL = partial(Resampling, partial(_weigh_cubic, coefficient=_KEYS_CUBIC), 2)
#: Text after the name of a mode -> way; what both frameworks and their older versions offer.
_LINEAR_WAYS: Mapping[str, Resampling] = {
    "": _LINEAR(),
    " with aligned corners": _LINEAR("corners"),
    " with asymmetric pixels": _LINEAR("asymmetric"),
    " with antialiasing": _LINEAR(has_antialiasing=True),
}
_CUBIC_WAYS: Mapping[str, Resampling] = {
    "bicubic": _CUBIC_KERNEL(),
    "bicubic with aligned corners": _CUBIC_KERNEL("corners"),
    "bicubic with asymmetric pixels": _CUBIC_KERNEL("asymmetric"),
    "bicubic with antialiasing": _KEYS_KERNEL(has_antialiasing=True),
    f"bicubic with coefficient {_KEYS_CUBIC:g}": _KEYS_KERNEL(),
}


def resize_nearest(x: AnyArray, shape: tuple[int, ...], offset: float = 0.0) -> AnyArray:
    """Return images in another size by the element before each place, or at its center (0.5)."""
    result = x
    for axis in range(2, x.ndim):
        length = x.shape[axis]
        rows = ((np.arange(shape[axis]) + offset) * (length / shape[axis])).astype(np.int64)
        result = np.take(result, rows.clip(max=length - 1), axis=axis)
    return result


def compute_resampling(call: Call) -> Interpretations:
    """Compute an image in the recorded size in each common way."""
    x, shape = call.tensors[0], call.output_shape
    if shape is None or x.ndim != len(shape) or x.ndim < 3 or x.shape[:2] != shape[:2]:
        return
    yield "nearest", resize_nearest(x, shape)
    linear = {4: "bilinear", 5: "trilinear"}.get(x.ndim, "linear")
    ways = {f"{linear}{text}": way for text, way in _LINEAR_WAYS.items()}
    if x.ndim == 4:
        ways |= _CUBIC_WAYS
    for name, way in ways.items():
        yield name, way.resize(x, shape)
    yield "nearest of the centers", resize_nearest(x, shape, 0.5)
    if all(length % own == 0 for own, length in zip(x.shape, shape, strict=True)):
        repeats = [length // own for own, length in zip(x.shape, shape, strict=True)]
        yield "repeated images", np.tile(x, repeats)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"upsample": compute_resampling}
