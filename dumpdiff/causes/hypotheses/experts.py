"""Mixtures of experts: weights of the router, experts and tokens that go missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase, compute_residual


def not_normalised(s: FaultCase) -> Iterator[Candidate]:
    """r = p / sum(p), t = p; and the other way round."""
    if not s.is_forward_value or s.faithful.ndim < 2 or s.faithful.min() < 0:
        return
    for o in s.find_same_size_operands():
        p = o.array.reshape(s.faithful.shape)
        total = p.sum(axis=-1, keepdims=True)
        if p.min() >= 0 and total.min() > 0:
            shares = p / total
            yield Candidate(p, "router weights that are not normalised", "", {}, shares)
            yield Candidate(shares, "router weights that are normalised", "", {}, p)


def rows_missing(s: FaultCase) -> Iterator[Candidate]:
    """Rows of the sum that lack what one expert gives: all of its tokens, or those beyond its capacity."""
    routed = "expert" in s.finding.scope or {
        "scatter_add",
        "topk",
        "scatter",
        "gather_rows",
        "index_add",
    } & {
        *s.kinds,
        *s.consumer_kinds,
    }
    if not s.is_forward_value or s.faithful.ndim < 2 or not routed:
        return
    width = s.faithful.shape[-1]
    gap = (s.faithful - s.faulty).reshape(-1, width)
    wrong = np.flatnonzero(
        np.linalg.norm(gap, axis=1)
        > s.limit * max(np.linalg.norm(s.faithful) / np.sqrt(len(gap)), 1e-30)
    )
    if not 0 < len(wrong) < len(gap):
        return
    for o in s.operands:
        rows = (
            o.array.reshape(-1, o.shape[-1]) if len(o.shape) >= 2 and o.shape[-1] == width else None
        )
        if rows is None or not len(wrong) <= len(rows) < len(gap) or rows.dtype.kind != "f":
            continue
        tail = rows[-len(wrong) :]
        if compute_residual(tail, gap[wrong]) <= 10 * s.limit:
            whole = len(rows) == len(wrong)
            made = s.faithful.reshape(-1, width).copy()
            made[wrong] -= tail
            said = (
                "one expert contributes nothing"
                if whole
                else f"an expert without its last {len(wrong)} of {len(rows)} tokens"
            )
            yield Candidate(made.reshape(s.faithful.shape), said, "", {"tokens": float(len(wrong))}, s.faithful,
                            "expert-missing" if whole else "capacity")  # fmt: skip


HYPOTHESES = (
    Hypothesis("router-normalisation", not_normalised),
    Hypothesis("expert-missing", rows_missing),
)
