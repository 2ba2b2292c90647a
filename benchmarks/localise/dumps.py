"""A recording for the benchmark: fingerprints of every tensor, and the program of ops."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path

import numpy as np

from dumpdiff import read
from dumpdiff.model.trace import Trace

#: Smallest magnitude of mask fill: models use -1e9, the smallest number of a dtype, or -inf.
MASK_FILL = 1e8


@dataclass(frozen=True)
class Dump:
    """A recording of whole tensors, each with two fingerprints: of its numbers in order, and of its
    sorted numbers.
    """

    trace: Trace
    #: '' if the tensor is not recorded or the recorder is known to write something else
    bits: tuple[str, ...]
    numbers: tuple[str, ...]  #: equal for reshaped, transposed and widened copies

    @cached_property
    def op(self) -> list[int]:
        """Return the op of each tensor."""
        return self.trace.tensors["op"].tolist()

    @cached_property
    def role(self) -> list[str]:
        """Return for each tensor: input, output or parameter."""
        return self.trace.tensors["slot_kind"].tolist()

    @cached_property
    def slots(self) -> dict[tuple[int, str], int]:
        """Return the tensor of each (op, slot)."""
        keys = zip(self.op, self.trace.tensors["slot"], strict=True)
        return {key: row for row, key in enumerate(keys)}

    @cached_property
    def reads(self) -> list[list[int]]:
        """Return the tensors that each op reads; a gradient call reads its forward call's too."""
        table: list[list[int]] = [[] for _ in range(len(self.trace.ops))]
        for row, (op, role) in enumerate(zip(self.op, self.role, strict=True)):
            if role != "output" and self.bits[row]:
                table[op].append(row)
        call_reads = [list(rows) for rows in table]
        for op, forward in enumerate(self.trace.ops["forward"].tolist()):
            if forward >= 0:
                table[op] += call_reads[forward] + self.writes[forward]
        return table

    @cached_property
    def writes(self) -> list[list[int]]:
        """Return the tensors that each op writes."""
        table: list[list[int]] = [[] for _ in range(len(self.trace.ops))]
        for row, (op, role) in enumerate(zip(self.op, self.role, strict=True)):
            if role == "output" and self.bits[row]:
                table[op].append(row)
        return table

    @cached_property
    def makers(self) -> list[int]:
        """Return for each tensor that is read the output that it equals, or that it rearranges.

        -1 if no recorded op produced it.
        """
        recorded = self.trace.tensors["source_tensor"].tolist()
        output_rows: dict[str, int] = {}
        producer_rows = [-1] * len(self.op)
        by_op = [(op, row) for row, op in enumerate(self.op)]
        for _, row in sorted(by_op, key=lambda at: (at[0], self.role[at[1]] == "output", at[1])):
            if not self.bits[row]:
                continue
            if self.role[row] == "output":
                output_rows[self.bits[row]] = row
                output_rows.setdefault(self.numbers[row], row)
            elif recorded[row] >= 0 and self.bits[recorded[row]]:
                producer_rows[row] = recorded[row]
            else:
                producer_rows[row] = output_rows.get(
                    self.bits[row], output_rows.get(self.numbers[row], -1)
                )
        return producer_rows

    @cached_property
    def program(self) -> list[tuple]:
        """Return kind, scope and shapes of each op, without its numbers.

        Equal programs ran the same ops.
        """
        shapes: list[list] = [[] for _ in range(len(self.trace.ops))]
        for op, slot, shape in zip(
            self.op, self.trace.tensors["slot"], self.trace.tensors["shape"], strict=True
        ):
            shapes[op].append((slot, shape))
        kinds, scopes = self.trace.ops["kind"], self.trace.ops["scope"]
        return [
            (kind, scope, tuple(of)) for kind, scope, of in zip(kinds, scopes, shapes, strict=True)
        ]


def load(path: Path) -> Dump:
    """Read a dump of whole tensors and compute the fingerprints."""
    trace = read(path)
    table = trace.tensors
    exact, loose = [""] * len(table), [""] * len(table)
    columns = zip(table["file"], table["constant"], table["max"], table["trusted"], strict=True)
    for row, (file, constant, value, trusted) in enumerate(columns):
        if file and trusted:
            exact[row], loose[row] = _compute_fingerprints(trace.array(row))
        elif constant and not file and np.isfinite(value):
            exact[row] = loose[row] = f"={value!r}"
    return Dump(trace, tuple(exact), tuple(loose))


def is_same_recording(first: Dump, second: Dump) -> bool:
    """Return whether two recordings of one program are equal to the last bit.

    The benchmark assumes that they are.
    """
    return first.program == second.program and first.bits == second.bits


def pair_ops(clean: Dump, faulty: Dump) -> list[int]:
    """Return for each op of the faulty dump the same op of the clean dump, or -1 if it has none."""
    table = [-1] * len(faulty.program)
    matcher = SequenceMatcher(None, clean.program, faulty.program, autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            table[block.b + step] = block.a + step
    return table


def compute_distance(
    target_dump: Dump, target_row: int, reference_dump: Dump, reference_row: int
) -> float:
    """Return the relative L2 distance of two tensors, element by element in memory order.

    Elements that are mask fill in both are left out: their norm would hide all others. Infinite if
    the tensors cannot be compared.
    """
    files = [
        dump.trace.tensors["file"].iat[tensor_row]
        for dump, tensor_row in ((target_dump, target_row), (reference_dump, reference_row))
    ]
    if not all(files):
        return float("inf")
    a, b = (
        np.asarray(d.trace.array(tensor_row), dtype=np.float64).ravel()
        for d, tensor_row in ((target_dump, target_row), (reference_dump, reference_row))
    )
    if a.size != b.size:
        return float("inf")
    is_fill = (np.abs(a) >= MASK_FILL) & (np.abs(b) >= MASK_FILL) & (np.sign(a) == np.sign(b))
    a, b = a[~is_fill], b[~is_fill]
    scale = float(np.linalg.norm(b))
    with np.errstate(invalid="ignore"):
        gap = float(np.linalg.norm(a - b))
    return gap / scale if scale and np.isfinite(gap) else 0.0 if gap == 0 else float("inf")


def _compute_fingerprints(values: np.ndarray) -> tuple[str, str]:
    flat = np.where(values == 0, 0.0, values).astype(np.float64).ravel()  # no negative zero
    return tuple(
        hashlib.blake2b(v.tobytes(), digest_size=12).hexdigest() for v in (flat, np.sort(flat))
    )
