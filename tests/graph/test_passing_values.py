"""Values that are only passed on: what a missing op may have produced."""

import numpy as np
import pytest

from dumpdiff.graph.passing_values import WINDOW, flag_passing_values
from dumpdiff.model.int_lists import IntLists

N_OPS = 400


def is_passing(readers, *, phases=None, writers=(10,)):
    """Return whether a value that these ops of a run read is only passed on."""
    has_results = np.zeros(N_OPS, dtype=bool)
    has_results[list(writers)] = True
    phases = np.zeros(N_OPS, dtype=int) if phases is None else phases
    consumers = IntLists.from_lists([readers])
    (flag,) = flag_passing_values(consumers, consumers.first_values, phases, has_results).tolist()
    return flag


def test_a_value_that_is_read_soon_after_a_result_is_passed_on():
    assert is_passing([11])
    assert is_passing([10 + WINDOW, 20 + WINDOW])


@pytest.mark.parametrize("reader", [9, 10, 11 + WINDOW])
def test_without_a_result_shortly_before_it_is_an_input(reader):
    assert not is_passing([reader])


def test_what_is_read_over_a_quarter_of_the_run_is_a_buffer():
    assert is_passing([11, 11 + N_OPS // 4 - 1])
    assert not is_passing([11, 11 + N_OPS // 4])


def test_reads_in_another_phase_do_not_count():
    phases = np.repeat([0, 1], N_OPS // 2)
    assert is_passing([11, N_OPS - 1], phases=phases)


def test_what_nothing_reads_is_not_passed_on():
    assert not is_passing([])
