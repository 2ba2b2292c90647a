"""What a result says of itself without a report."""

from __future__ import annotations

from results import ALIGNED_STATES, make_pairs, make_result


def test_compared_values_beyond_tolerance_are_counted_by_state() -> None:
    assert make_result().count_differing_values() == {"introduced": 1, "propagated": 9}
    assert make_result().count_differing_values("backward") == {}
    assert make_result(states=ALIGNED_STATES).count_differing_values() == {}


def test_a_value_that_reconverged_counts_only_if_it_was_compared() -> None:
    """Of the target's values 12 reconverged without having been compared."""
    forward = {"values": {"agreeing": 147, "reconverged": 15}, "ops": {}}
    states = {**ALIGNED_STATES, "target": {"forward": forward}}
    assert make_result(states=states).count_differing_values() == {"reconverged": 3}


def test_slot_pairs_count_although_their_values_have_partners_of_their_own() -> None:
    pairs = make_pairs(
        {"state": "propagated", "evidence": "slot", "phase": "forward"},
        {"state": "agreeing", "evidence": "slot", "phase": "forward"},
    )
    result = make_result(states=ALIGNED_STATES, pairs=pairs)
    assert result.count_differing_values() == {"propagated": 1}
    assert result.count_differing_values("backward") == {}
