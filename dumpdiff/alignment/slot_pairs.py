"""Values at corresponding slots of paired ops that are not each other's partners.

Paired ops read partners: that is how they were paired. Where one slot holds another value, one of
the two ops was given something else, or one record holds numbers that the op never saw. The value
may have no partner at all, so that no other comparison looks at it. Values that other ops compute
on one side only are no such case: there the sides are written differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Flow, Gradients
from ..model.arrays import Flags
from ..model.int_lists import IntLists
from ..model.trace import FORWARD
from .matches import Matching

#: Kinds that add up gradients, perhaps with another sign.
_SUM_KINDS = frozenset({"add", "sub", "neg"})


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


def find_slot_pairs(
    matching: Matching, gradients: tuple[Gradients, Gradients]
) -> tuple[SlotPair, ...]:
    """Return the values of corresponding slots of which at least one has another partner.

    Slots correspond if the two ops are of one kind and, among those of their inputs or of their
    outputs that are not partners, exactly one value of each side has a size. A value without a
    partner must occur in the slot only: an input that no op wrote, an output that no op reads.
    Modules that end at other places of one computation, as before a bias and after it, are no case.
    Outputs of backward records of two frameworks are left out: of a call that consists of several
    differentiable functions, msprobe records the gradient that the last of them returns. So are
    their inputs where the result of the forward call is used differently: its gradient is another
    one. So are outputs where the forward calls read different values: z (h - n) and z h have other
    gradients of z. So are the gradients of what one side computes more often than the other: each
    is a share. Of what both compute several times, as two norms of one value, the gradients may
    have each other's partners. The gradients of paired parameters correspond, too.
    """
    target, reference = matching.target, matching.reference
    calls_t = target.trace.ops["forward"].tolist()
    calls_r = reference.trace.ops["forward"].tolist()
    has_one_framework = target.trace.source.framework == reference.trace.source.framework
    slot_pairs = []
    for op_t, op_r in _list_contradicting_ops(matching):
        slots = [("input", target.reads[op_t], reference.reads[op_r])]
        if calls_t[op_t] < 0 or has_one_framework:
            slots.append(("output", target.writes[op_t], reference.writes[op_r]))
        for slot_kind, values_t, values_r in slots:
            for value_t, value_r in _pair_by_size(matching, values_t, values_r):
                if not _is_contradiction(matching, value_t, value_r, slot_kind):
                    continue
                if slot_kind == "output" and _are_other_ends(
                    matching, (op_t, value_t), (op_r, value_r)
                ):
                    continue
                calls = (calls_t[op_t], calls_r[op_r])
                n_computed_t, n_computed_r = _count_computations(matching, gradients, calls)
                if n_computed_t != n_computed_r:
                    continue
                has_partners = matching.classes_t[value_t] >= 0 <= matching.classes_r[value_r]
                if has_partners and n_computed_t != {1}:
                    continue
                if slot_kind == "input" and not _has_same_users(matching, *calls):
                    continue
                if slot_kind == "output" and _reads_other_values(matching, *calls):
                    continue
                tensor_t = _find_tensor(target, op_t, value_t, slot_kind)
                tensor_r = _find_tensor(reference, op_r, value_r, slot_kind)
                slot_pairs.append(
                    SlotPair(value_t, value_r, op_t, op_r, tensor_t, tensor_r, slot_kind)
                )
    slot_pairs += _iterate_gradient_pairs(matching, gradients)
    slot_pairs += _iterate_unchanged_results(matching)
    return tuple(slot_pairs)


def _are_other_ends(matching: Matching, end_t: tuple[int, int], end_r: tuple[int, int]) -> bool:
    """Return whether two modules return values of inner ops that both have another partner.

    ``end_t`` and ``end_r`` are (op, value). What reads the values is compared by its inputs.
    """
    (op_t, value_t), (op_r, value_r) = end_t, end_r
    target, reference = matching.target, matching.reference
    is_passed_on = all(
        flow.trace.ops["level"].iat[op] == "module" and flow.producers[value] not in (-1, op)
        for flow, op, value in ((target, op_t, value_t), (reference, op_r, value_r))
    )
    return bool(
        is_passed_on and matching.classes_t[value_t] >= 0 and matching.classes_r[value_r] >= 0
    )


def _has_same_users(matching: Matching, call_t: int, call_r: int) -> bool:
    """Return whether paired ops use the results of two forward calls; true without such calls."""
    if call_t < 0 or call_r < 0:
        return True
    users_t = _list_users(matching.target, call_t)
    users_r = _list_users(matching.reference, call_r)
    partners_t = {int(matching.ops_t[user]) for user in users_t}
    return -1 not in partners_t and partners_t == users_r


def _reads_other_values(matching: Matching, call_t: int, call_r: int) -> bool:
    """Return whether a forward call reads a value whose partner the other call does not read."""
    if call_t < 0 or call_r < 0:
        return False
    operands_t, operands_r = matching.target.operands[call_t], matching.reference.operands[call_r]
    for partners, operands, other_operands in (
        (matching.classes_t, operands_t, operands_r),
        (matching.classes_r, operands_r, operands_t),
    ):
        for value in operands:
            if partners[value] >= 0 and int(partners[value]) not in other_operands:
                return True
    return False


def _list_users(flow: Flow, call: int) -> set[int]:
    """Return the forward ops that compute with the results of a forward call."""
    levels = flow.trace.ops["level"]
    return {
        user
        for value in flow.writes[call]
        for user in flow.users[value]
        if flow.phases[user] == FORWARD and levels.iat[user] == "op"
    }


def _iterate_unchanged_results(matching: Matching) -> Iterator[SlotPair]:
    """Yield the results of paired ops that read partners, where only one gives back what it read.

    Such as a sum with a margin on one side and with 0 on the other. What is given back has the
    partner of what was read, and the result of the other op may have none.
    """
    target, reference = matching.target, matching.reference
    results_t, results_r = target.writes.counts, reference.writes.counts
    ops_t = np.flatnonzero(matching.ops_t >= 0)
    ops_r = matching.ops_t[ops_t]
    is_chosen = results_t[ops_t] + results_r[ops_r] == 1
    is_chosen &= ~target.is_module[ops_t] & ~reference.is_module[ops_r]
    for op_t, op_r in zip(ops_t[is_chosen].tolist(), ops_r[is_chosen].tolist(), strict=True):
        reads_t, reads_r = target.operands[op_t], reference.operands[op_r]
        partners = tuple(int(matching.classes_t[value]) for value in reads_t)
        if len(reads_t) != 1 or partners != reads_r:
            continue
        is_one_kind = matching.kinds_t[op_t] == matching.kinds_r[op_r]
        if not is_one_kind or target.phases[op_t] != FORWARD:
            continue
        tensor_t, tensor_r = _find_output(target, op_t), _find_output(reference, op_r)
        if tensor_t < 0 or tensor_r < 0:
            continue
        value_t, value_r = int(target.tensor_class[tensor_t]), int(reference.tensor_class[tensor_r])
        is_unchanged = value_t in reads_t or value_r in reads_r
        if is_unchanged and target.sizes[value_t] == reference.sizes[value_r]:
            yield SlotPair(value_t, value_r, op_t, op_r, tensor_t, tensor_r, "output")


def _find_output(flow: Flow, op: int) -> int:
    """Return the only output tensor of an op that has a value, -1 if none or several have."""
    rows = flow.get_tensor_ids(op)
    is_output = (flow.tensors["slot_kind"].to_numpy()[rows] == "output") & (
        flow.tensor_class[rows] >= 0
    )
    return int(rows[is_output][0]) if is_output.sum() == 1 else -1


def _iterate_gradient_pairs(
    matching: Matching, gradients: tuple[Gradients, Gradients]
) -> Iterator[SlotPair]:
    """Yield the gradients of paired parameters that are not each other's partners."""
    target, reference = matching.target, matching.reference
    rows_t = _find_parameter_gradients(target, gradients[0])
    rows_r = _find_parameter_gradients(reference, gradients[1])
    for parameter_t, row_t in rows_t.items():
        row_r = rows_r.get(int(matching.classes_t[parameter_t]), -1)
        if row_r < 0:
            continue
        value_t, value_r = int(target.tensor_class[row_t]), int(reference.tensor_class[row_r])
        has_same_size = target.sizes[value_t] == reference.sizes[value_r]
        if not has_same_size or matching.classes_t[value_t] == value_r:
            continue
        is_part = _is_term_of_partner(
            target, matching.kinds_t, value_t, matching.classes_r[value_r]
        )
        is_part |= _is_term_of_partner(
            reference, matching.kinds_r, value_r, matching.classes_t[value_t]
        )
        if not is_part and _is_contradiction(matching, value_t, value_r, "output"):
            op_t = int(target.tensors["op"].iat[row_t])
            op_r = int(reference.tensors["op"].iat[row_r])
            yield SlotPair(value_t, value_r, op_t, op_r, row_t, row_r, "output")


def _is_term_of_partner(flow: Flow, kinds: Sequence[str], gradient: int, partner: int) -> bool:
    """Return whether a gradient that no record names is only a term of the other one's partner.

    A parameter that is used in two places, as in m x + (1 - m) y, has the sum of two gradients, and
    the dataflow may end at one of them.
    """
    if partner < 0 or (flow.tensors["gradient_of"] != "").any():
        return False
    open_values, seen_values = [int(partner)], set()
    while open_values:
        value = open_values.pop()
        producer = int(flow.producers[value])
        if value in seen_values or producer < 0 or kinds[producer] not in _SUM_KINDS:
            continue
        if gradient in flow.reads[producer]:
            return True
        seen_values.add(value)
        open_values += flow.reads[producer]
    return False


def _find_parameter_gradients(flow: Flow, gradients: Gradients) -> dict[int, int]:
    """Return class of a parameter -> tensor of its gradient.

    It is the tensor that the dump names so, or, if it names none, the one that follows from the
    dataflow. Tied parameters, of which each has a gradient, are left out. So are parameters of
    equal numbers, where only the dataflow shows a gradient of the class that they share.
    """
    tensors = flow.tensors
    parameters = {name: value for value, name in enumerate(flow.list_column("parameter")) if name}
    gradient_names = tensors["gradient_of"].to_numpy()
    named_rows = np.flatnonzero((gradient_names != "") & (flow.tensor_class >= 0)).tolist()
    if not named_rows:
        representatives = flow.list_column("tensor")
        return {
            value: int(representatives[gradients.by_value[value]])
            for value, n_names in Counter(flow.parameter_values.values()).items()
            if n_names == 1 and value in gradients.by_value
        }
    rows: dict[int, int] = {}
    tied_values = set()
    for row in named_rows:
        value = parameters.get(gradient_names[row], -1)
        if value in rows:
            tied_values.add(value)
        rows[value] = row
    return {value: row for value, row in rows.items() if value not in {-1, *tied_values}}


def _pair_by_size(
    matching: Matching, values_t: Sequence[int], values_r: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the values without a partner on the other side whose size is unique on both sides."""
    sizes_t = _index_by_size(matching.target, values_t, matching.partners_t, values_r)
    if not sizes_t:
        return
    sizes_r = _index_by_size(matching.reference, values_r, matching.partners_r, values_t)
    for size, remaining_t in sizes_t.items():
        remaining_r = sizes_r.get(size, [])
        if len(remaining_t) == len(remaining_r) == 1:
            yield remaining_t[0], remaining_r[0]


def _index_by_size(
    flow: Flow, values: Sequence[int], partners: memoryview, other_values: Sequence[int]
) -> dict[int, list[int]]:
    """Return size -> values whose partner is not among the other side's values."""
    values_of_size: dict[int, list[int]] = {}
    for value in values:
        if partners[value] not in other_values:
            values_of_size.setdefault(int(flow.sizes[value]), []).append(value)
    return values_of_size


def _is_contradiction(matching: Matching, value_t: int, value_r: int, slot_kind: str) -> bool:
    """Return whether one value has another partner, and the other one has, too, or is an orphan."""
    has_partner_t = bool(matching.classes_t[value_t] >= 0)
    has_partner_r = bool(matching.classes_r[value_r] >= 0)
    if not has_partner_t and not has_partner_r:
        return False
    is_known_t = has_partner_t or _is_orphan(matching.target, value_t, slot_kind)
    is_known_r = has_partner_r or _is_orphan(matching.reference, value_r, slot_kind)
    return is_known_t and is_known_r


def _count_computations(
    matching: Matching, gradients: tuple[Gradients, Gradients], calls: tuple[int, int]
) -> list[set[int]]:
    """Return, of two forward calls, how often each side computes what they compute."""
    counts: list[set[int]] = []
    for flow, side_gradients, call in zip(
        (matching.target, matching.reference), gradients, calls, strict=True
    ):
        values = flow.writes[call] if call >= 0 else ()
        counts.append({side_gradients.repeats.get(value, 1) for value in values} or {1})
    return counts


def _list_contradicting_ops(matching: Matching) -> list[tuple[int, int]]:
    """Return the paired ops of one kind that do not read, or write, partners in the same order.

    Their slots have one meaning: a backward record has gradients in its slots, whatever the kind
    of its forward call.
    """
    target, reference = matching.target, matching.reference
    ops_t = np.flatnonzero(matching.ops_t >= 0)
    ops_r = matching.ops_t[ops_t]
    is_record_t = target.trace.ops["forward"].to_numpy()[ops_t] >= 0
    is_record_r = reference.trace.ops["forward"].to_numpy()[ops_r] >= 0
    codes_t, names_t = matching.kind_codes_t
    codes_r, names_r = matching.kind_codes_r
    numbers_t = {name: number for number, name in enumerate(names_t)}
    numbers_r = np.array([numbers_t.get(name, -1) for name in names_r], dtype=np.int64)
    is_chosen = (codes_t[ops_t] == numbers_r[codes_r[ops_r]]) & (is_record_t == is_record_r)
    ops_t, ops_r = ops_t[is_chosen], ops_r[is_chosen]
    is_different = np.zeros(len(ops_t), dtype=bool)
    for lists_t, lists_r in (
        (target.reads.take(ops_t), reference.reads.take(ops_r)),
        (target.writes.take(ops_t), reference.writes.take(ops_r)),
    ):
        is_different |= ~_flag_equal_lists(
            IntLists(lists_t.starts, matching.classes_t[lists_t.values]), lists_r
        )
    pairs = zip(ops_t[is_different].tolist(), ops_r[is_different].tolist(), strict=True)
    return list(pairs)


def _flag_equal_lists(lists: IntLists, other_lists: IntLists) -> Flags:
    """Return (rows,) whether the two lists of a row are equal."""
    is_equal: Flags = lists.counts == other_lists.counts
    common_rows = np.flatnonzero(is_equal)
    lists, other_lists = lists.take(common_rows), other_lists.take(common_rows)
    differing_rows = lists.rows[lists.values != other_lists.values]
    is_equal[common_rows[differing_rows]] = False
    return is_equal


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
