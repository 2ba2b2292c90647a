"""Where a fault first shows, found in the recordings themselves: no name, no scope and no label decides it.

The faulty dump is held against the clean dump of the same framework, model and options. Both are exact: one thread,
one seed, so a tensor that the fault does not reach has the same bits. What the first changed tensors come from is the
root of the fault, and a finding that names one of its ops is right.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path

import numpy as np

from dumpdiff import read
from dumpdiff.dtypes import UNIT_ROUNDOFF
from dumpdiff.trace import BACKWARD, FORWARD, PHASES, Trace

CHANGED, SAME, UNKNOWN = 1, 0, -1


@dataclass(frozen=True)
class Dump:
    """A recording of whole tensors with two fingerprints of each: of its numbers in order, and of the sorted ones."""

    trace: Trace
    bits: tuple[str, ...]  #: '' if the tensor is not recorded or the recorder is known to write something else
    numbers: tuple[str, ...]  #: equal for reshaped, transposed and widened copies

    @cached_property
    def op(self) -> list[int]:
        """Per tensor: its op."""
        return self.trace.tensors["op"].tolist()

    @cached_property
    def role(self) -> list[str]:
        """Per tensor: input, output or parameter."""
        return self.trace.tensors["role"].tolist()

    @cached_property
    def slots(self) -> dict[tuple[int, str], int]:
        """(op, slot) -> tensor."""
        keys = zip(self.op, self.trace.tensors["slot"], strict=True)
        return {key: row for row, key in enumerate(keys)}

    @cached_property
    def reads(self) -> list[list[int]]:
        """Per op: the tensors it reads; a gradient call also those of the call it differentiates."""
        table: list[list[int]] = [[] for _ in range(len(self.trace.ops))]
        for row, (op, role) in enumerate(zip(self.op, self.role, strict=True)):
            if role != "output" and self.bits[row]:
                table[op].append(row)
        own = [list(rows) for rows in table]
        for op, forward in enumerate(self.trace.ops["forward"].tolist()):
            if forward >= 0:
                table[op] += own[forward] + self.writes[forward]
        return table

    @cached_property
    def writes(self) -> list[list[int]]:
        """Per op: the tensors it writes."""
        table: list[list[int]] = [[] for _ in range(len(self.trace.ops))]
        for row, (op, role) in enumerate(zip(self.op, self.role, strict=True)):
            if role == "output" and self.bits[row]:
                table[op].append(row)
        return table

    @cached_property
    def makers(self) -> list[int]:
        """Per tensor that is read: the output it is, or a rearrangement of; -1 if nothing recorded made it."""
        recorded = self.trace.tensors["producer"].tolist()
        made: dict[str, int] = {}
        found = [-1] * len(self.op)
        by_op = [(op, row) for row, op in enumerate(self.op)]
        for _, row in sorted(by_op, key=lambda at: (at[0], self.role[at[1]] == "output", at[1])):
            if not self.bits[row]:
                continue
            if self.role[row] == "output":
                made[self.bits[row]] = row
                made.setdefault(self.numbers[row], row)
            elif recorded[row] >= 0 and self.bits[recorded[row]]:
                found[row] = recorded[row]
            else:
                found[row] = made.get(self.bits[row], made.get(self.numbers[row], -1))
        return found

    @cached_property
    def program(self) -> list[tuple]:
        """Per op what it is, whatever its numbers: kind, scope and shapes. Equal programs ran the same ops."""
        shapes: list[list] = [[] for _ in range(len(self.trace.ops))]
        for op, slot, shape in zip(self.op, self.trace.tensors["slot"], self.trace.tensors["shape"], strict=True):
            shapes[op].append((slot, shape))
        kinds, scopes = self.trace.ops["kind"], self.trace.ops["scope"]
        return [(kind, scope, tuple(of)) for kind, scope, of in zip(kinds, scopes, shapes, strict=True)]


@dataclass(frozen=True)
class Truth:
    """What a right answer names. Without ``ops`` the fault has no effect on what was recorded."""

    ops: frozenset[str]  #: names in the faulty dump; a finding that names one of them is right
    first: str  #: the earliest root
    phase: str  #: of the roots
    changed: np.ndarray  #: (tensors of the faulty dump,) CHANGED, SAME or UNKNOWN


def load(path: Path) -> Dump:
    """Read a dump of whole tensors and take the fingerprints."""
    trace = read(path)
    table = trace.tensors
    exact, loose = [""] * len(table), [""] * len(table)
    columns = zip(table["file"], table["constant"], table["max"], table["trusted"], strict=True)
    for row, (file, constant, value, trusted) in enumerate(columns):
        if file and trusted:
            exact[row], loose[row] = _fingerprints(trace.array(row))
        elif constant and not file and np.isfinite(value):
            exact[row] = loose[row] = f"={value!r}"
    return Dump(trace, tuple(exact), tuple(loose))


def same_recording(one: Dump, other: Dump) -> bool:
    """Whether two recordings of one program are equal to the last bit, as everything here assumes."""
    return one.program == other.program and one.bits == other.bits


def twins(clean: Dump, faulty: Dump) -> list[int]:
    """Per op of the faulty dump: the same op of the clean one, -1 for an op that it does not have."""
    table = [-1] * len(faulty.program)
    matcher = SequenceMatcher(None, clean.program, faulty.program, autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            table[block.b + step] = block.a + step
    return table


def find(clean: Dump, faulty: Dump) -> Truth:
    """The root of the fault.

    Roots are ops that write a changed tensor and read none; parameters and constants that are changed; and, where it
    comes before every changed output, an input that nothing recorded made. Of several phases the first counts: what a
    fault of the forward pass does to gradients is no fault of theirs. Beside the roots counts what returns the same
    numbers (a module call, a reshape), and the gradient call of a root.
    """
    pairs = twins(clean, faulty)
    changed = _changed(clean, faulty, pairs)
    ops = faulty.trace.ops
    leaf = (ops["level"] == "op").tolist()
    phase = ops["phase"].tolist()

    roots, without_reads = [], []
    for op, rows in enumerate(faulty.writes):
        if leaf[op] and any(changed[row] == CHANGED for row in rows):
            reads = faulty.reads[op]
            if all(changed[row] != CHANGED for row in reads):
                own = phase[op] == FORWARD or any(faulty.op[row] == op for row in reads)
                (roots if own else without_reads).append(op)
    given = _given(faulty, changed, leaf)
    candidates = {*roots, *given} or set(without_reads)
    if not candidates:
        return Truth(frozenset(), "", "", changed)
    first_phase = min((phase[op] for op in candidates), key=PHASES.index)
    chosen = {op for op in candidates if phase[op] == first_phase}
    accepted = chosen | _same_numbers(faulty, changed, chosen)
    accepted |= _consumers(faulty, changed, chosen) | _rewired(clean, faulty, pairs, changed, chosen)
    accepted = {op for op in accepted if phase[op] == first_phase}
    accepted |= {op for op, forward in enumerate(ops["forward"].tolist()) if forward in chosen}
    names = ops["name"].tolist()
    return Truth(frozenset(names[op] for op in accepted), names[min(chosen)], first_phase, changed)


def _changed(clean: Dump, faulty: Dump, pairs: list[int]) -> np.ndarray:
    """Outputs against the same op's where both ran one program, else against everything that the clean run holds."""
    one_program = clean.program == faulty.program
    held = set(clean.bits)
    named: dict[str, set[str]] = defaultdict(set)
    for name, print_ in zip(clean.trace.tensors["parameter"], clean.bits, strict=True):
        named[name].add(print_)
    parameter, slot = (faulty.trace.tensors[name].tolist() for name in ("parameter", "slot"))
    changed = np.full(len(faulty.bits), UNKNOWN, dtype=np.int8)
    outputs = [role == "output" for role in faulty.role]
    for row in sorted(range(len(outputs)), key=lambda row: not outputs[row]):  # what is read is judged by who made it
        print_ = faulty.bits[row]
        if not print_:
            continue
        if not outputs[row] and faulty.makers[row] >= 0:
            changed[row] = changed[faulty.makers[row]]
        elif parameter[row] in named and parameter[row]:
            changed[row] = print_ not in named[parameter[row]]
        elif one_program and (twin := clean.slots.get((pairs[faulty.op[row]], slot[row]), -1)) >= 0:
            changed[row] = print_ != clean.bits[twin]
        else:
            changed[row] = print_ not in held
    return changed


def _given(faulty: Dump, changed: np.ndarray, leaf: list[bool]) -> set[int]:
    """Ops that read a changed parameter, constant or first input which nothing recorded made, and pass it on.

    Beside the first input are those of its shape: cosine and sine, tokens and labels.
    """
    table = faulty.trace.tensors
    known = (table["parameter"] != "") | table["constant"] | (table["size"] == 1)
    read = [r for r in np.flatnonzero(changed == CHANGED) if faulty.role[r] != "output" and faulty.makers[r] < 0]
    passing = [
        any(changed[w] == CHANGED for w in rows) and leaf[op] for op, rows in enumerate(faulty.writes)
    ]
    first = min((op for op, passes in enumerate(passing) if passes), default=-1)
    found = {faulty.op[row] for row in read if known.iat[row] and passing[faulty.op[row]]}
    if not found:
        early = {table["shape"].iat[row] for row in read if faulty.op[row] <= first}
        found = {faulty.op[row] for row in read if table["shape"].iat[row] in early and passing[faulty.op[row]]}
    return found


def _same_numbers(faulty: Dump, changed: np.ndarray, ops: Iterable[int]) -> set[int]:
    """Ops and module calls that write what these write, rearranged or as it is."""
    prints = {faulty.numbers[row] for op in ops for row in faulty.writes[op] if changed[row] == CHANGED}
    return {
        faulty.op[row] for row, role in enumerate(faulty.role) if role == "output" and faulty.numbers[row] in prints
    }


def _consumers(faulty: Dump, changed: np.ndarray, roots: Iterable[int]) -> set[int]:
    """Where a root computes nothing (a parameter, a rearrangement, a rounding): also the ops that compute with it."""
    found: set[int] = set()
    for root in roots:
        written = [row for row in faulty.writes[root] if changed[row] == CHANGED]
        read = faulty.reads[root]
        if all(any(_copies(faulty, row, source) for source in read) or not read for row in written):
            prints = {faulty.numbers[row] for row in written}
            readers = {
                faulty.op[row] for row in range(len(faulty.op)) if faulty.role[row] != "output"
                and faulty.numbers[row] in prints
            }  # fmt: skip
            found |= readers | _same_numbers(faulty, changed, readers if len(readers) < 8 else ())
    return found


def _copies(faulty: Dump, row: int, source: int) -> bool:
    """Whether a tensor is another rearranged, or rounded to its own dtype."""
    if faulty.numbers[row] == faulty.numbers[source]:
        return True
    table = faulty.trace.tensors
    unit = UNIT_ROUNDOFF.get(str(table["dtype"].iat[row]), 0.0)
    files = table["file"].iat[row] and table["file"].iat[source]
    if not files or table["size"].iat[row] != table["size"].iat[source] or not unit:
        return False
    ours, theirs = (np.asarray(faulty.trace.array(at), dtype=np.float64).ravel() for at in (row, source))
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.abs(ours - theirs) <= 2 * unit * np.abs(theirs)))


def _rewired(
    clean: Dump, faulty: Dump, pairs: list[int], changed: np.ndarray, roots: Iterable[int]
) -> set[int]:
    """Where a root reads another, unchanged value than it does in the clean run: also the ops that made that value.

    So it is where an op was left out: the op before the gap is as right an answer as the one after it.
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
        faulty.op[row] for row, role in enumerate(faulty.role) if role == "output" and faulty.numbers[row] in values
    }


def _fingerprints(values: np.ndarray) -> tuple[str, str]:
    flat = np.asarray(values, dtype=np.float64).ravel() + 0.0  # no negative zero
    return tuple(hashlib.blake2b(v.tobytes(), digest_size=12).hexdigest() for v in (flat, np.sort(flat)))
