"""Sums of several terms that the two sides add up in another order.

``(a + b) + c`` and ``a + (b + c)`` have one total, and their partial sums have no partners: those
that the structure around them suggests differ without an error. Such sums are the log-determinants
of a flow that one side adds up per block, or the terms of a loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints
from ..model.int_lists import IntLists
from . import confidence
from .matches import Matching

#: Partial sums of a total whose terms are compared; the time grows with their square.
_MAX_PARTIAL_SUMS = 512
#: Kinds that add up two values.
_SUM_KINDS = ("add", "sub")
#: In place of the next sum: of a sum that is no term of another one, and of what is no sum.
_TOTAL, _NO_SUM = -1, -2
#: In place of the class of a term that is a number in the code, and recorded as no value.
_CONSTANT = -3


def separate_partial_sums(matching: Matching) -> None:
    """Unpair partial sums of other terms; their totals become partners if they have none.

    Sums have other terms if the total of one side has a term, but its partial sum lacks it, and the
    partner of this term is in the other partial sum. Pairs by value agree, so they stay.
    """
    sums_t = _find_next_sums(matching.target, matching.kinds_t)
    sums_r = _find_next_sums(matching.reference, matching.kinds_r)
    totals_t, totals_r = _find_totals(sums_t), _find_totals(sums_r)
    targets = np.flatnonzero(matching.classes_t >= 0)
    references = matching.classes_t[targets]
    is_chosen = (sums_t[targets] >= 0) | (sums_r[references] >= 0)
    is_chosen &= (sums_t[targets] != _NO_SUM) & (sums_r[references] != _NO_SUM)
    for sums, totals, values in ((sums_t, totals_t, targets), (sums_r, totals_r, references)):
        n_partial_sums = np.bincount(totals[sums >= 0], minlength=len(sums))
        is_chosen &= n_partial_sums[totals[values]] <= _MAX_PARTIAL_SUMS
    pairs = zip(targets[is_chosen].tolist(), references[is_chosen].tolist(), strict=True)
    pairs_of_totals = []
    for t, r in matching.sort_pairs(pairs):
        if matching.evidence[t] == "value":
            continue
        total_t, total_r = int(totals_t[t]), int(totals_r[r])
        terms_t, later_terms_t = _list_terms(matching.target, sums_t, t, total_t)
        terms_r, later_terms_r = _list_terms(matching.reference, sums_r, r, total_r)
        partners_t = {_find_partner(matching.partners_t, term) for term in terms_t}
        partners_r = {_find_partner(matching.partners_r, term) for term in terms_r}
        if partners_t & later_terms_r or partners_r & later_terms_t:
            matching.unpair(t, r)
            pairs_of_totals.append((total_t, total_r))
    for t, r in pairs_of_totals:
        matching.pair(t, r, "structure", confidence.PARTIAL_INPUTS)


def _find_partner(partners: Sequence[int] | memoryview, term: int) -> int:
    """Return the partner of a term; of a constant, any of the other side."""
    return term if term == _CONSTANT else int(partners[term])


def _find_next_sums(flow: Flow, kinds: Sequence[str]) -> Ints:
    """Return (classes,) the sum that alone reads a sum, which is a partial one, or ``_TOTAL``.

    Readers of another phase do not count: they compute gradients. A sum comes before the next one:
    x + (q - x) gives back a value that was there before.
    """
    is_sum = np.array([kind in _SUM_KINDS for kind in kinds], dtype=bool)
    is_sum &= flow.writes.counts == 1
    producers, results = flow.producers, flow.writes.first_values
    next_sums = np.where((producers >= 0) & is_sum[producers], _TOTAL, _NO_SUM)
    values, ops = flow.operands.values, flow.operands.rows
    phases = flow.phase_numbers
    is_counted = (next_sums[values] == _TOTAL) & ~flow.is_module[ops] & ~flow.is_layout[ops]
    is_counted &= phases[ops] == phases[producers[values]]
    readers = IntLists.from_pairs(len(next_sums), values[is_counted], ops[is_counted])
    next_ops = readers.first_values
    is_partial = (readers.counts == 1) & is_sum[next_ops] & (next_ops > producers)
    is_partial &= producers[results[next_ops]] == next_ops
    next_sums[is_partial] = results[next_ops[is_partial]]
    return next_sums


def _find_totals(next_sums: Ints) -> Ints:
    """Return (classes,) the sum that each partial sum is a part of in the end, else the class."""
    totals = np.where(next_sums >= 0, next_sums, np.arange(len(next_sums)))
    while not np.array_equal(totals, totals[totals]):
        totals = totals[totals]  # twice as far at each turn
    return totals


def _list_terms(
    flow: Flow, next_sums: Ints, partial_sum: int, total: int
) -> tuple[set[int], set[int]]:
    """Return the terms of a partial sum, and those that its total has besides."""
    terms = _collect_terms(flow, next_sums, partial_sum)
    return terms, _collect_terms(flow, next_sums, total) - terms


def _collect_terms(flow: Flow, next_sums: Ints, total: int) -> set[int]:
    """Return what is added up to a sum and is no partial sum itself, ``_CONSTANT`` for a number."""
    terms: set[int] = set()
    open_sums = [total]
    while open_sums:
        operands = flow.operands[flow.producers[open_sums.pop()]]
        if len(operands) == 1:
            terms.add(_CONSTANT)
        for value in operands:
            if next_sums[value] >= 0:
                open_sums.append(value)
            else:
                terms.add(value)
    return terms
