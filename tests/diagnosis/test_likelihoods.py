"""Observations combined: what agrees makes a place improbable as far as it was read."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest

from dumpdiff.diagnosis.decision import DECIDED, POSSIBLE
from dumpdiff.diagnosis.likelihoods import LIKELIHOODS, PLACES, PRIOR, Observation, Place, combine

DATA_AGREE = Observation("batches agree", "data", "agree", "", "data")
WEIGHTS_AGREE = Observation("checkpoints agree", "weights", "agree", "", "weights")
FORWARD_AGREES = Observation("forward values agree", "forward", "agree", "", "forward")
BACKWARD_AGREES = Observation("backward values agree", "backward", "agree", "", "backward")
RULES_AGREE = Observation("update rules agree", "optimizer", "agree", "", "optimizer")
LOSS_DIFFERS = Observation("first loss differs", None, "differ", "", "logs")


def test_every_row_is_a_probability_for_each_hypothesis() -> None:
    assert sum(PRIOR) == pytest.approx(1)
    for kind, row in LIKELIHOODS.items():
        assert len(row) == 1 + len(PLACES), kind
        assert all(0 < value <= 1 for value in row), kind


def test_without_observations_the_prior_remains() -> None:
    belief = combine([])
    assert belief.nothing == pytest.approx(PRIOR[0], rel=0.02)
    assert belief.rank_places(0)[:3] == ("forward", "weights", "data")


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 0, 0.01), (0.125, 0.1, 0.2)])
def test_one_of_eight_ranks_rules_out_one_eighth(share: float, least: float, most: float) -> None:
    kind = "recorded weights agree"
    observation = Observation(kind, "weights", "agree", "", "forward", (), share)
    assert least <= combine([observation]).places["weights"] <= most


def test_a_place_is_left_over() -> None:
    belief = combine([DATA_AGREE, WEIGHTS_AGREE, LOSS_DIFFERS])
    assert belief.places["forward"] > 0.9
    assert belief.nothing < 1e-3


def test_two_places_are_wrong_if_neither_explains_the_other() -> None:
    weights_differ = Observation("checkpoints differ", "weights", "differ", "", "weights")
    rules_differ = Observation("update rules differ", "optimizer", "differ", "", "optimizer")
    belief = combine([weights_differ, rules_differ, LOSS_DIFFERS])
    assert min(belief.places["weights"], belief.places["optimizer"]) > 0.9
    assert max(belief.places["forward"], belief.places["data"]) < 0.1


def test_printed_sums_that_agree_are_counted_once() -> None:
    loss = Observation("first loss agrees", "forward", "agree", "", "logs")
    norm = Observation("first gradients agree", "backward", "agree", "", "logs")
    assert combine([loss, norm]).places == combine([norm]).places


@pytest.mark.parametrize("wrong_place", PLACES[:3])
def test_more_observations_never_exclude_the_place_that_explains_them(wrong_place: Place) -> None:
    """Everything that agrees although the place is wrong, in every selection."""
    agreeing = [DATA_AGREE, WEIGHTS_AGREE, FORWARD_AGREES, BACKWARD_AGREES, RULES_AGREE]
    possible = [item for item in agreeing if item.place != wrong_place]
    possible = [item for item in possible if item.place not in ("forward", "backward")]
    previous = 0.0
    for count in range(1 + len(possible)):
        for items in combinations(possible, count):
            probability = combine([LOSS_DIFFERS, *items]).places[wrong_place]
            assert probability > 0.2
        previous = max(previous, probability)
    assert previous > 0.3


#: What each stage may observe, with what it observes together; () without its input.
STAGES: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((), ("batches agree",), ("saved batches agree",)),
    ((), ("checkpoints agree",)),
    (
        (),
        ("forward values agree", "backward values agree"),
        ("forward values agree", "backward values differ"),
        ("forward values agree", "explained backward values differ"),
        ("forward values differ", "backward values differ"),
        ("explained forward values differ",),
    ),
    (
        (),
        ("most norms differ",),
        ("few norms differ",),
        ("norms by a factor differ",),
        ("norms agree",),
    ),
    (
        (),
        ("first loss differs",),
        ("first loss agrees", "first gradients differ"),
        ("first loss agrees", "first gradients agree", "second loss differs"),
        ("first loss agrees", "first gradients agree", "second loss agrees", "later losses jump"),
        ("first loss agrees", "first gradients agree", "second loss agrees", "later losses drift"),
        ("losses differ early",),
        ("losses differ late",),
    ),
    ((), ("rates agree",), ("rates agree", "update rules agree")),
)
LIKELY = 0.12  #: at least this probable, all together, if the place is wrong


def observe(kind: str) -> Observation:
    is_difference = any(word in kind for word in ("differ", "jump", "drift"))
    return Observation(kind, None, "differ" if is_difference else "agree", "", kind)


@pytest.mark.parametrize("wrong_place", PLACES)
def test_no_likely_observations_name_another_place_or_leave_out_the_wrong_one(
    wrong_place: Place,
) -> None:
    column = 1 + PLACES.index(wrong_place)
    n_selections = 0
    for observed in product(*STAGES):
        kinds = [kind for stage in observed for kind in stage]
        observations = [observe(kind) for kind in kinds]
        if math.prod(LIKELIHOODS[kind][column] for kind in kinds) < LIKELY:
            continue
        if not any(item.verdict == "differ" for item in observations):
            continue
        belief = combine(observations)
        named_places = set(belief.rank_places(DECIDED))
        assert named_places <= {wrong_place}, kinds
        assert named_places or belief.places[wrong_place] >= POSSIBLE, kinds
        n_selections += 1
    assert n_selections > 10
