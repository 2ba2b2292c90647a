"""Pairs that need no neighbours: values that only one tensor of each side has, and parameters of one name."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..graph import Flow
from ..model.arrays import Floats, Ints
from ..model.trace import FORWARD, OPTIMIZER
from ..rulebook import Rules
from .matches import Matching
from .values import Candidates, candidates

_NEAR = 0.05  # by_near_value: farther apart, another tensor is as likely
_PARTED = 16  # tolerances: more than noise makes of two that are the same
_COMMON = 5  # by_scaled_value: pairs that must share a factor


def by_value(matching: Matching) -> Candidates:
    """Pair classes that are each other's only candidate; returns all candidates, for later stages to choose from.

    A class that says little (evidence below 2) is never paired by value alone.
    """
    found = candidates(matching.prints_t, matching.prints_r, matching.tolerance)
    allowed = np.array(
        [
            matching.may_pair(t, r)
            for t, r in zip(found.target.tolist(), found.reference.tolist(), strict=True)
        ],
        dtype=bool,
    )
    found = Candidates(found.target[allowed], found.reference[allowed], found.distance[allowed])
    choices_t = np.bincount(found.target, minlength=len(matching.classes_t))
    choices_r = np.bincount(found.reference, minlength=len(matching.classes_r))
    telling = (matching.prints_t.evidence[found.target] >= 2) & (
        matching.prints_r.evidence[found.reference] >= 2
    )
    only = (choices_t[found.target] == 1) & (choices_r[found.reference] == 1) & telling
    for t, r in zip(found.target[only].tolist(), found.reference[only].tolist(), strict=True):
        strength = min(matching.prints_t.evidence[t], matching.prints_r.evidence[r])
        matching.pair(t, r, "value", 0.9 + 0.02 * float(strength))
    return found


def by_checksum(matching: Matching) -> None:
    """Pair classes that have a checksum which no other class of their size has, on either side."""
    sides = []
    for flow in (matching.target, matching.reference):
        owners: dict[tuple[int, str], list[int]] = defaultdict(list)
        for value, (size, sums) in enumerate(zip(flow.sizes.tolist(), flow.hashes, strict=True)):
            for checksum in sums if size > 1 else ():
                owners[size, checksum].append(value)
        sides.append({key: values[0] for key, values in owners.items() if len(values) == 1})
    for key, t in sides[0].items():
        if (r := sides[1].get(key)) is not None:
            matching.pair(t, r, "value", 0.95)


def by_parameter_name(matching: Matching, rules: Rules) -> None:
    """Pair parameters (and gradients of parameters) that have one canonical name, whatever their values."""
    for column in ("parameter", "gradient_of"):
        sides = []
        for flow in (matching.target, matching.reference):
            named: dict[str, list[int]] = defaultdict(list)
            names = flow.classes[column].to_numpy()
            for row in np.flatnonzero(names != "").tolist():
                named[rules.parameter(names[row]) or names[row]].append(row)
            sides.append(named)
        for name, rows in sides[0].items():
            others = sides[1].get(name, [])
            if len(rows) == 1 and len(others) == 1:
                matching.pair(rows[0], others[0], "parameter", 0.95)


def by_supported_value(matching: Matching, found: Candidates) -> bool:
    """Of several candidates take the one whose surroundings are paired to the target's; true if any pair was added.

    Support counts producers of one kind, inputs of the producers and outputs of the readers that are already paired to
    each other. A candidate wins only if it has some support and no rival of either side has as much.
    """
    open_now = (matching.classes_t[found.target] < 0) & (matching.classes_r[found.reference] < 0)
    rows = np.flatnonzero(open_now)
    support = {}
    for row in rows.tolist():
        t, r = int(found.target[row]), int(found.reference[row])
        support[t, r] = _support(matching, t, r) - found.distance[row] / matching.tolerance
    rivals_t: dict[int, list[float]] = defaultdict(list)
    rivals_r: dict[int, list[float]] = defaultdict(list)
    for (t, r), value in support.items():
        rivals_t[t].append(value)
        rivals_r[r].append(value)
    progress = False
    for (t, r), value in support.items():
        wins = value >= 1 and all(
            max(side) == value and side.count(value) == 1 for side in (rivals_t[t], rivals_r[r])
        )
        if wins:
            progress |= matching.pair(t, r, "value", 0.8)
    return progress


def by_last_value(matching: Matching) -> None:
    """Scalars, as losses are, whose value several ops of the other side have: the last of those, they are all equal."""
    free_t, free_r = (
        np.flatnonzero(classes < 0) for classes in (matching.classes_t, matching.classes_r)
    )
    found = candidates(
        matching.prints_t.take(free_t), matching.prints_r.take(free_r), matching.tolerance
    )
    scalar = matching.prints_t.size[free_t[found.target]] == 1
    for t, r in sorted(
        zip(
            free_t[found.target[scalar]].tolist(),
            free_r[found.reference[scalar]].tolist(),
            strict=True,
        )
    )[::-1]:
        made = matching.producer_t[t] >= 0 and matching.producer_r[r] >= 0
        if made and matching.prints_t.evidence[t] and matching.prints_r.evidence[r]:
            matching.pair(t, r, "value", 0.6)


def by_being_the_loss(matching: Matching) -> None:
    """The last scalar that the forward pass computes, and computes nothing from, is the loss, whatever it came to."""
    losses = _losses(matching)
    if losses is not None:
        matching.pair(*losses, "last", 0.6)


def parted(matching: Matching) -> bool:
    """Whether something is known to differ: a pair that other evidence than its value made, or the loss."""
    losses = _losses(matching)
    if losses is not None and matching.distance(*losses) > _PARTED * matching.tolerance:
        return True
    return any(
        matching.distance(t, int(matching.classes_t[t])) > _PARTED * matching.tolerance
        for t, why in matching.why.items()
        if why != "value"
    )


def _losses(matching: Matching) -> tuple[int, int] | None:
    """The loss of both sides, if neither has a partner yet."""
    found = []
    for flow, classes in (
        (matching.target, matching.classes_t),
        (matching.reference, matching.classes_r),
    ):
        scalars = np.flatnonzero((classes < 0) & (flow.classes["size"] == 1).to_numpy()).tolist()
        found.append([value for value in scalars if _ends_forward(flow, value)])
    return (found[0][-1], found[1][-1]) if all(found) else None


def _ends_forward(flow: Flow, value: int) -> bool:
    maker = int(flow.producers[value])
    return (
        maker >= 0
        and flow.phases[maker] == FORWARD
        and not any(flow.phases[op] == FORWARD for op in flow.readers[value])
    )


def by_near_value(matching: Matching, runs_parted: bool) -> bool:
    """Pair what is nearest to each other by far, though beyond the noise: a small divergence moves values a little.

    Within 5 %, ten times nearer than any other candidate of either side, makers of one phase and, where known, inputs
    in common. Among many tensors of one size some are near by chance: unless the runs are known to have parted, inputs
    in common are asked for, and of an optimizer that it changes one and the same value a little.
    """
    free_t, free_r = (
        np.flatnonzero(classes < 0) for classes in (matching.classes_t, matching.classes_r)
    )
    found = candidates(matching.prints_t.take(free_t), matching.prints_r.take(free_r), _NEAR)
    targets, references = free_t[found.target], free_r[found.reference]
    second_t = _second_least(targets, found.distance, len(matching.classes_t))
    second_r = _second_least(references, found.distance, len(matching.classes_r))
    progress = False
    for t, r, gap in zip(
        targets.tolist(), references.tolist(), found.distance.tolist(), strict=True
    ):
        telling = min(matching.prints_t.evidence[t], matching.prints_r.evidence[r]) >= 3
        clear = gap * 10 < min(second_t[t], second_r[r]) or (second_t[t] == second_r[r] == np.inf)
        believed = not contradicts(matching, t, r) if runs_parted else _made_alike(matching, t, r)
        if telling and clear and believed:
            progress |= matching.pair(t, r, "near value", 0.65)
    return progress


def by_scaled_value(matching: Matching) -> bool:
    """Pair what is equal up to a factor that many share: a loss scale, an average over ranks, a doubled gradient.

    Shapes of distributions (extremes and mean over norm) are compared; a factor counts if at least five pairs that
    nothing else comes near have it to 1e-3.
    """
    free_t, free_r = (
        np.flatnonzero(classes < 0) for classes in (matching.classes_t, matching.classes_r)
    )
    prints_t, prints_r = matching.prints_t.take(free_t), matching.prints_r.take(free_r)
    found = candidates(prints_t.normalised(), prints_r.normalised(), matching.tolerance)
    if not len(found.target):
        return False
    only = (np.bincount(found.target)[found.target] == 1) & (
        np.bincount(found.reference)[found.reference] == 1
    )
    only &= (prints_t.evidence[found.target] >= 3) & (prints_r.evidence[found.reference] >= 3)
    targets, references = found.target[only], found.reference[only]
    factors = np.log(prints_t.norm[targets] / prints_r.norm[references])
    progress = False
    for t, r, factor in zip(
        free_t[targets].tolist(), free_r[references].tolist(), factors.tolist(), strict=True
    ):
        if np.count_nonzero(np.abs(factors - factor) < 1e-3) >= _COMMON and not contradicts(
            matching, t, r
        ):
            progress |= matching.pair(t, r, "scaled value", 0.7)
    return progress


def _second_least(ids: Ints, distances: Floats, count: int) -> Floats:
    """(count,) second least distance of each id, Inf if there are not two."""
    order = np.lexsort((distances, ids))
    ranked, gaps = ids[order], distances[order]
    place = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
    second = np.full(count, np.inf)
    second[ranked[place == 1]] = gaps[place == 1]
    return second


def contradicts(matching: Matching, t: int, r: int) -> bool:
    """Their producers read paired values, and none in common; or only one of them has a producer."""
    if matching.producer_t[t] < 0 or matching.producer_r[r] < 0:
        return bool((matching.producer_t[t] < 0) != (matching.producer_r[r] < 0))
    known_t, known_r = _paired_inputs(matching, t, r)
    return bool(known_t and known_r and not known_t & known_r)


def _made_alike(matching: Matching, t: int, r: int) -> bool:
    """Their makers read a paired value in common; in an optimizer one that they are near to themselves."""
    makers = int(matching.producer_t[t]), int(matching.producer_r[r])
    if min(makers) < 0:
        return False
    known_t, known_r = _paired_inputs(matching, t, r)
    if matching.target.phases[makers[0]] == OPTIMIZER:
        return any(matching.distance(t, value) < _NEAR for value in known_t & known_r)
    return bool(known_t & known_r)


def _paired_inputs(matching: Matching, t: int, r: int) -> tuple[set[int], set[int]]:
    """Reference classes that the producers of both read, as far as they are paired."""
    reads_t, reads_r = (
        flow.reads[int(producer)]
        for flow, producer in (
            (matching.target, matching.producer_t[t]),
            (matching.reference, matching.producer_r[r]),
        )
    )
    return (
        {int(matching.classes_t[v]) for v in reads_t} - {-1},
        {v for v in reads_r if matching.classes_r[v] >= 0},
    )


def _support(matching: Matching, t: int, r: int) -> float:
    producer_t, producer_r = int(matching.producer_t[t]), int(matching.producer_r[r])
    score = 0.0
    if producer_t >= 0 and producer_r >= 0:
        score += 2.0 * (matching.kinds_t[producer_t] == matching.kinds_r[producer_r])
        inputs_r = set(matching.reference.reads[producer_r])
        known = [
            int(matching.classes_t[v])
            for v in matching.target.reads[producer_t]
            if matching.classes_t[v] >= 0
        ]
        score += sum(2.0 if v in inputs_r else -2.0 for v in known)
    after_r = {v for op in matching.reference.readers[r] for v in matching.reference.writes[op]}
    after_t = {
        int(matching.classes_t[v])
        for op in matching.target.readers[t]
        for v in matching.target.writes[op]
    }
    return score + len((after_t - {-1}) & after_r)
