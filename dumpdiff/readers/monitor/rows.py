"""The rows of a CSV file of msprobe's monitors: one tensor, with its statistics, of one step.

Version 1 (``TrainerMon``) has the kind of its tensors in the name of the file,
``grad_reduced_0-0.csv``, and writes six decimals. Version 2 (``TrainerMonitorV2``) has a column
``scope`` and writes all digits.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import open_input_text, read_head
from ...model.trace import BACKWARD, FORWARD, Problem
from ...tensor_files.npy import validate_shape

#: What the tensors of a file are, as version 2 calls it in its column ``scope``.
REDUCED, UNREDUCED = "reduced", "unreduced"  #: gradients after, and before their exchange
OLD_PARAMETER, NEW_PARAMETER = "param_origin", "param_updated"
#: The same in the file names of version 1.
_SCOPES_V1 = {
    "actv": FORWARD,
    "actv_grad": BACKWARD,
    "grad_reduced": REDUCED,
    "grad_unreduced": UNREDUCED,
}
_FILE_V1 = re.compile(r"(?P<scope>[a-z_]+)_\d+-\d+\.csv")
_FIRST_COLUMN = b"vpp_stage,"
_HEAD_SIZE = 4096
_NAME_COLUMNS = ("name", "module_name")  #: of version 1 and of version 2
#: Half of the last decimal of version 1.
ROUNDING_V1 = 5e-7
_STATISTICS = ("max", "min", "mean", "norm")
_SHAPE = re.compile(r"\[(\d{1,9}(, \d{1,9})*)?\]", re.ASCII)
_MAX_DIGITS = 15  #: of a step and of a stage
_RANK = re.compile(r"(?:^|-)rank_?(\d{1,9})(?:-|$)")


@dataclass(frozen=True)
class Row:
    """One tensor of one step."""

    name: str
    step: int  #: counts from 0
    scope: str  #: ``forward``, ``backward``, ``reduced``, ...
    stage: int  #: of a virtual pipeline; 0 or -1 if there is one only
    micro_step: int
    statistics: tuple[float, float, float, float]  #: max, min, mean, norm; NaN if not there
    nonfinite: int  #: 1 if the tensor has NaN or Inf, 0 if it has none, -1 if unknown
    dtype: str
    shape: tuple[int, ...] | None
    rounding: float  #: half of the last decimal of the statistics; 0 if they have all digits

    @property
    def norm(self) -> float:
        """The L2 norm; NaN if it was not written."""
        return self.statistics[3]

    @property
    def is_empty(self) -> bool:
        """Whether there was no tensor: msprobe writes nan for each number of it."""
        return self.nonfinite < 0 and all(map(math.isnan, self.statistics))


def is_monitor_file(head: bytes) -> bool:
    """Return whether a file that begins like this is a CSV file of a monitor."""
    return head.startswith(_FIRST_COLUMN)


def find_rank(file: Path) -> int | None:
    """Return the rank in the name of a file's folder, None if there is none."""
    match = _RANK.search(file.parent.name)
    return int(match[1]) if match else None


def list_columns(file: Path) -> list[str]:
    """Return the columns of a file of a monitor; none if it is another file."""
    head = read_head(file, _HEAD_SIZE)
    if not is_monitor_file(head):
        return []
    return head.partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")


def find_scope_v1(file: Path) -> str:
    """Return what the tensors of a file of version 1 are, '' for other names of files."""
    match = _FILE_V1.fullmatch(file.name)
    return "" if match is None else _SCOPES_V1.get(match["scope"], match["scope"])


def read_rows(file: Path) -> tuple[list[Row], list[Problem]]:
    """Return the rows of a file, and what is wrong with others.

    Raises DumpError if the file cannot be opened.
    """
    rows, problems = [], []
    scope = "" if "scope" in list_columns(file) else find_scope_v1(file)
    try:
        with open_input_text(file, newline="") as stream:
            reader = csv.DictReader(stream)
            for record in reader:
                row = _parse_row(record, scope)
                if row is None:
                    message = "expected a name, a step and numbers; the row was left out"
                    problems.append(Problem(file.name, message, reader.line_num, weakens=True))
                else:
                    rows.append(row)
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from None
    except csv.Error as error:
        message = f"broken CSV ({error}); the rest was left out"
        problems.append(Problem(file.name, message, weakens=True))
    return rows, problems


def _parse_row(record: Mapping[str, str | None], scope_v1: str) -> Row | None:
    if None in record.values():  # the row ends before its last column
        return None
    name = next((text for key in _NAME_COLUMNS if (text := record.get(key))), None)
    step = _parse_count(record.get("step"))
    numbers = [_parse_number(record.get(key, "nan")) for key in _STATISTICS]
    if name is None or step is None or None in numbers:
        return None
    high, low, mean, norm = (math.nan if number is None else number for number in numbers)
    return Row(
        name=name,
        step=step,
        scope=scope_v1 or str(record.get("scope")),
        stage=_parse_count(record.get("vpp_stage")) or 0,
        micro_step=_parse_count(record.get("micro_step")) or 0,
        statistics=(high, low, mean, norm),
        nonfinite=_find_nonfinite(record.get("nans"), high, low),
        dtype=normalize_dtype(record.get("dtype") or ""),
        shape=_parse_shape(record.get("shape") or ""),
        rounding=ROUNDING_V1 if scope_v1 else 0.0,
    )


def _find_nonfinite(n_nan: str | None, high: float, low: float) -> int:
    count = _parse_number(n_nan)
    if math.isinf(high) or math.isinf(low) or (count is not None and count > 0):
        return 1
    return 0 if math.isfinite(high) and math.isfinite(low) else -1


def _parse_count(text: str | None) -> int | None:
    """Return a number of a few digits, None for other words."""
    word = (text or "").strip()
    return int(word) if word.isdecimal() and len(word) <= _MAX_DIGITS else None


def _parse_number(text: str | None) -> float | None:
    """Return a number, None for other words and where a row ends before its last column."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the shape in '[64, 16]', None if it is not known."""
    if not _SHAPE.fullmatch(text):
        return None
    return validate_shape(int(word) for word in text[1:-1].split(", ") if word)
