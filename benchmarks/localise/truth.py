"""Find where a fault first shows from the recorded numbers only: no name, scope or label decides.

The faulty dump is compared with the clean dump of the same framework, model and options. Both are
exact: one thread, one seed, so a tensor that the fault does not reach has the same bits. The ops
that the first changed tensors come from are the root of the fault. A finding that names one of them
is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from dumps import Dump, compute_distance, pair_ops

from dumpdiff.model.dtypes import UNIT_ROUNDOFF
from dumpdiff.model.trace import BACKWARD, FORWARD, PHASES

#: TOUCHED: the bits differ, but only by rounding.
CHANGED, TOUCHED, SAME, UNKNOWN = 2, 1, 0, -1

#: Relative L2 below which a tensor counts as equal to the clean run's: y * s + (y - y * s) is y up
#: to rounding, and positions that all begin at 1 do not change the scores of a rotary embedding.
#: Float32 rounding grows to 1e-6.
ROUNDING = 3e-6


@dataclass(frozen=True)
class Truth:
    """What a right answer names; ``ops`` is empty if the fault changes nothing recorded."""

    ops: frozenset[str]  #: names in the faulty dump; a finding that names one of them is right
    first: str  #: the earliest root
    phase: str  #: of the roots
    changed: np.ndarray  #: (tensors of the faulty dump,) CHANGED, TOUCHED, SAME or UNKNOWN
    #: largest relative L2 error that it leaves in loss and gradients, if it is of the forward pass
    effect: float


def find_truth(clean: Dump, faulty: Dump) -> Truth:
    """Return the root of the fault.

    Roots are ops that write a changed tensor and read none; changed parameters and constants; and
    an input that no recorded op produced, if it comes before every changed output. Only the first
    phase counts in which an op of the clean run writes something else: a fault of the forward pass
    changes gradients too, but they are not its root. Accepted besides the roots: what returns the
    same numbers (a module call, a reshape), what computes with a root that computes nothing (a
    parameter, a cast), the gradient call of a root, and the ops that the clean run does not have
    which follow from a root that it does not have either: together they are what was changed.
    """
    pairs = pair_ops(clean, faulty)
    changed = _flag_changes(clean, faulty, pairs)
    ops = faulty.trace.ops
    leaf = _flag_leaves(ops)
    phase = ops["phase"].tolist()

    roots = [
        op
        for op, rows in enumerate(faulty.writes)
        if leaf[op]
        and (changed[rows] == CHANGED).any()
        and not (changed[faulty.reads[op]] == CHANGED).any()
    ]
    reading = [
        op
        for op in roots
        if phase[op] == FORWARD or any(faulty.op[row] == op for row in faulty.reads[op])
    ]
    reached = _list_reached_phases(faulty, pairs, changed)
    candidates = {
        op
        for op in {*reading, *_find_changed_sources(faulty, changed, leaf)} or roots
        if phase[op] in reached
    }
    if not candidates:
        return Truth(frozenset(), "", "", changed, 0.0)
    first_phase = min((phase[op] for op in candidates), key=PHASES.index)
    roots_of_phase = {op for op in candidates if phase[op] == first_phase}
    # An op that amplifies rounding is a root only if there is no other. The result of an op that
    # the clean run does not have is no rounding of what happens to be near it.
    is_rounded = [
        change == TOUCHED and (maker < 0 or pairs[faulty.op[maker]] >= 0)
        for change, maker in zip(changed.tolist(), faulty.makers, strict=True)
    ]
    roots_of_phase = {
        op for op in roots_of_phase if not any(is_rounded[row] for row in faulty.reads[op])
    } or roots_of_phase
    accepted = roots_of_phase | _find_repeating_ops(faulty, changed, roots_of_phase)
    accepted |= _find_consumers(faulty, changed, roots_of_phase) | find_rewired_producers(
        clean, faulty, pairs, changed, roots_of_phase
    )
    accepted |= _find_unrecorded_sums(faulty, changed, leaf, accepted)
    accepted |= _find_new_ops(clean, faulty, pairs, roots_of_phase)
    accepted = {op for op in accepted if phase[op] == first_phase}
    calls = ops["forward"].tolist()
    accepted |= {op for op, call in enumerate(calls) if call in roots_of_phase}
    # what a module passes on and the gradients of its parameters are two records of one call
    accepted_calls = {calls[op] for op in accepted} - {-1}
    kinds = ops["kind"].tolist()
    accepted |= {
        op
        for op, call in enumerate(calls)
        if call in accepted_calls and kinds[op] == "parameters_grad"
    }
    names = ops["name"].tolist()
    effect = _compute_effect(clean, faulty, pairs, changed, first_phase)
    return Truth(
        frozenset(names[op] for op in accepted),
        names[min(roots_of_phase)],
        first_phase,
        changed,
        effect,
    )


def _flag_leaves(ops: pd.DataFrame) -> list[bool]:
    """Flag what computes: ops, and module calls inside which no op was recorded.

    PyTorch's ``nn.LSTM`` is one, and the gradient of an autograd function.
    """
    return ((ops["level"] == "op") | ~ops.index.isin(ops["parent"])).tolist()


def _list_reached_phases(faulty: Dump, pairs: list[int], changed: np.ndarray) -> set[str]:
    """Return the phases in which an op shared with the clean run writes something else.

    Or in which an op writes a changed value that nothing reads. What the ops of the phase that read
    a value undo does not count: 0.5 * x * x may be computed in place of 0.5 * (x * x).
    """
    phase = faulty.trace.ops["phase"].tolist()
    readers: dict[str, set[int]] = defaultdict(set)
    for row, role in enumerate(faulty.role):
        if role != "output":
            readers[faulty.numbers[row]].add(faulty.op[row])

    def reaches(op: int, row: int) -> bool:
        if changed[row] != CHANGED:
            return False
        users = readers[faulty.numbers[row]]
        own_users = [user for user in users if user > op and phase[user] == phase[op]]
        is_undone = bool(own_users) and all(
            (changed[faulty.writes[user]] != CHANGED).all() for user in own_users
        )
        return not is_undone if pairs[op] >= 0 else not users

    return {
        phase[op] for op, rows in enumerate(faulty.writes) if any(reaches(op, row) for row in rows)
    }


def _flag_changes(clean: Dump, faulty: Dump, pairs: list[int]) -> np.ndarray:
    """Return for each tensor of the faulty dump CHANGED, TOUCHED, SAME or UNKNOWN.

    An output is compared with the output of the same op if both dumps ran one program, else with
    everything that the clean run holds.
    """
    one_program = clean.program == faulty.program
    clean_bits = set(clean.bits)
    named: dict[str, set[str]] = defaultdict(set)
    for name, fingerprint in zip(clean.trace.tensors["parameter"], clean.bits, strict=True):
        named[name].add(fingerprint)
    parameter, slot, size = (
        faulty.trace.tensors[name].tolist() for name in ("parameter", "slot", "size")
    )
    of_size: dict[int, list[int]] = defaultdict(list)
    for row, (role, count) in enumerate(
        zip(clean.role, clean.trace.tensors["size"].tolist(), strict=True)
    ):
        if role == "output" and clean.bits[row]:
            of_size[count].append(row)
    changed = np.full(len(faulty.bits), UNKNOWN, dtype=np.int8)
    outputs = [role == "output" for role in faulty.role]
    # outputs first: a tensor that is read has the state of the output it comes from
    for row in sorted(range(len(outputs)), key=lambda row: not outputs[row]):
        fingerprint = faulty.bits[row]
        if not fingerprint:
            continue
        twin = clean.slots.get((pairs[faulty.op[row]], slot[row]), -1)
        if not outputs[row] and faulty.makers[row] >= 0:
            changed[row] = changed[faulty.makers[row]]
        elif parameter[row] in named and parameter[row]:
            changed[row] = SAME if fingerprint in named[parameter[row]] else CHANGED
        elif (
            fingerprint == clean.bits[twin]
            if one_program and twin >= 0
            else fingerprint in clean_bits
        ):
            changed[row] = SAME
        else:
            candidates = [twin] if twin >= 0 else of_size[size[row]]
            is_changed = all(
                compute_distance(faulty, row, clean, other) > ROUNDING for other in candidates
            )
            changed[row] = CHANGED if is_changed else TOUCHED
    return changed


def _find_changed_sources(faulty: Dump, changed: np.ndarray, leaf: list[bool]) -> set[int]:
    """Return the ops that read a changed source and pass the change on.

    A source is a parameter, a constant, or a first input that no recorded op produced. Inputs with
    the shape of a first input count too: cosine and sine, tokens and labels. A number that is read
    later may be a consequence: the weight of the only token of an expert.
    """
    table = faulty.trace.tensors
    is_given = (table["parameter"] != "") | table["constant"]
    is_number = table["size"] == 1
    read = [
        r
        for r in np.flatnonzero(changed == CHANGED)
        if faulty.role[r] != "output" and faulty.makers[r] < 0
    ]
    passing = [
        any(changed[w] == CHANGED for w in rows) and leaf[op]
        for op, rows in enumerate(faulty.writes)
    ]
    first = min((op for op, passes in enumerate(passing) if passes), default=-1)
    source_ops = {
        faulty.op[row]
        for row in read
        if (is_given.iat[row] or (is_number.iat[row] and faulty.op[row] <= first))
        and passing[faulty.op[row]]
    }
    if not source_ops:
        early = {table["shape"].iat[row] for row in read if faulty.op[row] <= first}
        source_ops = {
            faulty.op[row]
            for row in read
            if table["shape"].iat[row] in early and passing[faulty.op[row]]
        }
    return source_ops


def _find_unrecorded_sums(
    faulty: Dump, changed: np.ndarray, leaf: list[bool], accepted: set[int]
) -> set[int]:
    """Return the innermost module calls that read nothing changed and write a changed value.

    None of the ops inside of them wrote it: PyTorch records no sum of the gradients of branches.
    Calls that hold an accepted op are not the innermost ones.
    """
    written_by_leaf = {
        faulty.numbers[row] for op, rows in enumerate(faulty.writes) if leaf[op] for row in rows
    }
    parents = faulty.trace.ops["parent"].tolist()
    sums = {
        op
        for op, rows in enumerate(faulty.writes)
        if not leaf[op]
        and not (changed[faulty.reads[op]] == CHANGED).any()
        and any(changed[r] == CHANGED and faulty.numbers[r] not in written_by_leaf for r in rows)
    }
    enclosing: set[int] = set()
    for op in sums | accepted:
        parent = parents[op]
        while parent >= 0:
            enclosing.add(parent)
            parent = parents[parent]
    return sums - enclosing


def _find_new_ops(clean: Dump, faulty: Dump, pairs: list[int], roots: Iterable[int]) -> set[int]:
    """Return the ops without a counterpart in the clean run that follow from such roots.

    An op whose result has another size there has none: a mean that was taken out of a loss. Ops
    that follow from one with a counterpart are consequences.
    """
    sizes, clean_sizes = faulty.trace.tensors["size"], clean.trace.tensors["size"]
    slot = faulty.trace.tensors["slot"]
    is_new = []
    for op, rows in enumerate(faulty.writes):
        twins = [(row, clean.slots.get((pairs[op], slot.iat[row]), -1)) for row in rows]
        has_other_size = any(t >= 0 and sizes.iat[r] != clean_sizes.iat[t] for r, t in twins)
        is_new.append(pairs[op] < 0 or has_other_size)
    new_ops = {op for op in roots if is_new[op]}
    for op, rows in enumerate(faulty.reads):
        if is_new[op] and any(
            faulty.op[faulty.makers[r]] in new_ops for r in rows if faulty.makers[r] >= 0
        ):
            new_ops.add(op)
    return new_ops


def _find_repeating_ops(faulty: Dump, changed: np.ndarray, ops: Iterable[int]) -> set[int]:
    """Return ops and module calls that write the same values as ``ops``, rearranged or not."""
    fingerprints = {
        faulty.numbers[row] for op in ops for row in faulty.writes[op] if changed[row] == CHANGED
    }
    return {
        faulty.op[row]
        for row, role in enumerate(faulty.role)
        if role == "output" and faulty.numbers[row] in fingerprints
    }


def _find_consumers(faulty: Dump, changed: np.ndarray, roots: Iterable[int]) -> set[int]:
    """Return the ops that compute with a root which computes nothing.

    Such a root is a parameter, a rearrangement, a concatenation or a rounding.
    """
    consumers: set[int] = set()
    for root in roots:
        written = [row for row in faulty.writes[root] if changed[row] == CHANGED]
        read = faulty.reads[root]
        is_copying = all(
            any(_is_copy(faulty, row, source) for source in read) or not read for row in written
        )
        if is_copying or _is_joining(faulty, root, written):
            fingerprints = {faulty.numbers[row] for row in written}
            readers = {
                faulty.op[row] for row in range(len(faulty.op)) if faulty.role[row] != "output"
                and faulty.numbers[row] in fingerprints
            }  # fmt: skip
            consumers |= readers | _find_repeating_ops(
                faulty, changed, readers if len(readers) < 8 else ()
            )
    return consumers


def _is_joining(faulty: Dump, op: int, written: list[int]) -> bool:
    """Return whether the one result of an op holds the numbers of all of its inputs.

    Statistics do not show the order of what was joined.
    """
    files, constant = faulty.trace.tensors["file"], faulty.trace.tensors["constant"]
    inputs = [row for row in faulty.reads[op] if files.iat[row] and not constant.iat[row]]
    if len(written) != 1 or len(inputs) < 2 or not files.iat[written[0]]:
        return False
    joined_values = np.concatenate([np.ravel(faulty.trace.array(row)) for row in inputs])
    result_values = np.ravel(faulty.trace.array(written[0]))
    return np.array_equal(np.sort(joined_values), np.sort(result_values))


def _is_copy(faulty: Dump, row: int, source: int) -> bool:
    """Return whether a tensor is a rearrangement of another, or its rounding to the own dtype."""
    if faulty.numbers[row] == faulty.numbers[source]:
        return True
    table = faulty.trace.tensors
    unit = UNIT_ROUNDOFF.get(str(table["dtype"].iat[row]), 0.0)
    files = table["file"].iat[row] and table["file"].iat[source]
    if not files or table["size"].iat[row] != table["size"].iat[source] or not unit:
        return False
    copied_values, source_values = (
        np.asarray(faulty.trace.array(tensor), dtype=np.float64).ravel() for tensor in (row, source)
    )
    with np.errstate(invalid="ignore"):
        return bool(
            np.all(np.abs(copied_values - source_values) <= 2 * unit * np.abs(source_values))
        )


def find_rewired_producers(
    clean: Dump, faulty: Dump, pairs: list[int], changed: np.ndarray, roots: Iterable[int]
) -> set[int]:
    """Return the producers of unchanged values that a root reads instead of those of the clean run.

    This happens where an op was left out, a rearrangement included: the op before it is as right an
    answer as the op after it.
    """
    values: set[str] = set()
    slot = faulty.trace.tensors["slot"].tolist()
    for root in roots:
        for row in faulty.reads[root]:
            twin = clean.slots.get((pairs[root], slot[row]), -1) if faulty.op[row] == root else -1
            rewired = twin >= 0 and clean.bits[twin] not in ("", faulty.bits[row])
            maker = faulty.makers[row]
            if not rewired or maker < 0:
                continue
            is_new = changed[row] == TOUCHED and pairs[faulty.op[maker]] < 0
            if changed[row] == SAME or is_new:
                values.add(faulty.numbers[row])
    return {
        faulty.op[row]
        for row, role in enumerate(faulty.role)
        if role == "output" and faulty.numbers[row] in values
    }


def _compute_effect(
    clean: Dump, faulty: Dump, pairs: list[int], changed: np.ndarray, phase: str
) -> float:
    """Return the largest relative L2 error of a forward fault in loss and parameter gradients.

    Infinite where they cannot be compared, and for faults of other phases.
    """
    if phase != FORWARD:
        return float("inf")
    table = faulty.trace.tensors
    read = {faulty.numbers[row] for row in range(len(faulty.op)) if faulty.role[row] != "output"}
    kinds, phases = (faulty.trace.ops[name].tolist() for name in ("kind", "phase"))
    calls = "parameters_grad" in kinds
    worst = [0.0]
    for row, op in enumerate(faulty.op):
        last = kinds[op] == "parameters_grad" if calls else faulty.numbers[row] not in read
        if phases[op] == FORWARD:
            last = table["size"].iat[row] == 1 and faulty.numbers[row] not in read
        elif phases[op] != BACKWARD:
            last = False
        if faulty.role[row] == "output" and last and changed[row] != UNKNOWN:
            twin = clean.slots.get((pairs[op], table["slot"].iat[row]), -1)
            worst.append(compute_distance(faulty, row, clean, twin) if twin >= 0 else float("inf"))
    return max(worst) if len(worst) > 1 else float("inf")
