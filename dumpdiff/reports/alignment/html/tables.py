"""The pairs and the unmatched ops as columns for the page, and where in them a finding stands."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ....model.result import PAIR_COLUMNS, UNMATCHED_COLUMNS, Finding, Result
from ...page.packed_tables import Table

_IDS = ("target", "reference")  #: of tensors: nothing that a person could look up


def ratio(pairs: pd.DataFrame) -> pd.Series[float]:
    """Error over tolerance; infinite where values are not finite on one side only, NaN where nothing was compared."""
    error, tolerance = (
        pairs["error"].to_numpy(dtype=float),
        pairs["tolerance"].to_numpy(dtype=float),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(error == 0, 0.0, error / tolerance)
    ratios[pairs["nonfinite_mismatch"].to_numpy(dtype=float) > 0] = np.inf
    return pd.Series(ratios, index=pairs.index)


def pairs(result: Result) -> Table:
    """Every column of PAIR_COLUMNS but the tensor ids, and ``ratio``: error over tolerance."""
    table = result.pairs
    return {name: table[name] for name in PAIR_COLUMNS if name not in _IDS} | {
        "ratio": ratio(table)
    }


def unmatched(result: Result) -> Table:
    """Every column of UNMATCHED_COLUMNS."""
    return {name: result.unmatched[name] for name in UNMATCHED_COLUMNS}


def rows_of_ops(pairs: pd.DataFrame) -> Mapping[str, Mapping[str, int]]:
    """By side and op name: the row of the op's worst pair, outputs before inputs."""
    order = pd.DataFrame(
        {
            "input": ~pairs["target_slot"].str.startswith("output"),
            "better": -ratio(pairs).fillna(-1.0),
        }
    ).sort_values(["input", "better"], kind="stable")
    best = {}
    for side in ("target", "reference"):
        names = pairs[f"{side}_op"].iloc[order.index]
        first = names[~names.duplicated()]
        best[side] = dict(zip(first.tolist(), first.index.tolist(), strict=True))
    return best


def row_of(finding: Finding, pairs: pd.DataFrame) -> int:
    """The row of the pair at which a finding begins, -1 if it has none."""
    by_op = pairs["target_op"].isin(finding.target_ops) & pairs["reference_op"].isin(
        finding.reference_ops
    )
    slots = pd.Series(
        list(zip(pairs["target_slot"], pairs["reference_slot"], strict=True)), index=pairs.index
    )
    for wanted in (by_op & slots.isin(finding.slots) & (pairs["state"] == "introduced"), by_op):
        found = np.flatnonzero(wanted.to_numpy())
        if len(found):
            return int(found[0])
    return -1
