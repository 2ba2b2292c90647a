"""A part of a bias that is left out: that of the values in a fused projection."""

from __future__ import annotations

from collections.abc import Iterator

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ...fault_case import FaultCase
from ...region import Region
from .change import Change, compute_with, list_floating_inputs

#: Equal parts of a fused projection: queries, keys and values, or gate and up. The smallest first:
#: what is not read does not show whether its bias is there, too.
_PART_COUNTS = (3, 2)
_PROJECTION_KINDS = {"matmul", "addmm", "add"}


def list_missing_bias_parts(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out one of the equal parts of a bias."""
    if case.phase != FORWARD:
        return
    for number, step in enumerate(region.steps):
        if step.kind not in _PROJECTION_KINDS:
            continue
        for position, step_input in list_floating_inputs(step):
            if not step_input.is_parameter or step_input.array.ndim != 1:
                continue
            for part, n_parts, bias in _omit_parts(step_input.array):
                output = compute_with(step, position, bias)
                description = (
                    f"without part {part} of the {n_parts} parts of its bias ({step_input.name})"
                )
                if output is not None:
                    yield Change(number, output, "bias-missing", description)


def _omit_parts(bias: AnyArray) -> Iterator[tuple[int, int, AnyArray]]:
    """Yield (part, parts, bias with zeros there) for every equal part that a bias may have."""
    for n_parts in _PART_COUNTS:
        if bias.size % n_parts:
            continue
        for part in range(n_parts):
            rows = bias.reshape(n_parts, -1).copy()
            rows[part] = 0.0
            yield part, n_parts, rows.reshape(-1)
