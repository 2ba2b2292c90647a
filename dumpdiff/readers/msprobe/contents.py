"""What records of msprobe's dump.json say of the contents of tensors, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from .. import call_records
from ..call_records import RecordedStatistics
from .dump_json import Json

_STATISTICS = ("Max", "Min", "Mean", "Norm")
_PARSED_ROWS = 1 << 14  #: statistics that become arrays at once; few rows take longer each


@dataclass
class RecordContents:
    """Statistics, checksums and files of records, in the order in which they are added."""

    checksums: list[str] = field(default_factory=list)  #: '' where none is recorded
    files: list[Any] = field(default_factory=list)  #: as recorded
    _blocks: list[RecordedStatistics] = field(default_factory=list)
    #: max, min, mean and norm as recorded, of the rows after those in ``_blocks``
    _recorded: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], []))

    def __len__(self) -> int:
        return len(self.files)

    def add(self, columns: dict[str, list[Any]], n_records: int) -> None:
        """Add records, given as the columns of their keys."""
        nothing = [None] * n_records
        for column, name in zip(self._recorded, _STATISTICS, strict=True):
            column.extend(columns.get(name, nothing))
        checksums = columns.get("md5", nothing)
        self.checksums += [str(checksum) if checksum else "" for checksum in checksums]
        self.files += columns.get("data_name", nothing)
        if len(self._recorded[0]) >= _PARSED_ROWS:
            self._parse_recorded()

    def get_statistics(self) -> RecordedStatistics:
        """Return the statistics of all records."""
        self._parse_recorded()
        return RecordedStatistics.concatenate(self._blocks)

    def _parse_recorded(self) -> None:
        """Make arrays of what was recorded; the numbers of JSON take four times the memory."""
        self._blocks.append(call_records.parse_statistics(self._recorded))
        for column in self._recorded:
            column.clear()


def list_columns(records: Sequence[Json]) -> dict[str, list[Any]]:
    """Return the values of every key that a record has, None for the records without it.

    >>> list_columns([{"Max": 2, "Min": 1}, {"Max": 3}])
    {'Max': [2, 3], 'Min': [1, None]}
    """
    key_tuples = dict.fromkeys(map(tuple, records))
    if len(key_tuples) == 1:
        (keys,) = key_tuples
        values = list(chain.from_iterable(map(dict.values, records)))
        return {key: values[position :: len(keys)] for position, key in enumerate(keys)}
    all_keys = dict.fromkeys(chain.from_iterable(key_tuples))
    return {key: [record.get(key) for record in records] for key in all_keys}
