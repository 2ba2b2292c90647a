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
    targets = np.flatnonzero(matching.classes_t >= 0)
    references = matching.classes_t[targets]
    is_partial = (sums_t[targets] >= 0) | (sums_r[references] >= 0)
    pairs = zip(targets[is_partial].tolist(), references[is_partial].tolist(), strict=True)
    pairs_of_sums = [
        (t, r)
        for t, r in matching.sort_pairs(pairs)
        if matching.evidence[t] != "value" and sums_t[t] != _NO_SUM and sums_r[r] != _NO_SUM
    ]
    totals = []
    for t, r in pairs_of_sums:
        terms_t, later_terms_t = _list_terms(matching.target, sums_t, t)
        terms_r, later_terms_r = _list_terms(matching.reference, sums_r, r)
        partners_t = {_find_partner(matching.partners_t, term) for term in terms_t}
        partners_r = {_find_partner(matching.partners_r, term) for term in terms_r}
        if partners_t & later_terms_r or partners_r & later_terms_t:
            matching.unpair(t, r)
            totals.append((_find_total(sums_t, t), _find_total(sums_r, r)))
    for t, r in totals:
        matching.pair(t, r, "structure", confidence.PARTIAL_INPUTS)


def _find_partner(partners: Sequence[int] | memoryview, term: int) -> int:
    """Return the partner of a term; of a constant, any of the other side."""
    return term if term == _CONSTANT else int(partners[term])


def _find_next_sums(flow: Flow, kinds: Sequence[str]) -> Ints:
    """Return (classes,) the sum that alone reads a sum, which is a partial one, or ``_TOTAL``.

    Readers of another phase do not count: they compute gradients.
    """
    is_sum = np.array([kind in _SUM_KINDS for kind in kinds], dtype=bool)
    is_sum &= flow.write_lists.counts == 1
    next_sums = np.full(len(flow.classes), _NO_SUM)
    sums = flow.write_lists.values[is_sum[flow.write_lists.rows]]
    next_sums[sums] = _TOTAL
    values, ops = flow.operand_lists.values, flow.operand_lists.rows
    phases = flow.phase_numbers
    is_counted = (next_sums[values] == _TOTAL) & ~flow.is_module[ops] & ~flow.is_layout[ops]
    is_counted &= phases[ops] == phases[flow.producers[values]]
    readers = IntLists.from_pairs(len(next_sums), values[is_counted], ops[is_counted])
    first_readers = readers.first_values
    is_partial = (readers.counts == 1) & (first_readers >= 0) & is_sum[first_readers]
    next_sums[is_partial] = flow.write_lists.first_values[first_readers[is_partial]]
    return next_sums


def _find_total(next_sums: Ints, value: int) -> int:
    """Return the sum that a partial sum is a part of in the end; a total is its own."""
    while next_sums[value] >= 0:
        value = int(next_sums[value])
    return value


def _list_terms(flow: Flow, next_sums: Ints, partial_sum: int) -> tuple[set[int], set[int]]:
    """Return the terms of a partial sum, and those that its total has besides."""
    terms = _collect_terms(flow, next_sums, partial_sum)
    return terms, _collect_terms(flow, next_sums, _find_total(next_sums, partial_sum)) - terms


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
