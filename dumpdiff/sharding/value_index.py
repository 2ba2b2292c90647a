"""The recorded values of a run, found again by their statistics."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model.arrays import Floats, Ints

#: Entries with a maximum near the wanted one whose other statistics are compared.
_MAX_CANDIDATES = 64


class ValueIndex:
    """Values by number of elements and maximum."""

    def __init__(self, sizes: Ints, statistics: Floats, entries: Ints) -> None:
        """Index values.

        ``statistics`` (values, 4) are max, min, mean and norm; ``entries`` what :meth:`find`
        returns for each.
        """
        is_known = np.isfinite(statistics[:, :2]).all(axis=1) & (sizes > 0)
        self._buckets: dict[int, tuple[Floats, Ints]] = {}
        table = pd.DataFrame({"size": sizes[is_known], "row": np.flatnonzero(is_known)})
        for size in np.unique(table["size"].to_numpy()).tolist():
            rows = table["row"].to_numpy()[table["size"].to_numpy() == size]
            rows = rows[np.argsort(statistics[rows, 0], kind="stable")]
            self._buckets[size] = (statistics[rows], entries[rows])

    def find(self, sizes: Ints, statistics: Floats, errors: Floats) -> Ints:
        """Return, for each wanted value, the entry of an equal one, -1 if there is none.

        ``errors`` are the relative differences allowed: of extremes and mean by the largest
        magnitude, of the norm by itself. A number that one of the two lacks is not compared.
        """
        found_entries = np.full(len(sizes), -1)
        is_known = np.isfinite(statistics[:, :2]).all(axis=1)
        for size in np.unique(sizes[is_known]).tolist():
            if size not in self._buckets:
                continue
            values, entries = self._buckets[size]
            for row in np.flatnonzero(is_known & (sizes == size)).tolist():
                found_entries[row] = _find_entry(values, entries, statistics[row], errors[row])
        return found_entries


def _find_entry(values: Floats, entries: Ints, wanted: Floats, error: float) -> int:
    """Return the entry of the closest value within the error, -1 if there is none."""
    limit = error * max(abs(wanted[0]), abs(wanted[1])) + 1e-30
    begin = np.searchsorted(values[:, 0], wanted[0] - limit, side="left")
    end = np.searchsorted(values[:, 0], wanted[0] + limit, side="right")
    if begin >= end:
        return -1
    near = values[begin : min(end, begin + _MAX_CANDIDATES)]
    limits = np.array([limit, limit, limit, error * abs(wanted[3])])
    with np.errstate(invalid="ignore"):
        shares = np.abs(near - wanted) / np.maximum(limits, 1e-300)
    shares = np.where(np.isnan(shares), 0.0, shares).max(axis=1)
    closest = int(np.argmin(shares))
    return int(entries[begin + closest]) if shares[closest] <= 1.0 else -1
