"""A value does not follow from itself: pairs that say so are not both right."""

import numpy as np
import pytest
from traces import load_shipped_rules, record_calls

from dumpdiff.alignment.excluded_pairs import separate_circles
from dumpdiff.alignment.matches import Matching
from dumpdiff.alignment.sides import prepare_side
from dumpdiff.graph import build_flow


def record_chain(seed):
    """Two ops, one after the other, with numbers of their own."""
    x, y, z = np.random.default_rng(seed).standard_normal((3, 4, 5))
    return record_calls(("Mul", (x,), y), ("Exp", (y,), z))


@pytest.fixture
def matching():
    """The results of two chains, paired crosswise: the first with the second and vice versa."""
    rules = load_shipped_rules()
    target, reference = (
        prepare_side(build_flow(record_chain(seed)), rules, is_target=seed == 1) for seed in (1, 2)
    )
    matching = Matching(target.flow, reference.flow, target.kinds, reference.kinds, 1e-6)
    (first_t,), (second_t,) = target.flow.writes
    (first_r,), (second_r,) = reference.flow.writes
    assert matching.pair(first_t, second_r, "structure", 0.7)
    assert matching.pair(second_t, first_r, "role", 0.5)
    return matching


def test_of_two_crosswise_pairs_the_less_certain_one_is_separated(matching):
    separate_circles(matching)
    assert [matching.evidence[t] for t in np.flatnonzero(matching.classes_t >= 0)] == ["structure"]


def test_pairs_by_value_stay(matching):
    for t in list(matching.evidence):
        matching.evidence[t] = "value"
    separate_circles(matching)
    assert len(matching.evidence) == 2


def test_pairs_in_order_are_no_circle():
    rules = load_shipped_rules()
    target, reference = (
        prepare_side(build_flow(record_chain(seed)), rules, is_target=seed == 1) for seed in (1, 2)
    )
    matching = Matching(target.flow, reference.flow, target.kinds, reference.kinds, 1e-6)
    for t, r in zip(target.flow.writes, reference.flow.writes, strict=True):
        matching.pair(*t, *r, "structure", 0.7)
    separate_circles(matching)
    assert len(matching.evidence) == 2
