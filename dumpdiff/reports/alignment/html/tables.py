"""The tables of a result as columns for the page, and the row of each finding in the pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ....model.finding import Finding
from ....model.result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS, Result
from ...page.packed_tables import Table

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


def build_pairs_table(result: Result) -> Table:
    """Return the columns of PAIR_COLUMNS without tensor ids, and error over tolerance."""
    columns = {name: result.pairs[name] for name in PAIR_COLUMNS if name not in _TENSOR_IDS}
    return columns | {"ratio": compute_error_ratio(result.pairs)}


def build_uncompared_table(result: Result) -> Table:
    """Return every column of UNCOMPARED_COLUMNS."""
    return {name: result.uncompared[name] for name in UNCOMPARED_COLUMNS}


def build_unmatched_table(result: Result) -> Table:
    """Return every column of UNMATCHED_COLUMNS."""
    return {name: result.unmatched[name] for name in UNMATCHED_COLUMNS}


def find_rows_of_ops(pairs: pd.DataFrame) -> Mapping[str, Mapping[str, int]]:
    """Return by side and op name the row of the op's worst pair, outputs before inputs."""
    sort_keys = pd.DataFrame(
        {
            "is_input": ~pairs["target_slot"].str.startswith("output"),
            "negative_ratio": -compute_error_ratio(pairs).fillna(-1.0),
        }
    )
    order = sort_keys.sort_values(["is_input", "negative_ratio"], kind="stable").index
    rows_by_side = {}
    for side in ("target", "reference"):
        names = pairs[f"{side}_op"].iloc[order]
        first_names = names[~names.duplicated()]
        rows = zip(first_names.tolist(), first_names.index.tolist(), strict=True)
        rows_by_side[side] = dict(rows)
    return rows_by_side


def find_row(finding: Finding, pairs: pd.DataFrame) -> int:
    """Return the row of the pair at which a finding begins, -1 if it has none."""
    has_target_op = pairs["target_op"].isin(finding.target_ops)
    has_ops = has_target_op & pairs["reference_op"].isin(finding.reference_ops)
    slots = list(zip(pairs["target_slot"], pairs["reference_slot"], strict=True))
    has_slots = pd.Series(slots, index=pairs.index).isin(finding.slots)
    is_place = pairs["state"].isin(("introduced", "isolated"))
    for matches in (has_ops & has_slots & is_place, has_ops):
        rows = np.flatnonzero(matches.to_numpy())
        if len(rows):
            return int(rows[0])
    return -1
