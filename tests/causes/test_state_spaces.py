"""Linear recurrences that are written out: h' = exp(dt A) h + dt B u."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.region import Region

from .test_composites import explain_region, make_region

RNG = np.random.default_rng(9)
STATE = RNG.standard_normal((2, 6, 4))
LOG_DECAY = -RNG.uniform(0.1, 2.0, (2, 6, 4))
DT_B, U = RNG.standard_normal((2, 6, 4)), RNG.standard_normal((2, 6, 4))


def mark_inputs(region: Region, **marks: dict[str, object]) -> Region:
    """Return the region with fields of the inputs of these names."""
    steps = []
    for step in region.steps:
        inputs = [replace(item, **marks.get(item.name, {})) for item in step.inputs]
        steps.append(replace(step, inputs=tuple(inputs)))
    return Region(tuple(steps), region.order, region.shape)


def make_step_region(**marks: dict[str, object]) -> Region:
    """Return exp(P) h + B u with P, h and B u given."""
    exponential, term = np.exp(LOG_DECAY), DT_B * U
    region = make_region(
        [
            ("mul", [("state", STATE), ("decay", exponential)]),
            ("add", [("last", 0.0), ("bu", term)]),
        ]
    )
    return mark_inputs(region, **marks)


def test_initial_state_of_zeros():
    region = make_step_region(state={"is_given": True})
    assert explain_region(region, DT_B * U) == (
        "hidden-state-reset",
        "an initial state of zeros in mul_0; the reference has state",
    )


def test_state_of_the_step_before_is_not_carried():
    """The state was computed by an op like the sum that follows."""
    region = make_step_region(state={"name": "mixer/add_7"})
    assert explain_region(region, DT_B * U) == (
        "hidden-state-reset",
        "a state of zeros in mul_0; the reference has mixer/add_7",
    )


def test_any_other_missing_addend_is_no_state():
    assert explain_region(make_step_region(), DT_B * U)[0] != "hidden-state-reset"


def test_decay_without_its_sign():
    positive = -LOG_DECAY
    region = make_region(
        [
            ("neg", [("a", positive)]),
            ("exp", [("last", 0.0)]),
            ("mul", [("last", 0.0), ("h", STATE)]),
        ]
    )
    assert explain_region(region, np.exp(positive) * STATE) == (
        "decay-sign",
        "a without the minus sign before the exponential",
    )


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (
            np.expm1(LOG_DECAY) / LOG_DECAY,
            "B discretized as (exp(dt A) - 1) / A B (zero-order hold); the reference has dt B "
            "(Euler)",
        ),
        (
            1 / (1 - LOG_DECAY / 2),
            "B discretized as dt / (1 - dt A / 2) B (bilinear); the reference has dt B (Euler)",
        ),
    ],
)
def test_other_discretization_of_the_input(ratio, sentence):
    """The decay is next to the term: its exponential multiplies the state."""
    region = make_region(
        [
            ("exp", [("p", LOG_DECAY)]),
            ("mul", [("last", 0.0), ("h", STATE)]),
        ]
    )
    product = make_region([("mul", [("dt_b", DT_B), ("u", U)])])
    decayed = region.steps[-1]
    term = replace(product.steps[0], value=7, name="mul_7")
    total = make_region([("add", [("decayed", decayed.output), ("term", term.output)])]).steps[0]
    inputs = tuple(
        replace(item, value=value) for item, value in zip(total.inputs, (1, 7), strict=True)
    )
    total = replace(total, inputs=inputs, value=9)
    joined = Region((*region.steps, term, total), None, total.output.shape)
    faulty = decayed.output + ratio * DT_B * U
    assert explain_region(joined, faulty) == ("discretization", sentence)


def test_decay_by_its_first_two_terms():
    region = make_region([("exp", [("p", LOG_DECAY)]), ("mul", [("last", 0.0), ("h", STATE)])])
    assert explain_region(region, (1 + LOG_DECAY) * STATE) == (
        "discretization",
        "A discretized as 1 + dt A (Euler); the reference has exp(dt A) (zero-order hold)",
    )


def test_skip_with_its_weights_is_left_out():
    """y + D u of a state space."""
    u, y, weights = U[0], DT_B[0], RNG.standard_normal(4)
    region = make_region(
        [("mul", [("u", u), ("mixer.D.weight", weights)]), ("add", [("last", 0.0), ("y", y)])]
    )
    assert explain_region(region, y) == (
        "skip-missing",
        "without mixer.D.weight times u in the sum add_1",
    )
