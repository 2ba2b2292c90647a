"""Statistics and sketch of a tensor on an accelerator, computed there and without waiting for it.

The numbers are those of :func:`dumpdiff.model.sketches.measure_array`, but for the order of sums.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ...model import sketches
from ...model.arrays import AnyArray

if TYPE_CHECKING:
    import torch

#: Elements that are measured at once: the rows of signs that repeat. It bounds the memory that a
#: measurement needs to three times 4 MiB.
_BLOCK_SIZE = sketches.BLOCK_ROWS * sketches.CELLS


def measure_on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return (196,) float64: max, min, mean, norm and the sketch; (4,) of a complex tensor.

    Of a complex tensor they are those of the magnitudes. NaN or Inf in the tensor shows in max and
    min, and counts as 0 in the sketch. The tensor has at least one element. The order of all sums
    is fixed, so equal tensors have equal numbers on one kind of device.
    """
    import torch

    flat = tensor.detach().reshape(-1)
    is_complex = flat.is_complex()
    if is_complex:
        flat = flat.abs()
    totals: list[torch.Tensor] = []
    cells = torch.zeros(sketches.BUCKETS**2, dtype=torch.float64, device=flat.device)
    signs = _load_signs(flat.device)
    for block, start in enumerate(range(0, flat.numel(), _BLOCK_SIZE)):
        values = flat[start : start + _BLOCK_SIZE].to(torch.float64)
        low, high = torch.aminmax(values)
        totals.append(torch.stack([high, low, values.sum(), torch.dot(values, values)]))
        if is_complex:
            continue
        _add_to_cells(cells, values.nan_to_num(0.0, 0.0, 0.0), signs, block)
    numbers = _join_totals(torch.stack(totals), flat.numel())
    if is_complex:
        return numbers
    positions = _load_positions(flat.numel(), flat.device)
    samples = flat[positions].to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
    padding = samples.new_zeros(sketches.SAMPLES - samples.numel())
    buckets = cells[_load_bucket_order(flat.device)].reshape(sketches.BUCKETS, -1).sum(dim=1)
    return torch.cat([numbers, buckets, samples, padding])


def _add_to_cells(
    cells: torch.Tensor, values: torch.Tensor, signs: torch.Tensor, block: int
) -> None:
    """Add the elements of a block with their signs, each to its cell."""
    count = values.numel()
    signed = values * signs[:count]
    n_rows = count // sketches.CELLS
    block_signs = _load_block_signs(block, values.device)
    if n_rows:
        full_rows = signed[: n_rows * sketches.CELLS].reshape(n_rows, sketches.CELLS)
        cells[: sketches.CELLS] += full_rows.sum(dim=0) * block_signs
    rest = signed[n_rows * sketches.CELLS :]
    if rest.numel():
        cells[: rest.numel()] += rest * block_signs[: rest.numel()]


def _join_totals(totals: torch.Tensor, count: int) -> torch.Tensor:
    """Return (4,) max, min, mean and norm from (blocks, 4) max, min, sum and sum of squares."""
    import torch

    if len(totals) == 1:
        high, low, total, squares = totals[0]
    else:
        high, low = totals[:, 0].amax(), totals[:, 1].amin()
        total, squares = totals[:, 2].sum(), totals[:, 3].sum()
    return torch.stack([high, low, total / count, squares.sqrt()])


@lru_cache(maxsize=8)
def _load_signs(device: torch.device) -> torch.Tensor:
    return _load(sketches.compute_signs(), device)


@lru_cache(maxsize=64)
def _load_block_signs(block: int, device: torch.device) -> torch.Tensor:
    return _load(sketches.compute_block_signs(block), device)


@lru_cache(maxsize=8)
def _load_bucket_order(device: torch.device) -> torch.Tensor:
    return _load(sketches.compute_bucket_order(), device)


@lru_cache(maxsize=1 << 10)
def _load_positions(count: int, device: torch.device) -> torch.Tensor:
    return _load(sketches.compute_sample_positions(count), device)


def _load(array: AnyArray, device: torch.device) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
