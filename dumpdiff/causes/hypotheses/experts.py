"""Mixtures of experts: router weights, missing experts and missing tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import AnyArray
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis

_ROUTING_KINDS = {"scatter_add", "topk", "scatter", "gather_rows", "index_add"}
#: An expert's rows must be the missing ones to this many limits of the case.
_ROW_LIMITS = 10


def suggest_router_normalization(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faithful = p / sum(p) and faulty = p, or the reverse."""
    if not case.is_forward_value:
        return
    if case.faithful.ndim < 2 or case.faithful.min() < 0:
        return
    for p in case.find_same_size_arrays():
        total = p.sum(axis=-1, keepdims=True)
        if p.min() >= 0 and total.min() > 0:
            shares = p / total
            yield Candidate(p, "router weights that are not normalized", unchanged=shares)
            yield Candidate(shares, "router weights that are normalized", unchanged=p)


def suggest_missing_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the sum lacks the output of one expert: for all tokens, or beyond capacity."""
    if not case.is_forward_value or case.faithful.ndim < 2 or not _is_routed(case):
        return
    width = case.faithful.shape[-1]
    difference = (case.faithful - case.faulty).reshape(-1, width)
    n_rows = len(difference)
    typical_row_norm = np.linalg.norm(case.faithful) / np.sqrt(n_rows)
    row_limit = case.limit * max(typical_row_norm, 1e-30)
    wrong_rows = np.flatnonzero(np.linalg.norm(difference, axis=1) > row_limit)
    n_wrong = len(wrong_rows)
    if not 0 < n_wrong < n_rows:
        return
    for operand in case.operands:
        rows = _read_rows(operand, width)
        if rows is None or not n_wrong <= len(rows) < n_rows or rows.dtype.kind != "f":
            continue
        last_rows = rows[-n_wrong:]
        if compute_residual(last_rows, difference[wrong_rows]) > _ROW_LIMITS * case.limit:
            continue
        predicted = case.faithful.reshape(-1, width).copy()
        predicted[wrong_rows] -= last_rows
        n_kept = len(rows) - n_wrong
        description = f"an expert that takes only the first {n_kept} of {len(rows)} tokens"
        cause = "capacity"
        if len(rows) == n_wrong:
            description, cause = "one expert contributes nothing", "expert-missing"
        yield Candidate(
            predicted.reshape(case.faithful.shape),
            description,
            parameters={"tokens": float(n_wrong)},
            unchanged=case.faithful,
            cause=cause,
        )


def _is_routed(case: FaultCase) -> bool:
    kinds = {*case.kinds, *case.consumer_kinds}
    return "expert" in case.finding.scope or bool(_ROUTING_KINDS & kinds)


def _read_rows(operand: Operand, width: int) -> AnyArray | None:
    """Return the operand as rows of ``width`` elements; None if it has no such rows."""
    if len(operand.shape) < 2 or operand.shape[-1] != width:
        return None
    return operand.array.reshape(-1, operand.shape[-1])


HYPOTHESES = (
    Hypothesis("router-normalisation", suggest_router_normalization),
    Hypothesis("expert-missing", suggest_missing_rows),
)
