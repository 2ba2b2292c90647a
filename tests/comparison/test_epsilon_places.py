"""One epsilon of Adam, added at two places, is no difference; two epsilons are one."""

import numpy as np
import pytest
from traces import align_traces, edit_tensors, load_shipped_rules

from dumpdiff.comparison.epsilon_places import (
    estimate_effect,
    find_common_epsilon,
    measure_remainder,
)
from dumpdiff.comparison.scalars import collect_scalars

BETA2 = 0.999
RATE = 1e-3


def find_epsilon(target, reference):
    alignment = align_traces(target, reference)
    rules = load_shipped_rules()
    flows = (alignment.target, alignment.reference)
    return find_common_epsilon(alignment, [collect_scalars(flow, rules) for flow in flows])


def make_steps(gradient, epsilon, other_epsilon):
    """Return the first steps of MindSpore's fused Adam and PyTorch's, and the second moment."""
    correction = np.sqrt(1 - BETA2)
    second_moment = (1 - BETA2) * gradient**2
    fused = -RATE * gradient * correction / (np.sqrt(second_moment) + epsilon)
    composed = -RATE * gradient / (np.sqrt(second_moment) / correction + other_epsilon)
    return (fused, composed), second_moment


@pytest.fixture
def gradient():
    return np.random.default_rng(0).normal(0, 1e-5, 1000)


def test_a_fused_adam_names_its_epsilon_and_a_composed_one_adds_it(trace):
    assert find_epsilon(trace("ms_update_adam"), trace("pt_update_adam")) == pytest.approx(1e-8)


def test_two_epsilons_are_no_common_one(trace):
    reference = trace("pt_update_adam")
    is_epsilon = (reference.tensors["max"] == 1e-8) & reference.tensors["constant"]
    other = edit_tensors(reference, np.flatnonzero(is_epsilon), max=1e-6, min=1e-6, mean=1e-6)
    assert find_epsilon(trace("ms_update_adam"), other) == 0.0


def test_an_optimizer_without_an_epsilon_has_none(trace):
    assert find_epsilon(trace("ms_update_assign_sub"), trace("pt_update_sgd")) == 0.0


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_steps_that_differ_by_the_place_of_epsilon_leave_nothing(gradient, is_exchanged):
    steps, second_moment = make_steps(gradient, 1e-6, 1e-6)
    size = np.linalg.norm(steps[1])
    assert np.linalg.norm(steps[0] - steps[1]) > 0.1 * size
    remainder = measure_remainder(steps[::-1] if is_exchanged else steps, second_moment, 1e-6)
    assert remainder < 1e-5 * size


def test_another_rate_is_left(gradient):
    (fused, composed), second_moment = make_steps(gradient, 1e-6, 1e-6)
    remainder = measure_remainder((1.05 * fused, composed), second_moment, 1e-6)
    assert remainder > 1e-3 * np.linalg.norm(fused)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-8, 1e-7])
def test_the_mean_of_the_second_moment_bounds_the_effect(gradient, epsilon):
    (fused, composed), second_moment = make_steps(gradient, epsilon, epsilon)
    effect = np.linalg.norm(fused - composed) / np.linalg.norm(composed)
    assert effect <= estimate_effect(second_moment.mean(), epsilon) <= 3 * effect


def test_without_a_gradient_there_is_no_effect():
    assert estimate_effect(0.0, 1e-8) == 0.0
