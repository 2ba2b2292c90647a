"""The dtype whose rounding a comparison has to allow for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff
from ..model.trace import FORWARD
from .dataflow import Flow

#: Kind of an op and the last axis of each tensor that it reads: the calls of one layer in others.
_CallKey = tuple[str, tuple[int, ...]]


def find_common_dtype(target: Flow, reference: Flow) -> str:
    """Return the coarsest dtype that either side computes in.

    A coarser one that only one side has counts only if that side uses it throughout: in at least
    half of its matrix products, which every policy of mixed precision casts. If it computes these,
    or the same calls of other layers, in a finer dtype, one block was cast: that is a difference.
    """
    finer, coarser = sorted(
        (target, reference), key=lambda flow: get_unit_roundoff(flow.coarsest_dtype)
    )
    dtype = coarser.coarsest_dtype
    if dtype != finer.coarsest_dtype and not _is_used_throughout(coarser, dtype):
        return finer.coarsest_dtype
    return dtype


def _is_used_throughout(flow: Flow, dtype: str) -> bool:
    """Return whether most forward calls like those with results of a dtype have such results.

    And half of the matrix products, which a layer of another kind shares with no other layer.
    """
    kinds = flow.trace.ops["kind"].tolist()
    value_dtypes = flow.list_column("dtype")
    n_coarse_products, n_finer_products = 0, 0
    coarse_calls: Counter[_CallKey] = Counter()
    finer_calls: Counter[_CallKey] = Counter()
    for value in np.flatnonzero(flow.producers >= 0).tolist():
        op = int(flow.producers[value])
        if flow.phases[op] != FORWARD or value_dtypes[value] not in UNIT_ROUNDOFF:
            continue
        key = (kinds[op], _list_last_axes(flow, op))
        is_product = _multiplies_matrices(flow, op, value)
        if value_dtypes[value] == dtype:
            coarse_calls[key] += 1
            n_coarse_products += is_product
        elif get_unit_roundoff(value_dtypes[value]) < get_unit_roundoff(dtype):
            finer_calls[key] += 1
            n_finer_products += is_product
    n_coarse = sum(coarse_calls.values())
    n_finer = sum(finer_calls[key] for key in coarse_calls)
    return n_coarse > n_finer and n_coarse_products >= n_finer_products


def _multiplies_matrices(flow: Flow, op: int, result: int) -> bool:
    """Return whether a result has the shape of a product of the first two tensors of an op.

    These do not broadcast to it, and (M, K) x (K, N) has K = sqrt(MK KN / MN) terms in its sums.
    """
    shapes = [shape for value in flow.reads[op] if len(shape := _get_shape(flow, value)) > 1]
    size = math.prod(_get_shape(flow, result))
    if len(shapes) < 2 or not size:
        return False
    n_terms = math.sqrt(math.prod(shapes[0]) * math.prod(shapes[1]) / size)
    return n_terms > 1 and n_terms.is_integer() and not _broadcasts(shapes[:2], size)


def _broadcasts(shapes: Sequence[tuple[int, ...]], size: int) -> bool:
    """Return whether shapes broadcast to so many elements."""
    try:
        return math.prod(np.broadcast_shapes(*shapes)) == size
    except ValueError:
        return False


def _list_last_axes(flow: Flow, op: int) -> tuple[int, ...]:
    """Return the length of the last axis of each tensor with axes that an op reads."""
    shapes = [_get_shape(flow, value) for value in flow.reads[op]]
    return tuple(shape[-1] for shape in shapes if shape)


def _get_shape(flow: Flow, value: int) -> tuple[int, ...]:
    shape = flow.tensors["shape"].iat[flow.list_column("tensor")[value]]
    return tuple(map(int, shape)) if shape else ()
