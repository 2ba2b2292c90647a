"""Whole numbers that both runs were given, and that differ: the runs read other batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import AnyArray
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis


def suggest_other_batch(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the batch holds other numbers.

    Positions are given, too. They count along their last axis, and a batch does not.
    """
    faulty, faithful = case.faulty, case.faithful
    is_batch = case.finding.kind == "input" and case.is_discrete and faulty.shape == faithful.shape
    if not is_batch or _is_counting(faulty) or _is_counting(faithful):
        return
    places = np.argwhere(faulty != faithful)
    if not len(places):
        return
    place = tuple(places[0].tolist())
    description = (
        f"another batch: {len(places)} of {faithful.size} numbers differ, the first at"
        f" {list(place)} is {int(faulty[place])}"
    )
    contrast = f"has {int(faithful[place])}"
    yield Candidate(faulty, description, contrast, unchanged=faithful)


def _is_counting(numbers: AnyArray) -> bool:
    return numbers.ndim == 0 or bool((np.diff(numbers, axis=-1) == 1).all())


HYPOTHESES = (Hypothesis("batch", suggest_other_batch),)
