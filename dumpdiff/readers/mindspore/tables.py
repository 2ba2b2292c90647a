"""Build the op and tensor tables of a trace from the records and dataflow of a MindSpore dump."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ...model.trace import OPTIMIZER, Problem
from .communications import build_communications
from .file_names import encode_op_name
from .graph import Dataflow
from .graph_rows import GraphRows
from .join import Join
from .phases import assign_phases
from .record_columns import list_record_columns
from .records import Records
from .rows import Rows


class Tables(NamedTuple):
    """The tables of a trace, and what came up while they were built."""

    ops: pd.DataFrame
    tensors: pd.DataFrame
    n_matched: int  #: records whose op is in the graph
    problems: list[Problem]  #: records that are not of the type that the graph gives
    communications: pd.DataFrame


def build_tables(
    records: Records, flow: Dataflow | None, join: Join | None, device: str = ""
) -> Tables:
    """Return the op table and the tensor table. ``device`` is that of the run, '' if unknown.

    Parameters and graph inputs come first, then the ops of the graph in topological order (once for
    each recorded run), then the ops that are not in the graph, by time.
    """
    rows = Rows(records)
    n_matched = 0
    if flow is None or join is None:
        rows.add_unlinked_ops(records.build_columns(), parameters_first=True)
    else:
        rows.add_records(records)
        phases = assign_phases(flow)
        full_names = {encode_op_name(name): name for name in flow.parameters}
        rows.add_parameters(full_names, flow, trusted=OPTIMIZER not in phases)
        GraphRows(rows, flow, join, phases, device).add_ops()
        pending = [record for op_records in rows.pending.values() for record in op_records]
        n_matched = len(records.places) - len(pending)
        rows.add_unlinked_ops(list_record_columns(pending), parameters_first=False)
    return Tables(
        rows.build_op_table(),
        rows.build_tensor_table(),
        n_matched,
        rows.list_problems(),
        build_communications(rows.communications),
    )
