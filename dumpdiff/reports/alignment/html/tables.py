"""The tables of a result as columns for the page, and the row of each finding in the pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ....model.finding import Finding
from ....model.result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS, Result
from ....model.trace import flag_words
from ...page.packed_tables import Table

NONFINITE = "not finite"
_STATISTICS = ("max", "min", "mean", "norm")
_TENSOR_IDS = ("target", "reference")  #: columns that are of no use to a person


def compute_error_ratio(pairs: pd.DataFrame) -> pd.Series[float]:
    """Return error over tolerance of each pair.

    It is infinite where values are non-finite on one side only, NaN where nothing was compared.
    """
    error = pairs["error"].to_numpy(dtype=float)
    tolerance = pairs["tolerance"].to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(error == 0, 0.0, error / tolerance)
    ratios[pairs["nonfinite_mismatch"].to_numpy(dtype=float) > 0] = np.inf
    return pd.Series(ratios, index=pairs.index)


def find_nonfinite(pairs: pd.DataFrame) -> pd.Series[bool]:
    """Return which pairs have an infinity or NaN on a side.

    Statistics that are NaN count if the other side's are not: if both are, none may be recorded.
    """
    is_nonfinite = pairs["nonfinite_mismatch"] > 0
    has_statistics = []
    for side in ("target", "reference"):
        statistics = pairs[[f"{side}_{name}" for name in _STATISTICS]].astype(float)
        is_nonfinite |= np.isinf(statistics).any(axis=1)
        has_statistics.append(statistics.notna().any(axis=1))
    return is_nonfinite | (has_statistics[0] != has_statistics[1])


def build_pairs_table(result: Result) -> Table:
    """Return the columns of PAIR_COLUMNS without tensor ids, and two that are computed.

    ``ratio`` is error over tolerance, ``values`` says which pairs are not finite.
    """
    columns = {name: result.pairs[name] for name in PAIR_COLUMNS if name not in _TENSOR_IDS}
    values = np.where(find_nonfinite(result.pairs), NONFINITE, "")
    return columns | {"ratio": compute_error_ratio(result.pairs), "values": values}


def build_uncompared_table(result: Result) -> Table:
    """Return every column of UNCOMPARED_COLUMNS."""
    return {name: result.uncompared[name] for name in UNCOMPARED_COLUMNS}


def build_unmatched_table(result: Result) -> Table:
    """Return every column of UNMATCHED_COLUMNS."""
    return {name: result.unmatched[name] for name in UNMATCHED_COLUMNS}


def find_rows_of_ops(pairs: pd.DataFrame) -> Mapping[str, Mapping[str, int]]:
    """Return by side and op name the row of the op's worst pair, outputs before inputs."""
    is_output = flag_words(pairs["target_slot"], lambda slot: slot.startswith("output"))
    ratios = compute_error_ratio(pairs).fillna(-1.0).to_numpy()
    order = np.lexsort((-ratios, ~is_output))[::-1]  # of several rows of an op, the last one counts
    rows_by_side = {}
    for side in ("target", "reference"):
        names = pairs[f"{side}_op"].to_numpy()[order].tolist()
        rows_by_side[side] = dict(zip(names, order.tolist(), strict=True))
    return rows_by_side


def find_row(finding: Finding, pairs: pd.DataFrame) -> int:
    """Return the row of the pair at which a finding begins, -1 if it has none."""
    has_target_op = pairs["target_op"].isin(finding.target_ops)
    has_ops = has_target_op & pairs["reference_op"].isin(finding.reference_ops)
    rows = np.flatnonzero(has_ops.to_numpy())
    is_place = pairs["state"].iloc[rows].isin(("introduced", "isolated")).tolist()
    slots_t, slots_r = pairs["target_slot"].iloc[rows], pairs["reference_slot"].iloc[rows]
    slots = zip(slots_t.tolist(), slots_r.tolist(), strict=True)
    for row, begins_here, slot_pair in zip(rows.tolist(), is_place, slots, strict=True):
        if begins_here and slot_pair in finding.slots:
            return int(row)
    return int(rows[0]) if len(rows) else -1
