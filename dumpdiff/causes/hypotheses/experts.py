"""Mixtures of experts: router weights, missing experts and missing tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ...model.arrays import AnyArray
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis

_ROUTING_KINDS = {"scatter_add", "topk", "scatter", "gather_rows", "index_add"}
#: An expert's rows must be the missing ones to this many limits of the case.
_ROW_LIMITS = 10
#: Operands that are tried as outputs of experts.
_MAX_EXPERTS = 16
#: Relative distance within which the projection of a sum is that of two operands together; rounding
#: is a tenth of it.
_MAX_SUM_RESIDUAL = 1e-5
_PROJECTION_SEED = 7


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


def suggest_capacity(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that every expert takes at most so many tokens, if each one's output is recorded.

    faithful = sum of the experts' outputs, in which tokens of other experts are rows of zeros.
    """
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    width = case.faithful.shape[-1]
    faithful = case.faithful.reshape(-1, width)
    outputs = _find_expert_outputs(case, faithful)
    if not outputs:
        return
    unchanged = np.sum(outputs, axis=0)
    tokens_of_experts = [np.flatnonzero(output.any(axis=1)) for output in outputs]
    largest_load = max(map(len, tokens_of_experts))
    for capacity in range(1, largest_load):
        predicted = faithful.copy()
        for output, tokens in zip(outputs, tokens_of_experts, strict=True):
            dropped_tokens = tokens[capacity:]
            predicted[dropped_tokens] -= output[dropped_tokens]
        yield Candidate(
            predicted.reshape(case.faithful.shape),
            f"experts that take only the first {capacity} of up to {largest_load} tokens",
            parameters={"capacity": float(capacity)},
            unchanged=unchanged.reshape(case.faithful.shape),
            cause="capacity",
        )


def _find_expert_outputs(case: FaultCase, faithful: AnyArray) -> list[AnyArray]:
    """Return operands with rows of zeros that add up to the faithful side's value; [] if none do.

    A sum of two others is left out: it is a step of the addition. Sums are recognized by a random
    projection of the rows.
    """
    width = faithful.shape[-1]
    direction = np.random.default_rng(_PROJECTION_SEED).standard_normal(width)
    sparse_operands: list[AnyArray] = []
    for operand in case.find_same_size_operands():
        rows = _read_rows(operand, width)
        if rows is not None and 0 < np.count_nonzero(rows.any(axis=1)) < len(rows):
            sparse_operands.append(rows)
    sparse_operands = sparse_operands[:_MAX_EXPERTS]
    projections = [rows @ direction for rows in sparse_operands]
    outputs = []
    for number, rows in enumerate(sparse_operands):
        others = [projection for i, projection in enumerate(projections) if i != number]
        is_sum = any(
            compute_residual(a + b, projections[number]) <= _MAX_SUM_RESIDUAL
            for a, b in combinations(others, 2)
        )
        if not is_sum:
            outputs.append(rows)
    is_complete = len(outputs) > 1 and case.matches_faithful(np.sum(outputs, axis=0))
    return outputs if is_complete else []


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
    Hypothesis("capacity", suggest_capacity),
    Hypothesis("expert-missing", suggest_missing_rows),
)
