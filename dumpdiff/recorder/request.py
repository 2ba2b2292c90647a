"""What ``dumpdiff narrow`` asks of a recorder: whole tensors of a few calls of the same step.

Two recordings of one run number their tensors alike, so the numbers of the first one say which.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text

_KEY = "dumpdiff_record_request"
_VERSION = 1


@dataclass(frozen=True)
class RecordRequest:
    """The tensors of one step and rank that are to be written whole."""

    step: int
    rank: int
    tensors: frozenset[int]  #: their numbers in the manifest

    def format(self) -> str:
        """Return the text of the file."""
        document = {
            _KEY: _VERSION,
            "step": self.step,
            "rank": self.rank,
            "tensors": sorted(self.tensors),
        }
        return json.dumps(document) + "\n"


def read_request(path: Path) -> RecordRequest:
    """Return the request in a file. Raises DumpError if it is none."""
    try:
        document = json.loads(read_input_text(path, MAX_WRITTEN_BYTES))
    except OSError as error:
        raise DumpError(
            f"{path}: {error.strerror}; give the file that dumpdiff narrow wrote"
        ) from (error)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: broken JSON ({error}); run dumpdiff narrow again") from None
    match document:
        case {"step": int(step), "rank": int(rank), "tensors": [*tensors]} if document.get(
            _KEY
        ) == _VERSION and all(_is_index(number) for number in tensors):
            return RecordRequest(step, rank, frozenset(tensors))
    raise DumpError(
        f"{path}: expected a request for a recording (SIDE_record.json), which dumpdiff narrow "
        "writes for recordings"
    )


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0
