"""The dtype whose rounding a comparison has to allow for."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff
from ..model.trace import FORWARD
from .dataflow import Flow

#: Kind of an op and the last axis of each tensor that it reads: the calls of one layer in others.
_CallKey = tuple[str, tuple[int, ...]]


def find_common_dtype(target: Flow, reference: Flow) -> str:
    """Return the coarsest dtype that either side computes in.

    A coarser one that only one side has counts only if that side uses it throughout. If it computes
    the same calls of other layers in a finer dtype, one block was cast, and that is a difference.
    """
    finer, coarser = sorted(
        (target, reference), key=lambda flow: get_unit_roundoff(flow.coarsest_dtype)
    )
    dtype = coarser.coarsest_dtype
    if dtype != finer.coarsest_dtype and not _is_used_throughout(coarser, dtype):
        return finer.coarsest_dtype
    return dtype


def _is_used_throughout(flow: Flow, dtype: str) -> bool:
    """Return whether most forward calls like those with results of a dtype have such results."""
    kinds = flow.trace.ops["kind"].tolist()
    value_dtypes = flow.list_column("dtype")
    coarse_calls: Counter[_CallKey] = Counter()
    finer_calls: Counter[_CallKey] = Counter()
    for value in np.flatnonzero(flow.producers >= 0).tolist():
        op = int(flow.producers[value])
        if flow.phases[op] != FORWARD or value_dtypes[value] not in UNIT_ROUNDOFF:
            continue
        key = (kinds[op], _list_last_axes(flow, op))
        if value_dtypes[value] == dtype:
            coarse_calls[key] += 1
        elif get_unit_roundoff(value_dtypes[value]) < get_unit_roundoff(dtype):
            finer_calls[key] += 1
    n_coarse = sum(coarse_calls.values())
    n_finer = sum(finer_calls[key] for key in coarse_calls)
    return n_coarse > n_finer


def _list_last_axes(flow: Flow, op: int) -> tuple[int, ...]:
    """Return the length of the last axis of each tensor with axes that an op reads."""
    shapes = [flow.tensors["shape"].iat[flow.list_column("tensor")[v]] for v in flow.reads[op]]
    return tuple(int(shape[-1]) for shape in shapes if shape)
