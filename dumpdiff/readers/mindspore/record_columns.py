"""The records of a MindSpore dump as columns of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...model.arrays import Ints, Objects
from .file_names import encode_op_name
from .record import Record
from .statistic_csv import Statistics

#: Attributes of a record that are a column of Python objects.
_OBJECTS = ("kind", "name", "io", "dtype", "shape", "file", "full_name")
_NUMBERS = ("slot", "occurrence", "time", "row")  #: attributes that are a column of numbers


class RecordColumns(NamedTuple):
    """Recorded tensors, one row each, as described in :class:`Record`."""

    kind: Objects
    name: Objects
    io: Objects
    slot: Ints
    occurrence: Ints
    time: Ints
    dtype: Objects
    shape: Objects
    file: Objects
    full_name: Objects
    row: Ints
    content: Ints  #: fingerprint of the file, 0 if none


def list_record_columns(records: Iterable[Record]) -> RecordColumns:
    """Return the columns of records, in their order."""
    records = list(records)
    columns: dict[str, Any] = {
        name: _build_objects([getattr(record, name) for record in records]) for name in _OBJECTS
    }
    for name in _NUMBERS:
        columns[name] = np.array([getattr(record, name) for record in records], dtype=np.int64)
    columns["content"] = np.array([record.hash_content() for record in records], dtype=np.int64)
    return RecordColumns(**columns)


def read_csv_columns(statistics: Statistics) -> RecordColumns:
    """Return the rows of a statistic.csv by time.

    The same op recorded again (in a loop, or by a second run) gets the next occurrence.
    """
    order = np.argsort(statistics.time, kind="stable")
    name_codes, names = pd.factorize(statistics.name[order])
    encoded_names = _build_objects([encode_op_name(name) for name in names])
    io, slot = statistics.io[order], statistics.slot[order]
    op_codes = pd.factorize(encoded_names)[0][name_codes]
    nothing = np.full(len(order), "", dtype=object)
    return RecordColumns(
        kind=statistics.kind[order],
        name=encoded_names[name_codes],
        io=io,
        slot=slot,
        occurrence=_count_occurrences(op_codes, io, slot),
        time=statistics.time[order],
        dtype=statistics.dtype[order],
        shape=statistics.shape[order],
        file=nothing,
        full_name=nothing,
        row=order,
        content=np.zeros(len(order), dtype=np.int64),
    )


def _count_occurrences(op: Ints, io: Objects, slot: Ints) -> Ints:
    """Return for each row how many rows before it are of the same slot of the same op.

    ``op`` has a number for each name of an op.
    """
    places = pd.DataFrame({"op": op, "io": io == "input", "slot": slot})
    is_repeated = places.duplicated().to_numpy()
    if not is_repeated.any():
        return np.zeros(len(slot), dtype=np.int64)
    counts: Ints = places.groupby(["op", "io", "slot"]).cumcount().to_numpy()
    return counts


def _build_objects(values: Sequence[Any]) -> Objects:
    """Return an array of Python objects, also of tuples."""
    return np.fromiter(values, dtype=object, count=len(values))
