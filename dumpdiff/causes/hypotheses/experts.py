"""Mixtures of experts: weights of the router, experts and tokens that go missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..hypothesis import Candidate, Hypothesis
from ..situation import Situation, residual


def not_normalised(s: Situation) -> Iterator[Candidate]:
    """r = p / sum(p), t = p; and the other way round."""
    if not s.forward or s.plain.ndim < 2 or s.plain.min() < 0:
        return
    for o in s.alike():
        p = o.array.reshape(s.plain.shape)
        total = p.sum(axis=-1, keepdims=True)
        if p.min() >= 0 and total.min() > 0:
            shares = p / total
            yield Candidate(p, "router weights that are not normalised", "", {}, shares)
            yield Candidate(shares, "router weights that are normalised", "", {}, p)


def rows_missing(s: Situation) -> Iterator[Candidate]:
    """Rows of the sum that lack what one expert gives: all of its tokens, or those beyond its capacity."""
    routed = "expert" in s.finding.scope or {
        "scatter_add",
        "topk",
        "scatter",
        "gather_rows",
        "index_add",
    } & {
        *s.kinds,
        *s.after,
    }
    if not s.forward or s.plain.ndim < 2 or not routed:
        return
    width = s.plain.shape[-1]
    gap = (s.plain - s.departing).reshape(-1, width)
    wrong = np.flatnonzero(
        np.linalg.norm(gap, axis=1)
        > s.limit * max(np.linalg.norm(s.plain) / np.sqrt(len(gap)), 1e-30)
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
        if residual(tail, gap[wrong]) <= 10 * s.limit:
            whole = len(rows) == len(wrong)
            made = s.plain.reshape(-1, width).copy()
            made[wrong] -= tail
            said = (
                "one expert contributes nothing"
                if whole
                else f"an expert without its last {len(wrong)} of {len(rows)} tokens"
            )
            yield Candidate(made.reshape(s.plain.shape), said, "", {"tokens": float(len(wrong))}, s.plain,
                            "expert-missing" if whole else "capacity")  # fmt: skip


HYPOTHESES = (
    Hypothesis("router-normalisation", not_normalised),
    Hypothesis("expert-missing", rows_missing),
)
