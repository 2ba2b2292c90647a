"""To which part of a training step each op of a compiled graph belongs: by its name, and by what it reads and feeds."""

from __future__ import annotations

from collections import defaultdict

from ...model.trace import BACKWARD, OPTIMIZER
from . import op_types
from .graph import Dataflow

_LOOSE = "loose"  # an expanded op at the end of the backward pass, or within the clipping of gradients: not known yet


def assign_phases(flow: Dataflow) -> list[str]:
    """Phase of every op.

    What reads a backward op's output belongs to the backward pass too, and so does an expanded op (whose name does not
    say for whom it was expanded) that only backward ops read. But what is called by no gradient function and feeds
    nothing but the optimizer, as clipping and unscaling do, belongs to the optimizer.
    """
    found, after = _by_inputs(flow)
    readers: defaultdict[int, set[str]] = defaultdict(set)
    for number in reversed(range(len(found))):
        op = flow.ops[number]
        if (
            op.name.startswith("Expand/")
            and readers[number] == {BACKWARD}
            and number not in flow.results
        ):
            found[number] = BACKWARD
        elif after[number] and readers[number] and readers[number] <= {OPTIMIZER, _LOOSE}:
            found[number] = _LOOSE if op.name.startswith("Expand/") else OPTIMIZER
        for slot in op.inputs:
            if slot is not None and slot.op >= 0:
                readers[slot.op].add(found[number])
    for number, op in enumerate(flow.ops):
        if found[number] == _LOOSE:
            within = any(
                slot is not None and slot.op >= 0 and found[slot.op] == OPTIMIZER
                for slot in op.inputs
            )
            found[number] = OPTIMIZER if within else BACKWARD
    return found


def _by_inputs(flow: Dataflow) -> tuple[list[str], list[bool]]:
    """Phase by name and by what an op reads; and whether the latter alone put it into the backward pass."""
    found: list[str] = []
    alone: list[bool] = []
    backward: list[bool] = []
    for op in flow.ops:
        reads = tuple(slot.parameter for slot in op.inputs if slot is not None and slot.parameter)
        optimizer = op_types.is_optimizer(op.kind, op_types.extract_scope(op.name), reads)
        after = any(slot is not None and slot.op >= 0 and backward[slot.op] for slot in op.inputs)
        found.append(op_types.classify_phase(op.kind, op.name, optimizer, after))
        named = op_types.is_backward(op.kind, op.name)
        alone.append(found[-1] == BACKWARD and not named)
        backward.append((after or named) and not op_types.is_recomputed(op.name))
    return found, alone
