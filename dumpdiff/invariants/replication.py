"""Values that are replicated: equal on the ranks of a group in every layer, or in none.

Nothing in a dump says what is replicated. The evidence is the run itself: a value that is equal on
all ranks of a group in one layer is replicated, so its like in the other layers is, too. What
differs there first is where the ranks diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..communication import Group, SiblingCalls
from ..communication.groups import DP, TP
from ..model.arrays import Flags, Ints, Objects
from ..model.dtypes import is_floating
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER
from .step import SiblingTensors, Step, match_group_tensors, measure_differences, name_roles
from .violations import InvariantCheck, Violation, merge_violations

#: Operators whose output is not decided by the recorded inputs: random, or given what is not
#: recorded (slices, memory).
_HIDDEN_INPUTS = (
    "dropout", "rand", "bernoulli", "multinomial", "uniform", "normal", "getitem", "setitem",
    "slice", "chunk", "split", "narrow", "select", "index", "gather", "scatter", "empty", "arange",
    "copy", "custom", "attention",
)  # fmt: skip


@dataclass(frozen=True)
class _Slots:
    """The corresponding tensors of a group, with what is known of each slot."""

    group: Group
    matched: SiblingTensors
    is_equal: Flags
    is_unequal: Flags
    role: Ints
    op: Ints  #: op of the first rank
    phase: Objects


def check_replication(step: Step) -> list[InvariantCheck]:
    """Check replicated values, deterministic calls, dtypes and calls of all sibling ranks."""
    n_checked = dict.fromkeys(("replicated", "deterministic", "same dtype"), 0)
    violations: dict[str, list[Violation]] = {name: [] for name in n_checked}
    for group, siblings in step.list_sibling_groups():
        slots = _describe_slots(step, group, siblings)
        count, group_violations = _check_roles(step, slots)
        n_checked["replicated"] += count
        violations["replicated"] += group_violations
        count, group_violations = _check_calls_of_equal_inputs(step, slots)
        n_checked["deterministic"] += count
        violations["deterministic"] += group_violations
        count, group_violations = _check_dtypes(step, slots)
        n_checked["same dtype"] += count
        violations["same dtype"] += group_violations
    return [
        InvariantCheck(name, n_checked[name], tuple(merge_violations(items)))
        for name, items in violations.items()
    ]


def _describe_slots(step: Step, group: Group, siblings: SiblingCalls) -> _Slots:
    matched = match_group_tensors(step, group.members, siblings)
    first = matched.ranks[0]
    trace = step.traces[first]
    is_known = (matched.keys >= 0).all(axis=1)
    is_equal = is_known & (matched.keys == matched.keys[:, :1]).all(axis=1)
    difference, tolerance = measure_differences(step, matched)
    is_scalar = _flag_scalars(trace.tensors)
    # what is equal to the bit is evidence; what differs by rounding is neither equal nor wrong
    is_near = is_known & (difference <= tolerance) & ~is_scalar
    op = trace.tensors["op"].to_numpy()
    roles = name_roles(trace)
    role_keys = pd.Series(
        [(*roles[owner], slot) for owner, slot in zip(op, trace.tensors["slot"], strict=True)],
        dtype=object,
    )
    role = pd.factorize(role_keys)[0].astype(np.int64)
    is_comparable = _flag_comparable(step, matched)
    return _Slots(
        group,
        matched,
        is_comparable & is_equal,
        is_comparable & is_known & ~is_equal & ~is_near,
        role,
        op,
        trace.ops["phase"].to_numpy()[op],
    )


def _flag_scalars(tensors: pd.DataFrame) -> Flags:
    """Return which tensors are numbers of the program, not computed."""
    is_single = (tensors["size"] == 1).to_numpy()
    return np.asarray(tensors["constant"].to_numpy() & is_single, dtype=bool)


def _flag_comparable(step: Step, matched: SiblingTensors) -> Flags:
    """Return the slots whose values tell something: varied numbers of one shape, or scalars."""
    first = matched.ranks[0]
    tensors = step.traces[first].tensors
    is_scalar = _flag_scalars(tensors)
    # of values that differ, one may be constant (a gradient that is lost); of equal ones none
    is_varied = np.zeros(len(tensors), dtype=bool)
    has_shape = np.ones(len(tensors), dtype=bool)
    is_trusted = np.ones(len(tensors), dtype=bool)
    for position, rank in enumerate(matched.ranks):
        rows = matched.rows[:, position]
        has_tensor = rows >= 0
        is_varied |= has_tensor & step.informative[rank][rows]
        other = step.traces[rank].tensors
        has_shape &= has_tensor & (other["size"].to_numpy()[rows] == tensors["size"].to_numpy())
        is_trusted &= other["trusted"].to_numpy()[rows]
    return np.asarray((is_varied | is_scalar) & has_shape & is_trusted, dtype=bool)


def _check_roles(step: Step, slots: _Slots) -> tuple[int, list[Violation]]:
    """Compare the layers: a role whose values are equal in one layer is equal in all.

    Of all places that differ, the first in the forward pass is where the ranks diverge, or else the
    first in the backward pass.
    """
    trace = step.traces[slots.matched.ranks[0]]
    is_scalar = _flag_scalars(trace.tensors)
    counts = pd.DataFrame({"equal": slots.is_equal, "unequal": slots.is_unequal})
    counts = counts.groupby(slots.role).transform("sum")
    n_equal, n_unequal = counts["equal"].to_numpy(), counts["unequal"].to_numpy()
    is_replicated = n_equal > 0
    # scalars may be equal by chance: offsets, counts
    is_replicated &= ~is_scalar | (n_equal > n_unequal)
    is_in_pass = np.isin(slots.phase, (FORWARD, BACKWARD))
    has_parameter = (trace.tensors["parameter"] != "") | (trace.tensors["gradient_of"] != "")
    is_parameter = has_parameter.to_numpy()
    is_wrong = slots.is_unequal & is_replicated & is_in_pass & ~is_parameter
    n_checked = int((slots.is_equal & is_in_pass & (n_equal + n_unequal > 1)).sum())
    rows = np.flatnonzero(is_wrong)
    if not len(rows):
        return n_checked, []
    is_forward = slots.phase[rows] == FORWARD
    candidates = rows[is_forward] if is_forward.any() else rows
    first = int(candidates[np.argmin(slots.op[candidates])])
    # another number of the program explains what the op computes
    is_argument = (slots.op == slots.op[first]) & is_scalar & slots.is_unequal & (n_equal > 0)
    if is_argument.any():
        first = int(np.flatnonzero(is_argument)[0])
    evidence = f"it is equal in {int(n_equal[first])} other layers or calls"
    return n_checked, [_make_violation(step, slots, first, "replicated", evidence, len(rows) - 1)]


def _check_calls_of_equal_inputs(step: Step, slots: _Slots) -> tuple[int, list[Violation]]:
    """Check that operators with equal inputs give equal outputs."""
    trace = step.traces[slots.matched.ranks[0]]
    tensors, ops = trace.tensors, trace.ops
    n_ops = len(ops)
    is_known_equal = (slots.matched.keys >= 0).all(axis=1) & (
        slots.matched.keys == slots.matched.keys[:, :1]
    ).all(axis=1)
    is_input = (tensors["slot_kind"] != "output").to_numpy()
    is_output = ~is_input
    op = slots.op
    has_other_input = np.zeros(n_ops, dtype=bool)
    has_other_input[op[is_input & ~is_known_equal]] = True
    has_informative = np.zeros(n_ops, dtype=bool)
    informative = step.informative[slots.matched.ranks[0]]
    has_informative[op[is_input & is_known_equal & informative]] = True
    is_plain = np.array([_is_deterministic(kind) for kind in ops["kind"]], dtype=bool)
    is_plain &= (ops["level"] == "op").to_numpy()
    is_plain &= np.isin(ops["phase"].to_numpy(), (FORWARD, BACKWARD, OPTIMIZER))
    # API gradients are recorded in part: what the call saved from the forward pass is an input, too
    is_plain &= (ops["forward"] < 0).to_numpy()
    is_checked_op = is_plain & has_informative & ~has_other_input
    is_checked = is_output & is_checked_op[op]
    rows = np.flatnonzero(is_checked & slots.is_unequal)
    n_checked = int((is_checked & (slots.is_equal | slots.is_unequal)).sum())
    if not len(rows):
        return n_checked, []
    first = int(rows[np.argmin(op[rows])])
    evidence = "all its inputs are equal"
    return n_checked, [
        _make_violation(step, slots, first, "deterministic", evidence, len(rows) - 1)
    ]


def _is_deterministic(kind: str) -> bool:
    name = kind.lower()
    return not any(word in name for word in _HIDDEN_INPUTS)


def _check_dtypes(step: Step, slots: _Slots) -> tuple[int, list[Violation]]:
    """Check that corresponding slots have one dtype."""
    matched = slots.matched
    dtypes = np.empty(matched.rows.shape, dtype=object)
    for position, rank in enumerate(matched.ranks):
        rows = matched.rows[:, position]
        dtypes[:, position] = step.traces[rank].tensors["dtype"].to_numpy()[rows]
    has_all = (matched.rows >= 0).all(axis=1)
    is_wrong = has_all & (dtypes != dtypes[:, :1]).any(axis=1)
    is_wrong &= np.array([is_floating(dtype) for dtype in dtypes[:, 0]], dtype=bool)
    rows = np.flatnonzero(is_wrong)
    if not len(rows):
        return int(has_all.sum()), []
    first = int(rows[0])
    words = [
        f"{dtype} on rank {rank}" for dtype, rank in zip(dtypes[first], matched.ranks, strict=False)
    ]
    trace = step.traces[matched.ranks[0]]
    op = trace.ops.iloc[slots.op[first]]
    violation = Violation(
        "same dtype", step.number, matched.ranks, op["name"], trace.tensors["slot"].iat[first],
        op["scope"], words[0], " and ".join(words[1:]), str(slots.group), len(rows) - 1,
    )  # fmt: skip
    return int(has_all.sum()), [violation]


def _make_violation(
    step: Step, slots: _Slots, row: int, invariant: str, evidence: str, n_further: int
) -> Violation:
    matched = slots.matched
    trace = step.traces[matched.ranks[0]]
    op = trace.ops.iloc[slots.op[row]]
    wrong_ranks = find_minority(matched.ranks, matched.keys[row])
    right = next((rank for rank in matched.ranks if rank not in wrong_ranks), matched.ranks[0])
    wrong = wrong_ranks[-1] if wrong_ranks[-1] != right else wrong_ranks[0]
    tensors = {rank: int(matched.rows[row, matched.ranks.index(rank)]) for rank in matched.ranks}
    return Violation(
        invariant, step.number, wrong_ranks, op["name"], trace.tensors["slot"].iat[row],
        op["scope"], step.describe(wrong, tensors[wrong]),
        f"{step.describe(right, tensors[right])}; {evidence}", str(slots.group), n_further,
    )  # fmt: skip


def find_minority(ranks: tuple[int, ...], keys: Ints) -> tuple[int, ...]:
    """Return the ranks whose value is not that of the majority; all ranks if there is none."""
    values, counts = np.unique(keys, return_counts=True)
    if counts.max() <= len(keys) - counts.max():
        return ranks
    majority = values[np.argmax(counts)]
    return tuple(rank for rank, key in zip(ranks, keys, strict=True) if key != majority)


def check_loss(step: Step) -> InvariantCheck:
    """Check that the last scalar of the forward pass is equal on tensor-parallel ranks."""
    n_checked, violations = 0, []
    for group, siblings in step.list_sibling_groups():
        if group.kind != TP:
            continue
        slots = _describe_slots(step, group, siblings)
        trace = step.traces[slots.matched.ranks[0]]
        tensors = trace.tensors
        first_backward = np.flatnonzero((trace.ops["phase"] == BACKWARD).to_numpy())
        end = first_backward[0] if len(first_backward) else len(trace.ops)
        is_loss = (tensors["size"] == 1) & (tensors["slot_kind"] == "output")
        is_loss &= tensors["dtype"].map(is_floating).astype(bool) & ~tensors["constant"]
        is_loss &= (slots.op < end) & np.isin(slots.phase, (FORWARD, COMMUNICATION))
        rows = np.flatnonzero(is_loss.to_numpy() & (slots.matched.keys >= 0).all(axis=1))
        if not len(rows):
            continue
        last = int(rows[np.argmax(slots.op[rows])])
        n_checked += 1
        keys = slots.matched.keys[last]
        difference, tolerance = measure_differences(step, slots.matched)
        if (keys != keys[0]).any() and not difference[last] <= tolerance[last]:
            evidence = "tensor-parallel ranks have one loss"
            violations.append(_make_violation(step, slots, last, "loss", evidence, 0))
    return InvariantCheck("loss", n_checked, tuple(violations))


#: Share of the values of the forward pass that may be equal on data-parallel ranks: masks,
#: positions and what is computed from parameters alone.
_MAX_EQUAL_SHARE = 0.9


def check_batches(step: Step) -> InvariantCheck:
    """Check that data-parallel ranks do not compute the same samples."""
    n_checked, violations = 0, []
    for group, siblings in step.list_sibling_groups():
        if group.kind != DP:
            continue
        slots = _describe_slots(step, group, siblings)
        trace = step.traces[slots.matched.ranks[0]]
        tensors = trace.tensors
        is_activation = (tensors["slot_kind"] == "output").to_numpy() & (slots.phase == FORWARD)
        is_activation &= (tensors["parameter"] == "").to_numpy()
        is_activation &= step.informative[slots.matched.ranks[0]]
        n_ranks = len(slots.matched.ranks)
        pairs = [(a, b) for a in range(n_ranks) for b in range(a + 1, n_ranks)]
        keys = slots.matched.keys[is_activation]
        keys = keys[(keys >= 0).all(axis=1)]
        if len(keys) < 2:
            continue
        n_checked += 1
        for first, second in pairs:
            share = float((keys[:, first] == keys[:, second]).mean())
            if share <= _MAX_EQUAL_SHARE:
                continue
            ranks = (slots.matched.ranks[first], slots.matched.ranks[second])
            row = int(np.flatnonzero(is_activation)[0])
            op = trace.ops.iloc[slots.op[row]]
            violations.append(
                Violation(
                    "batch", step.number, ranks, op["name"], tensors["slot"].iat[row], op["scope"],
                    f"{share:.0%} of the values of the forward pass are equal on both ranks",
                    "data-parallel ranks compute different samples", str(group),
                )
            )  # fmt: skip
            break
    return InvariantCheck("batch", n_checked, tuple(violations))
