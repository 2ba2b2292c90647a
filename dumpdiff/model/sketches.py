"""Sketches of tensors: a few numbers, from which the distance of two tensors can be estimated.

A sketch is linear: the sketch of a difference is the difference of the sketches, and its length
estimates the length of the difference. So two recordings of the size of statistics give a relative
L2 error between the runs. The definition, its error and the proof are in docs/sketches.md.

Element i of a tensor in C order is added to cell ``i mod 16381`` with a fixed random sign, and the
cells are added to 128 buckets by a fixed random permutation. After the buckets come 64 elements
from fixed places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .arrays import AnyArray, Floats, Hashes, Ints
from .scaled_sums import is_reliable

#: Name of the comparison of two sketches, among those of statistics.
SKETCH = "sketch"
BUCKETS = 128
SAMPLES = 64
#: float32 numbers of one sketch: 768 bytes, 1/520 of a float32 tensor of 1e5 elements
LENGTH = BUCKETS + SAMPLES
#: A prime, so that the elements of one channel, which are a constant stride apart, fall into
#: different cells; with a power of two they would meet in a few.
CELLS = 16381
#: Rows of cells after which the signs repeat, multiplied by one sign per cell and block of rows. A
#: sign table of this size (2 MiB) is made once and stays in the cache.
BLOCK_ROWS = 32
#: Part of the definition: sketches with other numbers cannot be compared.
VERSION = 1
#: The estimate of a relative L2 error e has a standard deviation of at most e times this:
#: sqrt(2 / 128) / 2, see docs/sketches.md.
STANDARD_ERROR = 0.0625
#: Relative L2 error that rounding alone shows in a sketch: sums of eight elements, and the buckets
#: as written, each of float32 (2**-24). Smaller errors are not seen.
FLOOR = 2.0**-23

#: Numbers before the sketch: maximum, minimum, mean and norm.
N_STATISTICS = 4
_FIRST_SAMPLE = N_STATISTICS + BUCKETS
_BUCKET_PLACES = slice(N_STATISTICS, _FIRST_SAMPLE)
#: Rows of cells that are measured at once; a whole number of them is a block. 512 KiB of float32.
_CHUNK_ROWS = 8
#: Summed in float32: the result is right to a few units in the last place of float32.
_SINGLE_DTYPES = tuple(map(np.dtype, (np.float16, np.float32)))

_SIGN_STREAM, _BLOCK_STREAM, _BUCKET_STREAM, _SAMPLE_STREAM = range(4)
_PADDED_CELLS = BUCKETS * (-(-CELLS // BUCKETS))
_ONES = np.ones(_PADDED_CELLS // BUCKETS)


def compute_sketch(array: AnyArray) -> NDArray[np.float32]:
    """Return (192,) the sketch of a tensor of any shape, see :func:`measure_array`."""
    with np.errstate(over="ignore"):  # beyond float32 an element of a sketch is Inf, and unknown
        return measure_array(array)[N_STATISTICS:].astype(np.float32)


def measure_array(array: AnyArray) -> Floats:
    """Return (196,) the maximum, minimum, mean, norm and sketch of a tensor of any shape.

    A tensor of one row of cells or less is measured by :func:`measure_rows`. Of larger ones,
    numbers of float32 and narrower types are summed in float32 within chunks of eight rows of
    cells, others in float64, and chunks are summed in float64, all in a fixed order. NaN and Inf
    show in maximum and minimum, and count as 0 in the sketch.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size <= CELLS:
        return measure_rows(flat[None]).reshape(-1)
    cells = np.zeros(_PADDED_CELLS)
    high, low, total, squares = flat[0], flat[0], 0.0, 0.0
    with np.errstate(all="ignore"):
        for start, end in _split_into_chunks(flat.size):
            chunk = flat[start:end]
            chunk_high, chunk_low = chunk.max(), chunk.min()
            high, low = np.maximum(high, chunk_high), np.minimum(low, chunk_low)
            if chunk_high == 0 and chunk_low == 0:
                continue
            values, chunk_squares = _widen(chunk)
            total, squares = total + float(values.sum()), squares + chunk_squares
            if not math.isfinite(chunk_squares):
                values = _clear_nonfinite(values)
            _add_to_cells(cells, values, start)
        samples = flat[compute_sample_positions(flat.size)].astype(np.float64)
    ordered_cells = cells.take(compute_bucket_order(), mode="clip").reshape(BUCKETS, -1)
    numbers = np.empty(N_STATISTICS + LENGTH)
    numbers[:N_STATISTICS] = high, low, total / flat.size, math.sqrt(squares)
    numbers[_BUCKET_PLACES] = ordered_cells @ _ONES
    numbers[_FIRST_SAMPLE:] = samples if math.isfinite(squares) else _clear_nonfinite(samples)
    return numbers


def measure_rows(rows: AnyArray) -> Floats:
    """Return (tensors, 196) what :func:`measure_array` gives, of small tensors of one size.

    ``rows`` is (tensors, elements), with at most 16,381 elements each, which are summed in float64.
    Together they cost little more than one alone, and their numbers are the same. A tensor of at
    most 64 elements is in the samples as a whole, the rest of the samples is 0. Without elements
    all is 0.
    """
    n_tensors, size = rows.shape
    numbers = np.zeros((n_tensors, N_STATISTICS + LENGTH))
    if not size:
        return numbers
    with np.errstate(all="ignore"):
        values = rows.astype(np.float64)
        squares = np.square(values).sum(axis=1)  # einsum would depend on the number of tensors
        numbers[:, 0], numbers[:, 1] = rows.max(axis=1), rows.min(axis=1)
        numbers[:, 2], numbers[:, 3] = values.sum(axis=1) / size, np.sqrt(squares)
        if not np.isfinite(squares).all():
            values = _clear_nonfinite(values)
    buckets = _compute_buckets()[:size] + BUCKETS * np.arange(n_tensors)[:, None]
    signed = values * compute_row_signs(0)[:size]
    sums = np.bincount(buckets.ravel(), signed.ravel(), BUCKETS * n_tensors)
    numbers[:, _BUCKET_PLACES] = sums.reshape(n_tensors, BUCKETS)
    samples = values[:, compute_sample_positions(size)]
    numbers[:, _FIRST_SAMPLE : _FIRST_SAMPLE + samples.shape[1]] = samples
    return numbers


def _split_into_chunks(size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the chunks; the last row of cells, which is not full, is in the last.

    So a tensor of a power of two, a little more than some chunks, has no chunk of a few elements.
    """
    n_chunks = -(-(size // CELLS) // _CHUNK_ROWS)
    for number in range(n_chunks):
        start = number * _CHUNK_ROWS * CELLS
        yield start, size if number == n_chunks - 1 else start + _CHUNK_ROWS * CELLS


def _clear_nonfinite(values: AnyArray) -> AnyArray:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _widen(chunk: AnyArray) -> tuple[AnyArray, float]:
    """Return the elements in the type that they are summed in, and the sum of their squares.

    The type is float32 where it holds the elements and no square leaves its range, else float64.
    """
    if chunk.dtype in _SINGLE_DTYPES:
        values = chunk.astype(np.float32, copy=False)
        squares = float(np.dot(values, values))
        if is_reliable(squares, np.float32):
            return values, squares
    wide_values: Floats = chunk.astype(np.float64)
    return wide_values, float(np.dot(wide_values, wide_values))


def _add_to_cells(cells: Floats, values: AnyArray, start: int) -> None:
    """Add elements from place ``start`` on, which begins a row of cells, to their cells.

    Their signs are 1 or -1, so products are exact.
    """
    first_row = start // CELLS
    n_rows, n_rest = divmod(values.size, CELLS)
    n_full = values.size - n_rest
    first_sign = first_row % BLOCK_ROWS * CELLS
    signs = compute_signs()[first_sign : first_sign + n_full].reshape(n_rows, CELLS)
    # einsum multiplies and adds in one pass over the elements
    sums = np.einsum("rc,rc->c", values[:n_full].reshape(n_rows, CELLS), signs)
    cells[:CELLS] += np.multiply(sums, compute_block_signs(first_row // BLOCK_ROWS), out=sums)
    if n_rest:
        cells[:n_rest] += values[n_full:] * compute_row_signs(first_row + n_rows)[:n_rest]


def estimate_distances(target: AnyArray, reference: AnyArray) -> Floats:
    """Return (pairs,) the estimated L2 distance ||t - r|| by the (pairs, 192) sketches.

    NaN where a sketch is not finite. Where the distance is that of the samples alone or more, the
    samples count: of tensors of at most 64 elements they are all.
    """
    difference = target.astype(np.float64) - reference.astype(np.float64)
    buckets = np.sqrt(np.square(difference[:, :BUCKETS]).sum(axis=1))
    samples = np.sqrt(np.square(difference[:, BUCKETS:]).sum(axis=1))
    distances: Floats = np.maximum(buckets, samples)
    return distances


def compute_cosines(distances: Floats, norms_t: Floats, norms_r: Floats) -> Floats:
    """Return (pairs,) the cosine between tensors by their estimated distance and recorded norms.

    t.r = (||t||^2 + ||r||^2 - ||t - r||^2) / 2, so its error is that of the squared distance, and a
    cosine near 1 is known well. NaN where a norm is 0.
    """
    with np.errstate(all="ignore"):
        cosines = (norms_t**2 + norms_r**2 - distances**2) / (2 * norms_t * norms_r)
    clipped: Floats = np.clip(cosines, -1.0, 1.0)
    return clipped


@lru_cache(maxsize=1)
def compute_signs() -> NDArray[np.float32]:
    """Return (32 * 16381,) the signs of the elements of a block, 1 or -1."""
    return _draw_signs(_SIGN_STREAM, 0, BLOCK_ROWS * CELLS).astype(np.float32)


@lru_cache(maxsize=256)
def compute_block_signs(block: int) -> NDArray[np.float32]:
    """Return (16381,) the signs by which the cells of one block are multiplied."""
    return _draw_signs(_BLOCK_STREAM, block * CELLS, CELLS).astype(np.float32)


@lru_cache(maxsize=256)
def compute_row_signs(row: int) -> NDArray[np.float32]:
    """Return (16381,) the signs of the elements of a row of cells."""
    block, row_in_block = divmod(row, BLOCK_ROWS)
    signs = compute_signs()[row_in_block * CELLS : (row_in_block + 1) * CELLS]
    return signs * compute_block_signs(block)


@lru_cache(maxsize=1)
def compute_bucket_order() -> Ints:
    """Return (16384,) the cells of bucket 0, then those of bucket 1, and so on; 128 of each.

    Cells beyond 16381 are always 0.
    """
    return np.argsort(_draw_numbers(_BUCKET_STREAM, 0, _PADDED_CELLS), kind="stable")


@lru_cache(maxsize=1)
def _compute_buckets() -> Ints:
    """Return (16384,) the bucket of each cell."""
    buckets = np.empty(_PADDED_CELLS, dtype=np.int64)
    buckets[compute_bucket_order()] = np.repeat(np.arange(BUCKETS), _PADDED_CELLS // BUCKETS)
    return buckets


@lru_cache(maxsize=1 << 10)
def compute_sample_positions(size: int) -> Ints:
    """Return the places of the samples in a tensor of ``size`` elements, one in each 64th of it."""
    if size <= SAMPLES:
        return np.arange(size)
    numbers = _draw_numbers(_SAMPLE_STREAM, 0, SAMPLES)
    offsets = (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53
    positions: Ints = ((np.arange(SAMPLES) + offsets) * (size / SAMPLES)).astype(np.int64)
    return np.minimum(positions, size - 1)


def _draw_signs(stream: int, start: int, count: int) -> Floats:
    numbers = _draw_numbers(stream, start, count)
    signs: Floats = 1.0 - 2.0 * (numbers >> np.uint64(63)).astype(np.float64)
    return signs


def _draw_numbers(stream: int, start: int, count: int) -> Hashes:
    """Return (count,) numbers of a stream from ``start`` on: the outputs of SplitMix64.

    SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014)
    gives the i-th number directly, so that any program in any language can make a sketch.
    """
    index = np.arange(start, start + count, dtype=np.uint64) + np.uint64(stream << 48)
    number = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
