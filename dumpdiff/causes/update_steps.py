"""Compare the rest of an update: do both sides make one step after a weight decayed differently?"""

from __future__ import annotations

import numpy as np

from ..model.recorded_shapes import load_readable_tensor
from ..model.scaled_sums import compute_norm
from ..model.trace import OPTIMIZER
from .comparison_index import ComparisonIndex, find_whole_tensor

#: Relative difference of the lengths of two steps that are one; share of the decays' difference
#: within which the new weights differ by nothing else.
_MAX_STEP_SHARE = 0.2


def has_equal_step(index: ComparisonIndex, values: tuple[int, int]) -> bool | None:
    """Return whether two decayed weights are followed by the same step; None if it is not known.

    A decay is learning rate x weight decay, which does not show which of the two differs. The
    lengths of the steps do; from statistics, after a step of the same length the norms of the new
    weights differ as those of the decayed ones do.
    """
    lengths = [_measure_step(index, side, values[side]) for side in (0, 1)]
    if min(lengths) > 0:
        return bool(abs(lengths[0] / lengths[1] - 1) <= _MAX_STEP_SHARE)
    decayed_norms = [_read_norm(index, side, values[side]) for side in (0, 1)]
    new_values = [_find_new_weight(index, side, values[side]) for side in (0, 1)]
    if min(new_values) < 0 or min(decayed_norms) <= 0:
        return None
    new_norms = [_read_norm(index, side, new_values[side]) for side in (0, 1)]
    if not min(new_norms) > 0:
        return None
    difference = decayed_norms[0] / decayed_norms[1] - 1
    remainder = new_norms[0] / new_norms[1] - 1 - difference
    return bool(abs(remainder) <= _MAX_STEP_SHARE * abs(difference))


def _measure_step(index: ComparisonIndex, side: int, value: int) -> float:
    """Return the length of the step from a decayed weight to the new one; 0 without the files."""
    flow = index.flows[side]
    arrays = []
    for weight in (value, _find_new_weight(index, side, value)):
        tensor = find_whole_tensor(flow, weight) if weight >= 0 else -1
        array = load_readable_tensor(flow.trace, tensor) if tensor >= 0 else None
        if array is None:
            return 0.0
        arrays.append(array.astype(np.float64).reshape(-1))
    return compute_norm(arrays[1] - arrays[0]) if arrays[0].size == arrays[1].size else 0.0


def _read_norm(index: ComparisonIndex, side: int, value: int) -> float:
    norm = float(index.flows[side].list_column("norm")[value])
    return norm if np.isfinite(norm) else 0.0


def _find_new_weight(index: ComparisonIndex, side: int, value: int) -> int:
    """Return the value of this size that an op of the optimizer computes from it; -1 if none."""
    flow = index.flows[side]
    phases = flow.list_column("phase")
    for op in flow.consumers[value]:
        for written in flow.writes[op]:
            if flow.sizes[written] == flow.sizes[value] and phases[written] == OPTIMIZER:
                return written
    return -1
