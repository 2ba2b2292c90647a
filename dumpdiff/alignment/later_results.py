"""Results that one side reaches in one step and the other one in several.

One side divides a sum by a count, the other one's operator gives the mean; one side multiplies by
one number after the other, the other one by their product. The operators are of one kind and read
partners, so structure pairs their results. They differ, and the result of the last step is the
partner.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags, Ints
from . import confidence
from .matches import Matching

#: Steps behind a value in which its partner's numbers may be reached.
_MAX_STEPS = 3
#: Tolerances up to which a later result agrees: it has the rounding of several steps ...
_AGREEING_TOLERANCES = 4
#: ... and from which on a pair differs, so that the later result is much closer.
_DIFFERING_TOLERANCES = 16


def pair_later_results(matching: Matching) -> bool:
    """Pair a value with what the other side computes a few steps later, where that agrees.

    Return whether there was such a value. Only a pair that says nothing of numbers, and differs,
    is given up. Each step must follow from the one before and from single numbers, and the last
    one must have no partner. A value and its negative stay partners: an API recorder leaves out a
    minus, and then all values behind it have the other sign.
    """
    limit = _AGREEING_TOLERANCES * matching.tolerance
    is_changed = False
    for pair in _list_differing_guesses(matching):
        for later_pair in _iterate_later_pairs(matching, *pair):
            if matching.compute_distance(*later_pair) <= limit:
                _exchange(matching, pair, later_pair)
                is_changed = True
                break
    return is_changed


def _list_differing_guesses(matching: Matching) -> list[tuple[int, int]]:
    """Return the pairs that say nothing of numbers, and differ by more than a sign."""
    targets, distances = matching.measure_guesses()
    references = matching.classes_t[targets]
    is_different = distances > _DIFFERING_TOLERANCES * matching.tolerance
    is_different &= ~_flag_negatives(matching, targets, references)
    pairs = zip(targets[is_different].tolist(), references[is_different].tolist(), strict=True)
    return matching.sort_pairs(pairs)


def _flag_negatives(matching: Matching, targets: Ints, references: Ints) -> Flags:
    """Return (pairs,) whether the extremes of one value are those of the other one's negative."""
    prints_t, prints_r = matching.prints_t, matching.prints_r
    lows, highs = prints_t.low[targets], prints_t.high[targets]
    slack = matching.tolerance * np.maximum(np.abs(lows), np.abs(highs))
    is_negative: Flags = np.abs(highs + prints_r.low[references]) <= _AGREEING_TOLERANCES * slack
    is_negative &= np.abs(lows + prints_r.high[references]) <= _AGREEING_TOLERANCES * slack
    return is_negative


def _iterate_later_pairs(matching: Matching, t: int, r: int) -> Iterator[tuple[int, int]]:
    """Yield each later result of one value with the other value."""
    for later_t in _iterate_later_results(matching.target, matching.classes_t, t):
        yield later_t, r
    for later_r in _iterate_later_results(matching.reference, matching.classes_r, r):
        yield t, later_r


def _iterate_later_results(flow: Flow, partners: Ints, value: int) -> Iterator[int]:
    """Yield the values without a partner that a chain of steps computes from a value."""
    size, phases = flow.sizes[value], flow.list_column("phase")
    for _ in range(_MAX_STEPS):
        results = {
            result
            for op in flow.users[value]
            if not flow.is_module[op] and _has_one_operand(flow, op, value)
            for result in flow.writes[op]
            if flow.producers[result] == op and phases[result] == phases[value]
        }
        if len(results) != 1:
            return
        (value,) = results
        if partners[value] >= 0 or flow.sizes[value] != size:
            return
        yield value


def _has_one_operand(flow: Flow, op: int, value: int) -> bool:
    """Return whether an op reads nothing else but single numbers that no op computed."""
    return all(
        other == value or (flow.producers[other] < 0 and flow.sizes[other] == 1)
        for other in flow.operands[op]
    )


def _exchange(matching: Matching, pair: tuple[int, int], new_pair: tuple[int, int]) -> None:
    """Separate the values of a pair, and pair one of them with the other one's later result.

    Their ops are no pair: one does what several do, and its gradient is another one.
    """
    matching.unpair(*pair)
    matching.pair(*new_pair, "structure", confidence.CLOSE_OUTPUT)
