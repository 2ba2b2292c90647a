"""Where a fault first shows, found in the recordings themselves: no name, no scope and no label
decides it.

The faulty dump is held against the clean dump of the same framework, model and options. Both are
exact: one thread, one seed, so a tensor that the fault does not reach has the same bits. What the
first changed tensors come from is the root of the fault, and a finding that names one of its ops is
right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from dumps import Dump, compute_distance, pair_ops

from dumpdiff.model.dtypes import UNIT_ROUNDOFF
from dumpdiff.model.trace import BACKWARD, FORWARD, PHASES

#: TOUCHED: other bits, and no more than rounding.
CHANGED, TOUCHED, SAME, UNKNOWN = 2, 1, 0, -1

#: Relative L2 below which a tensor counts as what it is in the clean run: y * s + (y - y * s) is y
#: up to rounding, and positions that all begin at 1 leave the scores of a rotary embedding what
#: they are. Float32 rounding grows to 1e-6.
ROUNDING = 3e-6


@dataclass(frozen=True)
class Truth:
    """What a right answer names. Without ``ops`` the fault changes nothing that was recorded."""

    ops: frozenset[str]  #: names in the faulty dump; a finding that names one of them is right
    first: str  #: the earliest root
    phase: str  #: of the roots
    changed: np.ndarray  #: (tensors of the faulty dump,) CHANGED, TOUCHED, SAME or UNKNOWN
    #: largest relative L2 error that it leaves in loss and gradients, if it is of the forward pass
    effect: float


def find_truth(clean: Dump, faulty: Dump) -> Truth:
    """The root of the fault.

    Roots are ops that write a changed tensor and read none; parameters and constants that are
    changed; and, where it comes before every changed output, an input that nothing recorded made.
    Of the phases in which an op of the clean run writes something else the first counts: what a
    fault of the forward pass does to gradients is no fault of theirs. Beside the roots counts what
    returns the same numbers (a module call, a reshape), what computes with a root that computes
    nothing (a parameter, a cast), and the gradient call of a root.
    """
    pairs = pair_ops(clean, faulty)
    changed = _flag_changes(clean, faulty, pairs)
    ops = faulty.trace.ops
    leaf = (ops["level"] == "op").tolist()
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
    # What amplifies rounding is no root where something else is.
    roots_of_phase = {
        op for op in roots_of_phase if not (changed[faulty.reads[op]] == TOUCHED).any()
    } or roots_of_phase
    accepted = roots_of_phase | _find_repeating_ops(faulty, changed, roots_of_phase)
    accepted |= _find_consumers(faulty, changed, roots_of_phase) | _find_rewired_producers(
        clean, faulty, pairs, changed, roots_of_phase
    )
    accepted = {op for op in accepted if phase[op] == first_phase}
    accepted |= {
        op for op, forward in enumerate(ops["forward"].tolist()) if forward in roots_of_phase
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


def _list_reached_phases(faulty: Dump, pairs: list[int], changed: np.ndarray) -> set[str]:
    """Phases in which an op that the clean run has too writes something else, or one writes what
    nothing reads.
    """
    read = {faulty.numbers[row] for row in range(len(faulty.op)) if faulty.role[row] != "output"}
    phase = faulty.trace.ops["phase"].tolist()
    return {
        phase[op]
        for op, rows in enumerate(faulty.writes)
        if any(
            changed[row] == CHANGED and (pairs[op] >= 0 or faulty.numbers[row] not in read)
            for row in rows
        )
    }


def _flag_changes(clean: Dump, faulty: Dump, pairs: list[int]) -> np.ndarray:
    """Outputs against the same op's where both ran one program, else against everything that the
    clean run holds.
    """
    one_program = clean.program == faulty.program
    clean_bits = set(clean.bits)
    named: dict[str, set[str]] = defaultdict(set)
    for name, print_ in zip(clean.trace.tensors["parameter"], clean.bits, strict=True):
        named[name].add(print_)
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
    for row in sorted(
        range(len(outputs)), key=lambda row: not outputs[row]
    ):  # what is read is judged by who made it
        print_ = faulty.bits[row]
        if not print_:
            continue
        twin = clean.slots.get((pairs[faulty.op[row]], slot[row]), -1)
        if not outputs[row] and faulty.makers[row] >= 0:
            changed[row] = changed[faulty.makers[row]]
        elif parameter[row] in named and parameter[row]:
            changed[row] = SAME if print_ in named[parameter[row]] else CHANGED
        elif print_ == clean.bits[twin] if one_program and twin >= 0 else print_ in clean_bits:
            changed[row] = SAME
        else:
            candidates = [twin] if twin >= 0 else of_size[size[row]]
            is_changed = all(
                compute_distance(faulty, row, clean, other) > ROUNDING for other in candidates
            )
            changed[row] = CHANGED if is_changed else TOUCHED
    return changed


def _find_changed_sources(faulty: Dump, changed: np.ndarray, leaf: list[bool]) -> set[int]:
    """Ops that read a changed parameter, constant or first input which nothing recorded made, and
    pass it on.

    Beside the first input are those of its shape: cosine and sine, tokens and labels.
    """
    table = faulty.trace.tensors
    is_leaf_value = (table["parameter"] != "") | table["constant"] | (table["size"] == 1)
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
        faulty.op[row] for row in read if is_leaf_value.iat[row] and passing[faulty.op[row]]
    }
    if not source_ops:
        early = {table["shape"].iat[row] for row in read if faulty.op[row] <= first}
        source_ops = {
            faulty.op[row]
            for row in read
            if table["shape"].iat[row] in early and passing[faulty.op[row]]
        }
    return source_ops


def _find_repeating_ops(faulty: Dump, changed: np.ndarray, ops: Iterable[int]) -> set[int]:
    """Ops and module calls that write what these write, rearranged or as it is."""
    prints = {
        faulty.numbers[row] for op in ops for row in faulty.writes[op] if changed[row] == CHANGED
    }
    return {
        faulty.op[row]
        for row, role in enumerate(faulty.role)
        if role == "output" and faulty.numbers[row] in prints
    }


def _find_consumers(faulty: Dump, changed: np.ndarray, roots: Iterable[int]) -> set[int]:
    """Where a root computes nothing (a parameter, a rearrangement, a rounding): also the ops that
    compute with it.
    """
    consumers: set[int] = set()
    for root in roots:
        written = [row for row in faulty.writes[root] if changed[row] == CHANGED]
        read = faulty.reads[root]
        if all(
            any(_is_copy(faulty, row, source) for source in read) or not read for row in written
        ):
            prints = {faulty.numbers[row] for row in written}
            readers = {
                faulty.op[row] for row in range(len(faulty.op)) if faulty.role[row] != "output"
                and faulty.numbers[row] in prints
            }  # fmt: skip
            consumers |= readers | _find_repeating_ops(
                faulty, changed, readers if len(readers) < 8 else ()
            )
    return consumers


def _is_copy(faulty: Dump, row: int, source: int) -> bool:
    """Whether a tensor is another rearranged, or rounded to its own dtype."""
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


def _find_rewired_producers(
    clean: Dump, faulty: Dump, pairs: list[int], changed: np.ndarray, roots: Iterable[int]
) -> set[int]:
    """Where a root reads another, unchanged value than it does in the clean run: also the ops that
    made that value.

    So it is where an op was left out: the op before the gap is as right an answer as the one after
    it.
    """
    values: set[str] = set()
    slot = faulty.trace.tensors["slot"].tolist()
    for root in roots:
        for row in faulty.reads[root]:
            twin = clean.slots.get((pairs[root], slot[row]), -1) if faulty.op[row] == root else -1
            rewired = twin >= 0 and clean.bits[twin] and clean.numbers[twin] != faulty.numbers[row]
            if rewired and changed[row] == SAME and faulty.makers[row] >= 0:
                values.add(faulty.numbers[row])
    return {
        faulty.op[row]
        for row, role in enumerate(faulty.role)
        if role == "output" and faulty.numbers[row] in values
    }


def _compute_effect(
    clean: Dump, faulty: Dump, pairs: list[int], changed: np.ndarray, phase: str
) -> float:
    """Largest relative L2 error that a fault of the forward pass leaves in the loss and the
    gradients of parameters.

    Infinite where they cannot be compared; faults of other phases are believed.
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
