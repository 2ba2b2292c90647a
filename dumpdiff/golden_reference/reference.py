"""A golden reference: the results of one recorded step as statistics and checksums, one line each.

The file is JSON with one value on each line, so that a version control system shows which changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import __version__
from ..graph.statistics import STATISTICS, complete_statistics
from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.input_files import read_input_text
from ..model.output_files import write_output_file
from ..model.trace import Problem, Trace

#: To be increased when older versions of dumpdiff cannot read the file, or this one older files.
FORMAT = 1
#: What identifies a value, and what is known of it. ``source`` is the user's line of the op.
KEY = ("op", "slot")
COLUMNS = (*KEY, "phase", "dtype", "shape", *STATISTICS, "digest", "source")
_DIGEST_LENGTH = 16  #: hexadecimal digits; two of a million values are equal by chance: 3e-8
#: Results of ops, and parameters: the inputs of an op are results of others.
_KINDS = ("output", "parameter")


@dataclass(frozen=True)
class GoldenReference:
    """What one step of one rank computed."""

    framework: str
    values: pd.DataFrame  #: the columns of :data:`COLUMNS`, in the order of execution
    problems: tuple[Problem, ...] = ()  #: whole tensors that could not be read


def build_reference(trace: Trace) -> GoldenReference:
    """Return the results of a trace; checksums are of whole tensors, or those that it records."""
    tensors, problems = complete_statistics(trace)
    is_result = tensors["slot_kind"].isin(_KINDS) & ~tensors["constant"]
    results = tensors[is_result]
    ops = trace.ops.iloc[results["op"].to_numpy()]
    columns = {
        "op": ops["name"].to_list(),
        "slot": results["slot"].to_list(),
        "phase": ops["phase"].to_list(),
        "dtype": results["dtype"].to_list(),
        "shape": [_format_shape(shape) for shape in results["shape"]],
        **{name: results[name].to_list() for name in STATISTICS},
        "digest": [_compute_digest(trace, int(row)) for row in results.index],
        "source": ops["source"].to_list(),
    }
    return GoldenReference(trace.source.framework, pd.DataFrame(columns), problems)


def write_reference(reference: GoldenReference, file: Path) -> None:
    """Write a reference, the same bytes for the same values. Raises DumpError if it cannot."""
    head = {
        "golden_format": FORMAT,
        "dumpdiff_version": __version__,
        "framework": reference.framework,
        "columns": COLUMNS,
    }
    rows = []
    for row in reference.values.itertuples(index=False):
        cells = [_encode_cell(cell) for cell in row]
        rows.append(json.dumps(cells, ensure_ascii=False, allow_nan=False))
    text = json.dumps(head, ensure_ascii=False)[:-1] + ', "values": [\n' + ",\n".join(rows)
    write_output_file(file, f"{text}\n]}}\n".encode())


def read_reference(file: Path) -> GoldenReference:
    """Read what :func:`write_reference` wrote. Raises DumpError for anything else."""
    expected = f"{file}: expected a golden reference, as 'dumpdiff golden record' writes it"
    if file.is_dir():
        raise DumpError(f"{expected}, found a folder; the dump comes first")
    try:
        document: Mapping[str, Any] = json.loads(read_input_text(file))
        if document["golden_format"] != FORMAT:
            raise DumpError(f"{expected}, of format {FORMAT}, not {document['golden_format']}")
        if tuple(document["columns"]) != COLUMNS:
            raise DumpError(f"{expected}, with the columns {', '.join(COLUMNS)}")
        values = pd.DataFrame(document["values"], columns=list(COLUMNS))
        for name in STATISTICS:
            values[name] = values[name].map(_decode_number).astype(float)
        return GoldenReference(str(document["framework"]), values)
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DumpError(expected) from error


def _format_shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else "x".join(map(str, shape)) or "scalar"


def _compute_digest(trace: Trace, row: int) -> str:
    """Return the checksum of a value, '' if neither its elements nor a checksum were recorded."""
    if trace.tensors["file"].iat[row]:
        try:
            return _digest_array(trace.array(row))
        except (DumpError, OSError, ValueError):
            return ""  # a problem of the reference: its statistics could not be computed either
    return str(trace.tensors["hash"].iat[row])


def _digest_array(array: AnyArray) -> str:
    content = np.ascontiguousarray(array)
    digest = hashlib.sha256(content.dtype.str.encode())
    digest.update(content.tobytes())
    return digest.hexdigest()[:_DIGEST_LENGTH]


def _encode_cell(cell: Any) -> Any:
    """Return a JSON value; NaN is null, and an infinity is its name."""
    if isinstance(cell, float) and not np.isfinite(cell):
        return None if np.isnan(cell) else str(cell)
    return cell


def _decode_number(cell: float | str | None) -> float:
    return float("nan") if cell is None else float(cell)
