"""Complete a dump of statistics with the whole tensors of a narrowed dump of the same run.

``dumpdiff narrow`` asks for whole tensors of a few ops. Alone they are pieces without a network
around them. Joined to the statistics of everything, they keep what the first comparison knew: the
dataflow, the pairs and what agrees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Ints
from ..model.errors import DumpError
from ..model.formatting import format_names
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text
from ..model.trace import Problem, Trace

#: The file in the folder of ``dumpdiff narrow`` that lists what was asked for.
REQUEST_FILE = "narrowed.json"
#: Ops without whole tensors that a sentence names.
_MAX_NAMES = 3


@dataclass(frozen=True)
class CompletedTrace:
    """A first dump with whole tensors of a narrowed one, and what of the request is in it."""

    trace: Trace
    requested_ops: tuple[str, ...]
    missing_ops: tuple[str, ...]  #: requested ops without any whole tensor

    def summarize(self, side: str, folder: Path) -> str:
        """Return a sentence: how many of the requested ops were recorded, and which were not."""
        n_requested = len(self.requested_ops)
        n_recorded = n_requested - len(self.missing_ops)
        text = (
            f"{folder}: whole tensors of {n_recorded} of the {n_requested} ops that were to be "
            f"dumped of the {side}"
        )
        if not self.missing_ops:
            return text
        return f"{text}; missing: {format_names(self.missing_ops, _MAX_NAMES)}"


def format_request(ops_by_side: Mapping[str, Sequence[str]]) -> str:
    """Return the text of the request file: the ops to dump, by side."""
    return json.dumps({side: list(ops) for side, ops in ops_by_side.items()}, indent=1) + "\n"


def read_request(folder: Path, side: str) -> tuple[str, ...]:
    """Return the ops of a side that a folder of ``dumpdiff narrow`` asks for. Raises DumpError."""
    file = folder / REQUEST_FILE
    try:
        ops = json.loads(read_input_text(file, MAX_WRITTEN_BYTES))[side]
    except OSError as error:
        raise DumpError(
            f"{file}: {error.strerror}; give the folder that dumpdiff narrow wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{file}: expected what dumpdiff narrow writes") from error
    if not isinstance(ops, list) or not all(isinstance(name, str) for name in ops):
        raise DumpError(f"{file}: expected a list of names of ops of the {side}")
    return tuple(ops)


def complete_trace(first: Trace, narrowed: Trace, requested_ops: Sequence[str]) -> CompletedTrace:
    """Return ``first`` with the whole tensors of ``narrowed`` in the same slots of the same ops.

    What ``first`` holds as a whole stays. Values of the narrowed dump itself are not compared here:
    whoever reads a file holds it against its record.
    """
    rows, narrowed_rows = _match_slots(first, narrowed)
    files = [
        str(Path(narrowed.source.path) / file)
        for file in narrowed.tensors["file"].iloc[narrowed_rows]
    ]
    narrowed_files = dict(zip(files, narrowed.tensors["file"].iloc[narrowed_rows], strict=True))

    def load(file: str) -> AnyArray:
        trace = narrowed if file in narrowed_files else first
        if trace.load is None:
            raise KeyError(f"{file} of {trace.source.path} is not a whole tensor")
        return trace.load(narrowed_files.get(file, file))

    column = first.tensors["file"].to_numpy(copy=True)
    column[rows] = files
    tensors = first.tensors.assign(file=pd.Series(column, dtype=object))
    problems = tuple(
        replace(problem, file=str(Path(narrowed.source.path) / problem.file))
        for problem in narrowed.problems
        if _is_about_files(problem, narrowed)
    )
    trace = replace(first, tensors=tensors, load=load, problems=(*first.problems, *problems))
    return CompletedTrace(trace, tuple(requested_ops), _list_missing_ops(narrowed, requested_ops))


def _match_slots(first: Trace, narrowed: Trace) -> tuple[Ints, Ints]:
    """Return rows of ``first`` without a whole tensor, and the rows of ``narrowed`` with it."""
    rows_by_slot: dict[tuple[str, str], int] = {}
    for row, (key, file) in enumerate(
        zip(_list_slots(narrowed), narrowed.tensors["file"], strict=True)
    ):
        if file:
            rows_by_slot.setdefault(key, row)
    pairs = [
        (row, rows_by_slot[key])
        for row, (key, file) in enumerate(
            zip(_list_slots(first), first.tensors["file"], strict=True)
        )
        if not file and key in rows_by_slot
    ]
    rows, narrowed_rows = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return rows, narrowed_rows


def _list_slots(trace: Trace) -> list[tuple[str, str]]:
    """Return (name of the op, slot) of every tensor.

    MindSpore's names have '_' for '/' in a dump without graphs, so both are written with '_'.
    """
    names = trace.ops["name"].map(_normalize_name).to_numpy()[trace.tensors["op"].to_numpy()]
    return list(zip(names.tolist(), trace.tensors["slot"].tolist(), strict=True))


def _normalize_name(name: str) -> str:
    return name.replace("/", "_")


def _list_missing_ops(narrowed: Trace, requested_ops: Sequence[str]) -> tuple[str, ...]:
    """Return the requested ops of which the narrowed dump has no whole tensor."""
    has_file = (narrowed.tensors["file"] != "").to_numpy()
    recorded_ops = narrowed.tensors["op"].to_numpy()[has_file]
    recorded_names = {
        _normalize_name(name).partition("#")[0]
        for name in narrowed.ops["name"].to_numpy()[recorded_ops]
    }
    return tuple(name for name in requested_ops if _normalize_name(name) not in recorded_names)


def _is_about_files(problem: Problem, narrowed: Trace) -> bool:
    """Return whether a problem is about a damaged file; that a record is absent was asked for."""
    return problem.weakens and problem.file in set(narrowed.tensors["file"])
