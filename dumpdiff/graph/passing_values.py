"""Values that are only passed on: read in a short part of the run, after results of other ops.

A buffer is read over a longer stretch, and a first input before anything was computed.
"""

from __future__ import annotations

import numpy as np

from ..model.arrays import Flags, Ints
from ..model.int_lists import IntLists

#: Ops before the first consumer that are searched: a decoder layer or two.
WINDOW = 48
#: Share of the run. A value that is read over a longer stretch is a buffer, not a missing edge.
_MAX_SPAN = 0.25


def flag_passing_values(
    consumers: IntLists, first_ops: Ints, phases: Ints, has_results: Flags
) -> Flags:
    """Return (classes,) whether a value is read in a short part of the run, after results.

    ``consumers`` are the ops that read each class, ``first_ops`` (classes,) those before which it
    is read first, ``phases`` (ops,) numbers of the phases of ops, and ``has_results`` (ops,)
    whether an op writes something. Only the reads in the phase of the first one count.
    """
    is_read = first_ops >= 0
    rows, ops = consumers.rows, consumers.values
    is_in_phase = phases[ops] == phases[first_ops[rows]]
    last_ops = first_ops.copy()
    last_ops[rows[is_in_phase]] = ops[is_in_phase]  # they are in order: the last one counts
    spans = (last_ops - first_ops) / max(1, len(phases))
    n_before = np.append(0, np.cumsum(has_results))  # results of the ops before each op
    first_ops = np.maximum(first_ops, 0)
    is_preceded = n_before[first_ops] > n_before[np.maximum(first_ops - WINDOW, 0)]
    flags: Flags = is_read & is_preceded & (spans < _MAX_SPAN)
    return flags
