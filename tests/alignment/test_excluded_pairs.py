"""Pairs that the dataflow excludes: of values that follow from themselves, and of copies."""

import numpy as np
import pytest
from traces import load_shipped_rules, record_calls, start_matching

from dumpdiff.alignment.excluded_pairs import separate_circles, separate_copies
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


def record_masks(n_copies):
    """Two masks of two steps; what the first one keeps is computed once for each of its readers."""
    first, second = np.random.default_rng(3).standard_normal((2, 4, 5))
    copies = [("Neg", (first,), -first) for _ in range(n_copies)]
    return record_calls(("Exp", (first,), np.exp(first)), *copies, ("Neg", (second,), -second))


class TestCopies:
    @pytest.fixture
    def matching(self):
        """Both sides compute -first and -second, the reference -first twice, as two values."""
        target, reference = record_masks(1), record_masks(2)
        outputs = np.flatnonzero(reference.tensors["slot_kind"] == "output")
        reference.tensors.loc[outputs[2], "mean"] += 1.0  # equal statistics would make one value
        matching = start_matching(target, reference)
        (first_t,), (second_t,) = target_values = list(matching.target.operands)[1:]
        (first_r,), _, (second_r,) = list(matching.reference.operands)[1:]
        assert target_values
        for t, r in ((first_t, first_r), (second_t, second_r)):
            assert matching.pair(t, r, "value", 0.9)
        (own_t,), _ = list(matching.target.writes)[1:]
        (own_r,), *_ = list(matching.reference.writes)[1:]
        assert matching.pair(own_t, own_r, "value", 0.9)
        return matching

    def test_a_copy_is_no_partner_of_what_follows_from_another_value(self, matching):
        _, _, (second_t,) = list(matching.target.writes)
        _, _, (copy_r,), _ = list(matching.reference.writes)
        assert matching.pair(second_t, copy_r, "structure", 0.7)
        separate_copies(matching)
        assert matching.classes_t[second_t] == -1

    def test_a_pair_that_follows_from_partners_stays(self, matching):
        _, _, (second_t,) = list(matching.target.writes)
        _, _, _, (second_r,) = list(matching.reference.writes)
        assert matching.pair(second_t, second_r, "structure", 0.7)
        separate_copies(matching)
        assert matching.classes_t[second_t] == second_r
