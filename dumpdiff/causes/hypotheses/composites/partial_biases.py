"""A part of a bias that is left out: that of the values in a fused projection."""

from __future__ import annotations

from collections.abc import Iterator

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
            array = step_input.array
            if not step_input.is_parameter or array.ndim != 1:
                continue
            for n_parts in _PART_COUNTS:
                if array.size % n_parts:
                    continue
                width = array.size // n_parts
                for part in range(n_parts):
                    bias = array.copy()
                    bias[part * width : (part + 1) * width] = 0.0
                    output = compute_with(step, position, bias)
                    if output is not None:
                        yield Change(
                            number,
                            output,
                            "bias-missing",
                            f"without part {part} of the {n_parts} parts of its bias "
                            f"({step_input.name})",
                        )
