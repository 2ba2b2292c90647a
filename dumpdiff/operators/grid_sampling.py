"""Images read at the places of a grid, as ``torch.nn.functional.grid_sample`` defines it.

Places are from -1 to 1. With aligned corners these are the centers of the first and the last pixel,
else the edges of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations
from .resampling import ALIGNMENTS

#: Axes of images (batch, channels, height, width) and of grids (batch, height, width, 2).
_IMAGE_AXES, _GRID_AXES = 4, 4
#: What is read beyond the edges of an image.
_PADDINGS = ("zeros", "border", "reflection")


def sample_grid(
    images: AnyArray, grid: AnyArray, padding: str, *, has_aligned_corners: bool, is_nearest: bool
) -> Floats:
    """Return the images (batch, channels, height, width) at the places (batch, rows, columns, 2).

    The last axis of the grid holds the place along the width, then along the height.
    """
    places = []
    for axis, length in ((1, images.shape[2]), (0, images.shape[3])):
        ends = (length - 1) / 2 if has_aligned_corners else length / 2
        pixels = (grid[..., axis] + 1) * ends - (0.0 if has_aligned_corners else 0.5)
        places.append(_pad_places(pixels, length, padding, has_aligned_corners))
    if is_nearest:
        return _read_pixels(images, np.rint(places[0]), np.rint(places[1]))
    result = np.zeros((*images.shape[:2], *grid.shape[1:3]))
    before = [np.floor(axis_places) for axis_places in places]
    for steps in product((0, 1), repeat=2):
        rows, columns = (start + step for start, step in zip(before, steps, strict=True))
        weights = (1 - abs(places[0] - rows)) * (1 - abs(places[1] - columns))
        result += weights[:, None] * _read_pixels(images, rows, columns)
    return result


def _pad_places(pixels: Floats, length: int, padding: str, has_aligned_corners: bool) -> Floats:
    """Return places within the image, those beyond its edges as they are for zeros."""
    if padding == "zeros":
        return pixels
    if padding == "reflection":
        first, span = (0.0, length - 1) if has_aligned_corners else (-0.5, length)
        distances = abs(pixels - first) % (2 * max(span, 1))
        pixels = first + np.minimum(distances, 2 * max(span, 1) - distances)
    return np.clip(pixels, 0, length - 1)


def _read_pixels(images: AnyArray, rows: AnyArray, columns: AnyArray) -> Floats:
    """Return the pixels (batch, channels, ...) of places (batch, ...), 0 beyond the image."""
    height, width = images.shape[2:]
    is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    own_rows, own_columns = (
        np.clip(places, 0, length - 1).astype(np.int64)
        for places, length in ((rows, height), (columns, width))
    )
    batch = np.arange(len(images)).reshape(-1, 1, 1)
    pixels = images[batch, :, own_rows, own_columns]  # channels come last
    result: Floats = np.moveaxis(pixels, -1, 1) * is_inside[:, None]
    return result


def compute_grid_sample(call: Call) -> Interpretations:
    """Read an image at the places of a grid in each way that the frameworks offer."""
    if len(call.tensors) < 2:
        return
    images, grid = call.tensors[:2]
    if images.ndim != _IMAGE_AXES or grid.ndim != _GRID_AXES or grid.shape[-1] != 2:
        return
    if len(images) != len(grid) or not np.isfinite(grid).all():
        return
    for mode, padding, alignment in product(("bilinear", "nearest"), _PADDINGS, ALIGNMENTS[:2]):
        name = f"{mode}, {padding}"
        if alignment:
            name = f"{name} with {alignment}"
        has_aligned_corners, is_nearest = bool(alignment), mode == "nearest"
        yield (
            name,
            sample_grid(
                images,
                grid,
                padding,
                has_aligned_corners=has_aligned_corners,
                is_nearest=is_nearest,
            ),
        )


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"grid_sample": compute_grid_sample}
