"""What a step inherits: the noise that the updates of the step before left."""

import pytest
from run_results import make_finding, make_parameter, make_task

from dumpdiff.model.inheritance import Inheritance
from dumpdiff.run_divergence import find_inheritance

NAME = "layers.0.weight"


def make_later_task(rank: int = 0, weight_error: float = 6e-6):
    parameter = make_parameter(weight="introduced", weight_error=weight_error)
    return make_task(
        rank, make_finding("weight", kind="parameter"), step=1, parameters=(parameter,)
    )


def make_earlier_task(rank: int = 0, **changes):
    return make_task(rank, parameters=(make_parameter(**changes),))


def test_a_weight_may_differ_by_what_the_recorded_update_left():
    earlier, later = make_earlier_task(update="agreeing", update_error=5e-6), make_later_task()

    assert find_inheritance(later, [earlier, later]) == Inheritance({NAME: 1e-5}, 6e-6)


def test_the_largest_error_is_that_of_all_ranks():
    """Through collectives the noise of one rank comes to all others."""
    tasks = [
        make_earlier_task(0, update="agreeing", update_error=5e-6),
        make_earlier_task(1, update="agreeing", update_error=5e-6),
        make_later_task(0, weight_error=1e-6),
        make_later_task(1, weight_error=8e-6),
    ]

    inheritance = find_inheritance(tasks[2], tasks)

    assert inheritance is not None
    assert inheritance.largest_error == 8e-6


def test_of_an_update_that_was_not_recorded_only_noise_is_allowed():
    earlier = make_earlier_task()

    for weight_error, largest_error in ((1e-5, 1e-5), (1e-3, None)):
        later = make_later_task(weight_error=weight_error)
        inheritance = find_inheritance(later, [earlier, later])
        assert (inheritance and inheritance.largest_error) == largest_error


@pytest.mark.parametrize("state", ["gradient", "update", "weight"])
def test_a_weight_whose_step_differs_leaves_no_noise(state: str):
    earlier = make_earlier_task(**({"update_error": 1e-2} | {state: "introduced"}))
    later = make_later_task()

    assert find_inheritance(later, [earlier, later]) is None


def test_nothing_is_inherited_without_need_or_from_a_step_that_diverged():
    agreeing = make_task(0, step=1, parameters=(make_parameter(weight_error=6e-8),))
    assert find_inheritance(agreeing, [make_earlier_task(), agreeing]) is None

    diverged = make_task(0, make_finding("linear"), parameters=(make_parameter(),))
    later = make_later_task()
    assert find_inheritance(later, [diverged, later]) is None
    assert find_inheritance(later, [later]) is None


def test_a_task_that_was_compared_with_its_inheritance_keeps_it():
    """So a finished run is not compared again."""
    earlier, later = make_earlier_task(update="agreeing", update_error=5e-6), make_later_task()
    inheritance = find_inheritance(later, [earlier, later])
    parameter = make_parameter(weight="agreeing", weight_error=6e-6)
    repeated = make_task(0, step=1, parameters=(parameter,), inheritance=inheritance)

    assert find_inheritance(repeated, [earlier, repeated]) == inheritance
