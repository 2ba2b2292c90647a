"""Values at corresponding slots of paired ops that are not each other's partners.

Paired ops read partners: that is how they were paired. Where one slot holds another value, one of
the two ops was given something else, or one record holds numbers that the op never saw. The value
may have no partner at all, so that no other comparison looks at it. Values that other ops compute
on one side only are no such case: there the sides are written differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph import Flow
from . import confidence
from .matches import Matching


@dataclass(frozen=True)
class SlotPair:
    """The value of one slot on either side."""

    target: int  #: class
    reference: int
    target_op: int
    reference_op: int
    target_tensor: int  #: id of the tensor in the slot
    reference_tensor: int
    slot_kind: str  #: input or output
    confidence: float = confidence.SAME_SLOT


def find_slot_pairs(matching: Matching) -> tuple[SlotPair, ...]:
    """Return the values of corresponding slots of which at least one has another partner.

    Slots correspond if the two ops are of one kind and, among their inputs or among their outputs,
    exactly one value of each side has no partner at the other op, and both have one size. A value
    without a partner must occur in the slot only: an input that no op wrote, an output that no op
    reads. Outputs of backward records are left out: of a call that consists of several
    differentiable functions, msprobe records the gradient that the last of them returns.
    """
    target, reference = matching.target, matching.reference
    slot_pairs = []
    calls_t = target.trace.ops["forward"].tolist()
    for op_t, op_r in _iterate_op_pairs(matching):
        sides = (
            ("input", target.reads[op_t], reference.reads[op_r]),
            ("output", target.writes[op_t], reference.writes[op_r]),
        )
        for slot_kind, values_t, values_r in sides:
            remaining_t = [v for v in values_t if matching.classes_t[v] not in values_r]
            remaining_r = [v for v in values_r if matching.classes_r[v] not in values_t]
            if len(remaining_t) != 1 or len(remaining_r) != 1:
                continue
            if slot_kind == "output" and calls_t[op_t] >= 0:
                continue
            value_t, value_r = remaining_t[0], remaining_r[0]
            partner_t, partner_r = matching.classes_t[value_t], matching.classes_r[value_r]
            is_orphan_t = partner_t < 0 and _is_orphan(target, value_t, slot_kind)
            is_orphan_r = partner_r < 0 and _is_orphan(reference, value_r, slot_kind)
            is_contradiction = (
                (partner_t >= 0 or is_orphan_t)
                and (partner_r >= 0 or is_orphan_r)
                and max(partner_t, partner_r) >= 0
            )
            if not is_contradiction or target.sizes[value_t] != reference.sizes[value_r]:
                continue
            slot_pairs.append(
                SlotPair(
                    value_t,
                    value_r,
                    op_t,
                    op_r,
                    _find_tensor(target, op_t, value_t, slot_kind),
                    _find_tensor(reference, op_r, value_r, slot_kind),
                    slot_kind,
                )
            )
    return tuple(slot_pairs)


def _iterate_op_pairs(matching: Matching) -> Iterator[tuple[int, int]]:
    """Yield the paired ops of one kind whose slots have one meaning.

    A backward record has gradients in its slots, whatever the kind of its forward call.
    """
    calls_t = matching.target.trace.ops["forward"].tolist()
    calls_r = matching.reference.trace.ops["forward"].tolist()
    for op_t, op_r in enumerate(matching.ops_t.tolist()):
        if op_r < 0 or matching.kinds_t[op_t] != matching.kinds_r[op_r]:
            continue
        if (calls_t[op_t] >= 0) == (calls_r[op_r] >= 0):
            yield op_t, op_r


def _is_orphan(flow: Flow, value: int, slot_kind: str) -> bool:
    """Return whether no op wrote an input, or no op reads an output."""
    if slot_kind == "input":
        return bool(flow.producers[value] < 0)
    return not flow.consumers[value]


def _find_tensor(flow: Flow, op: int, value: int, slot_kind: str) -> int:
    """Return the first tensor of an op that holds a value, as output or as anything else."""
    tensor_ids: list[int] = flow.get_tensor_ids(op).tolist()
    rows = [row for row in tensor_ids if flow.tensor_class[row] == value]
    slot_kinds = flow.tensors["slot_kind"]
    for row in rows:
        if (slot_kinds.iat[row] == "output") == (slot_kind == "output"):
            return row
    return rows[0]
