"""Records that a dump lacks although the rest of it says that they were made."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.trace import Trace
from .contradictions import Check, Contradiction
from .descriptions import build_contradiction

#: Share of the other slots of one kind of operator that must be recorded for a gap to be a loss.
_MIN_RECORDED_SHARE = 0.5
#: Share of the tensors that may be missing; more were left out by the recorder.
_MAX_MISSING_SHARE = 0.01
_GRAPH_INPUTS_CHECK = "parameters and inputs that ops read"


def check_completeness(trace: Trace) -> tuple[Check, ...]:
    """Return the checks of what the graph of a dump lists: slots of ops, and its inputs."""
    return check_slots(trace), check_graph_inputs(trace)


def check_slots(trace: Trace) -> Check:
    """Check that the slots which the graph lists for an op were recorded.

    A slot without a record is lost if the op has other records and few slots are missing in all:
    if other ops of its kind have it, or if there is no other such op and the other end of its edge
    was recorded.
    """
    tensors = trace.tensors
    is_recorded = _flag_recorded(tensors)
    ops = tensors["op"].to_numpy()
    has_record = np.zeros(len(trace.ops), dtype=bool)
    has_record[ops[is_recorded]] = True
    is_empty = (tensors["size"] == 0).to_numpy()
    rows = np.flatnonzero(~is_empty & has_record[ops])
    n_others, shares = _compute_shares_of_others(trace, rows, is_recorded)
    is_alone = (n_others == 0) & _flag_known_values(tensors, is_recorded)[rows]
    is_lost = ~is_recorded[rows] & ((shares > _MIN_RECORDED_SHARE) | is_alone)
    contradictions = []
    if is_lost.sum() <= max(1.0, _MAX_MISSING_SHARE * len(rows)):
        for row, alone in zip(rows[is_lost].tolist(), is_alone[is_lost].tolist(), strict=True):
            kind = trace.ops["kind"].iat[int(ops[row])]
            computed = f"other {kind} ops have this slot"
            if alone:
                computed = "the value was recorded where another op reads or writes it"
            item = build_contradiction(trace, "missing", row, "not recorded", computed)
            contradictions.append(item)
    n_checked = len(rows) if (tensors["source_tensor"] >= 0).any() else 0
    return Check("slots that the graph lists", n_checked, tuple(contradictions))


def _compute_shares_of_others(
    trace: Trace, rows: Ints, is_recorded: Flags
) -> tuple[Floats, Floats]:
    """Return how many other ops of its kind have each slot, and the share that recorded it."""
    tensors = trace.tensors
    kind_codes, _ = pd.factorize(trace.ops["kind"])
    slot_codes, slots = pd.factorize(tensors["slot"])
    keys = kind_codes[tensors["op"].to_numpy()[rows]] * len(slots) + slot_codes[rows]
    groups, _ = pd.factorize(2 * keys + tensors["constant"].to_numpy()[rows])
    is_own = is_recorded[rows]
    n_others: Floats = np.bincount(groups)[groups] - 1.0
    n_recorded = np.bincount(groups, weights=is_own)[groups] - is_own
    return n_others, n_recorded / np.maximum(n_others, 1)


def _flag_known_values(tensors: pd.DataFrame, is_recorded: Flags) -> Flags:
    """Return (tensors,) which values were recorded at the other end of an edge of the graph."""
    sources = tensors["source_tensor"].to_numpy()
    has_source = sources >= 0
    flags = np.zeros(len(tensors), dtype=bool)
    flags[has_source] = is_recorded[sources[has_source]]
    flags[sources[has_source & is_recorded]] = True
    return flags


def check_graph_inputs(trace: Trace) -> Check:
    """Check that the parameters and inputs of the graph that ops read have records of their own.

    One without is lost if most others have one and few are missing.
    """
    tensors = trace.tensors
    kinds = trace.ops["kind"].to_numpy()[tensors["op"].to_numpy()]
    sources = tensors["source_tensor"].to_numpy()
    is_read = (tensors["slot_kind"].to_numpy() == "input") & ~tensors["constant"].to_numpy()
    is_own = np.zeros(len(tensors), dtype=bool)
    has_source = sources >= 0
    is_own[has_source] = kinds[sources[has_source]] == "Parameter"
    n_present = len(np.unique(sources[is_own]))
    if not n_present:  # no record of any of them, as in dumps without a graph
        return Check(_GRAPH_INPUTS_CHECK, 0)
    readers: defaultdict[object, list[int]] = defaultdict(list)
    is_lacking = is_read & ~has_source & _flag_recorded(tensors)
    names, content = tensors["parameter"].tolist(), tensors["content"].tolist()
    for row in np.flatnonzero(is_lacking).tolist():
        readers[names[row] or content[row] or row].append(row)
    contradictions: list[Contradiction] = []
    n_total = n_present + len(readers)
    if n_present > _MIN_RECORDED_SHARE * n_total and len(readers) <= max(
        1.0, _MAX_MISSING_SHARE * n_total
    ):
        for rows in readers.values():
            value = names[rows[0]] or "an input of the graph"
            recorded = f"reads {value}, which has no record of its own"
            computed = f"{n_present:,} other parameters and inputs of the graph have one"
            item = build_contradiction(trace, "missing", rows[0], recorded, computed)
            contradictions.append(item)
    return Check(_GRAPH_INPUTS_CHECK, n_total, tuple(contradictions))


def _flag_recorded(tensors: pd.DataFrame) -> Flags:
    """Return which rows of the tensor table have a file, a statistic or a checksum.

    The statistics of a constant may come from the graph, and are no record.
    """
    has_numbers = tensors[["max", "min", "mean", "norm"]].notna().any(axis=1)
    has_numbers |= tensors["nonfinite"] >= 0
    is_recorded = has_numbers & ~tensors["constant"]
    is_recorded |= (tensors["file"] != "") | (tensors["hash"] != "")
    flags: Flags = is_recorded.to_numpy()
    return flags
