"""Read a dump of a single part, and look up ops and tensors of its trace by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from dumpdiff import readers
from dumpdiff.model.trace import Trace


def find_single_part(path: Path) -> readers.Part:
    """Return the only part of the dump at ``path``."""
    (part,) = readers.find_parts(path)
    return part


def read_trace(path: Path) -> Trace:
    """Return the trace of the only part of the dump at ``path``."""
    return readers.read_part(find_single_part(path))


def select_op(trace: Trace, name: str) -> pd.Series:
    """Return the row of the op of that name; its ``name`` attribute is the id of the op."""
    (op,) = np.flatnonzero(trace.ops["name"] == name)
    return trace.ops.loc[op]


def select_slots(trace: Trace, op_name: str) -> pd.DataFrame:
    """Return the tensors of the op of that name, indexed by slot."""
    op = select_op(trace, op_name).name
    return trace.tensors[trace.tensors["op"] == op].set_index("slot")
