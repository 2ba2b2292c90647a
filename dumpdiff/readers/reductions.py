"""Reductions of collectives under one name, in whatever words a framework records them."""

from __future__ import annotations

#: Word in a record, in lower case -> reduction.
_REDUCTIONS = {
    "sum": "sum",
    "premul_sum": "sum",
    "avg": "mean",
    "mean": "mean",
    "max": "max",
    "min": "min",
    "prod": "product",
    "product": "product",
}


def normalize_reduction(text: str) -> str:
    """Return sum, mean, max, min or product; '' for text that is no reduction.

    >>> normalize_reduction("RedOpType.AVG"), normalize_reduction("sum")
    ('mean', 'sum')
    """
    return _REDUCTIONS.get(text.rpartition(".")[2].lower(), "")
