"""Both whole tensors of a finding, in one layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..alignment import FusedGroup
from ..comparison.fused_tensors import cut_part, join_parts
from ..comparison.layouts import find_common_layout
from ..graph import Flow
from ..model.arrays import Floats
from ..model.recorded_shapes import drop_unit_axes, load_readable_tensor
from .comparison_index import ComparisonIndex, ValuePair, find_whole_tensor
from .element_places import arrange_like
from .fault_case import compute_residual

#: Largest tensor that is recomputed: 64 MB as float64.
MAX_ELEMENTS = 1 << 23
#: Relative difference of two errors of the same numbers in two orders: summation alone.
_SAME_ERROR = 1e-9


def load_arrays(index: ComparisonIndex, value_pair: ValuePair) -> tuple[Floats, Floats] | None:
    """Return both whole tensors in float64, the target's laid out like the reference's.

    None if one of them is missing or too large.
    """
    sources = list(zip(index.flows, value_pair.tensors, strict=True))
    sizes = [int(flow.tensors["size"].iat[tensor]) for flow, tensor in sources]
    if max(sizes) > MAX_ELEMENTS:
        return None
    if value_pair.group is not None:
        return _load_fused_arrays(index, value_pair.group, value_pair.part)
    t, r = (load_readable_tensor(flow.trace, tensor) for flow, tensor in sources)
    if t is None or r is None or t.size != r.size:
        return None
    t, r = t.astype(np.float64), r.astype(np.float64)
    if value_pair.layout not in ("same", "reshape"):
        _, t, r = find_common_layout(t, r)
    if t.shape != r.shape:
        t = arrange_like(t, r)
    return _load_slot_arrays(index, value_pair, r.shape, compute_residual(t, r)) or (t, r)


def _load_slot_arrays(
    index: ComparisonIndex, value_pair: ValuePair, shape: tuple[int, ...], error: float
) -> tuple[Floats, Floats] | None:
    """Return both tensors as the ops of the finding hold them; None if ``shape`` is that order.

    A pair is compared in a shape that both sides recorded. In a dump of a few ops that may be the
    one after a transposition, in which the arithmetic of the op is not seen. The order is used
    only if the two tensors differ as much in it.
    """
    if min(value_pair.slot_tensors) < 0:
        return None
    slot_shape = tuple(index.flows[1].tensors["shape"].iat[value_pair.slot_tensors[1]] or ())
    if drop_unit_axes(slot_shape) == drop_unit_axes(shape):
        return None
    t, r = (
        load_readable_tensor(flow.trace, tensor)
        for flow, tensor in zip(index.flows, value_pair.slot_tensors, strict=True)
    )
    if t is None or r is None or t.size != r.size:
        return None
    t, r = t.astype(np.float64).reshape(r.shape), r.astype(np.float64)
    is_same_order = np.isclose(compute_residual(t, r), error, rtol=_SAME_ERROR, atol=0)
    return (t, r) if is_same_order else None


def _load_fused_arrays(
    index: ComparisonIndex, group: FusedGroup, part: int | None
) -> tuple[Floats, Floats] | None:
    """Return both sides of a group, the parts of one side joined as the other's fused tensor.

    Of one ``part``, that part and what the fused tensor has in its place.
    """
    target_arrays = _load_whole_tensors(index.flows[0], group.target)
    reference_arrays = _load_whole_tensors(index.flows[1], group.reference)
    if target_arrays is None or reference_arrays is None:
        return None
    try:
        if part is not None and len(target_arrays) == 1:
            return cut_part(target_arrays[0], reference_arrays, part), reference_arrays[part]
        if part is not None:
            return target_arrays[part], cut_part(reference_arrays[0], target_arrays, part)
        if len(target_arrays) == 1:
            return target_arrays[0], join_parts(target_arrays[0], reference_arrays)[1]
        return join_parts(reference_arrays[0], target_arrays)[1], reference_arrays[0]
    except ValueError:
        return None


def _load_whole_tensors(flow: Flow, values: Sequence[int]) -> list[Floats] | None:
    """Return the whole tensors of some values in float64; None if one of them is missing."""
    arrays = []
    for value in values:
        array = load_readable_tensor(flow.trace, find_whole_tensor(flow, value))
        if array is None:
            return None
        arrays.append(array.astype(np.float64))
    return arrays
