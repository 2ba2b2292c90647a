"""The records of a recording that can be damaged, and what each of them holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import dumps

#: What is damaged, in the order of the tables.
SUBJECTS = ("forward input", "forward output", "gradient", "parameter", "optimizer")


@dataclass(frozen=True)
class Record:
    """One tensor of one op, as it was recorded."""

    op: str
    slot: str
    subject: str  #: one of SUBJECTS
    file: str  #: of the whole tensors, relative to the dump
    size: int
    dtype: str
    content: str  #: equal for records of equal numbers in equal order

    @property
    def name(self) -> str:
        """Return op and slot."""
        return f"{self.op} {self.slot}"


def list_records(recording: Path) -> list[Record]:
    """Return the records of a recording of whole tensors that hold computed numbers.

    Left out are immediate values (axes, shapes), tensors without a file, empty tensors, and records
    of which the reader knows that the recorder writes something else (``trusted`` is false): their
    numbers say nothing of the run, so nobody can know that they are damaged.
    """
    dump = dumps.load(recording)
    trace = dump.trace
    folder = Path(trace.source.path).resolve().relative_to(recording.resolve())
    tensors = trace.tensors
    op_rows = tensors["op"].to_numpy()
    columns = zip(
        trace.ops["name"].to_numpy()[op_rows],
        tensors["slot"],
        trace.ops["phase"].to_numpy()[op_rows],
        tensors["slot_kind"],
        tensors["parameter"],
        tensors["file"],
        tensors["size"],
        tensors["dtype"],
        tensors["constant"],
        dump.bits,
        strict=True,
    )
    records = []
    for op, slot, phase, slot_kind, parameter, file, size, dtype, constant, bits in columns:
        if bits and file and size and not constant:
            subject = _name_subject(phase, slot_kind, parameter)
            records.append(Record(op, slot, subject, str(folder / file), size, dtype, bits))
    return records


def group_by_content(records: list[Record]) -> dict[str, list[Record]]:
    """Return content -> all records that hold it."""
    groups: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.content].append(record)
    return dict(groups)


def _name_subject(phase: str, slot_kind: str, parameter: str) -> str:
    if phase == "optimizer":
        return "optimizer"
    if parameter or slot_kind == "parameter":
        return "parameter"
    if phase == "backward":
        return "gradient"
    return "forward input" if slot_kind == "input" else "forward output"
