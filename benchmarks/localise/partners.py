"""Judge the alignment of a pair by the pairs that are known from the numbers of clean recordings.

In the clean pair a target tensor and a reference tensor are *known partners* if their sorted
numbers agree, whatever their names. A value that the faulty run computed instead is still the
partner: this is what alignment beyond the divergence means. A tensor of the faulty dump represents
the one that the same op wrote in the clean dump.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from dumps import Dump
from truth import CHANGED

#: relative L2 of sorted numbers; float32 pairs agree to 1e-6, different tensors differ by more than
#: 1e-2
CLOSE = 1e-4
DISTINCT = 8  #: a tensor with fewer distinct numbers is no evidence: masks, ones, a loss


@dataclass(frozen=True)
class Side:
    """One side of a pair: the clean dump, and the dump that is compared.

    They are different dumps on the side that carries the fault.
    """

    clean: Dump
    run: Dump
    twins: list[int]  #: per op of ``run`` that of ``clean``, -1 if it has none
    #: (tensors of ``run``,) see truth.Truth; None if it carries no fault
    changed: np.ndarray | None = None

    def value(self, row: int) -> str:
        """Return the fingerprint of the numbers that a tensor of the run has in the clean dump.

        '' if the clean dump does not have it.
        """
        twin = self.twins[self.run.op[row]]
        slot = self.run.trace.tensors["slot"].iat[row]
        clean_row = self.clean.slots.get((twin, slot), -1) if twin >= 0 else -1
        return self.clean.numbers[clean_row] if clean_row >= 0 else ""

    def values(self) -> dict[str, bool]:
        """Return for every value that the run has a tensor for whether the fault reaches it."""
        is_reached: dict[str, bool] = {}
        for row in range(len(self.run.op)):
            if value := self.value(row):
                is_reached[value] = is_reached.get(value, False) or self.reached(row)
        return is_reached

    def reached(self, row: int) -> bool:
        """Return whether the fault changed this tensor."""
        return self.changed is not None and self.changed[row] == CHANGED


@dataclass
class Tally:
    """Counts on one side of the divergence."""

    right: int = 0  #: pairs
    wrong: int = 0
    found: int = 0  #: values of the reference that have a partner
    lost: int = 0


@dataclass(frozen=True)
class Quality:
    """Tallies of values that the fault does not reach, and of those that it does."""

    before: Tally = field(default_factory=Tally)
    beyond: Tally = field(default_factory=Tally)


def find_known_partners(target: Dump, reference: Dump) -> dict[str, frozenset[str]]:
    """Return the known partners of a clean pair.

    Keys are fingerprints of target tensors, values the fingerprints of their reference tensors.
    """
    target_groups, reference_groups = _group_by_size(target), _group_by_size(reference)
    partners: dict[str, frozenset[str]] = {}
    for size, (names, values) in target_groups.items():
        if size not in reference_groups:
            continue
        reference_names, candidates = reference_groups[size]
        scale = np.linalg.norm(candidates, axis=1)
        squares = (values**2).sum(1)[:, None] + (candidates**2).sum(1) - 2 * values @ candidates.T
        # a cheap and inexact selection first, then the exact distance
        is_close = np.sqrt(np.maximum(squares, 0)) <= 10 * CLOSE * scale
        for row, name in enumerate(names):
            columns = [
                c
                for c in np.flatnonzero(is_close[row])
                if _compute_distance(values[row], candidates[c]) <= CLOSE
            ]
            if columns:
                partners[name] = frozenset(reference_names[c] for c in columns)
    return partners


def judge_pairs(
    pairs: Iterable[tuple[int, int]],
    partners: Mapping[str, frozenset[str]],
    target: Side,
    reference: Side,
    recorded: Iterable[int],
) -> Quality:
    """Count right pairs and found values.

    ``pairs`` are (target, reference) tensors; ``recorded`` are the reference's tensors that the
    form of the dump holds.
    """
    target_values: dict[str, set[str]] = defaultdict(set)
    for name, reference_values in partners.items():
        for reference_row in reference_values:
            target_values[reference_row].add(name)
    quality, paired = Quality(), set()
    for target_row, reference_row in pairs:
        value, expected = target.value(target_row), reference.value(reference_row)
        if value in partners and expected in target_values:
            is_correct = expected in partners[value]
            tally = (
                quality.beyond
                if target.reached(target_row) or reference.reached(reference_row)
                else quality.before
            )
            tally.right += is_correct
            tally.wrong += not is_correct
            if is_correct:
                paired.add(expected)
    reached = target.values()
    for value, is_beyond in _list_values(reference, recorded).items():
        present = [name for name in target_values.get(value, ()) if name in reached]
        if present:
            tally = (
                quality.beyond
                if is_beyond or any(reached[name] for name in present)
                else quality.before
            )
            tally.found += value in paired
            tally.lost += value not in paired
    return quality


def _list_values(side: Side, rows: Iterable[int]) -> dict[str, bool]:
    is_reached: dict[str, bool] = {}
    for row in rows:
        if value := side.value(row):
            is_reached[value] = is_reached.get(value, False) or side.reached(row)
    return is_reached


def _group_by_size(dump: Dump) -> dict[int, tuple[list[str], np.ndarray]]:
    """Return for each element count the fingerprints and sorted numbers of its distinct values.

    The array of sorted numbers is (values, elements).
    """
    rows: dict[str, int] = {}
    for row, name in enumerate(dump.numbers):
        if name and not name.startswith("="):
            rows.setdefault(name, row)
    sized: dict[int, list[tuple[str, np.ndarray]]] = defaultdict(list)
    for name, row in rows.items():
        values = np.sort(np.asarray(dump.trace.array(row), dtype=np.float64).ravel())
        if np.isfinite(values).all() and len(np.unique(values)) >= DISTINCT:
            sized[values.size].append((name, values))
    return {
        size: ([name for name, _ in members], np.stack([values for _, values in members]))
        for size, members in sized.items()
    }


def _compute_distance(values: np.ndarray, reference_values: np.ndarray) -> float:
    return float(np.linalg.norm(values - reference_values) / np.linalg.norm(reference_values))
