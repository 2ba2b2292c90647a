"""States that a call of a layer overwrites: running statistics."""

import numpy as np
import pandas as pd

from dumpdiff.graph.written_states import find_written_states
from dumpdiff.model.int_lists import IntLists

#: Two calls of a norm, each with an op inside of it: 0 in 1, and 2 in 3.
PARENTS = [1, -1, 3, -1]
X, FIRST_STATE, SECOND_STATE, WEIGHT = range(4)
#: The record of a call has the state as it is after the call, the op inside reads the one before.
READS = [[X, WEIGHT], [X, WEIGHT, FIRST_STATE], [X, FIRST_STATE, WEIGHT], [X, WEIGHT, SECOND_STATE]]


def find(named):
    rows = np.repeat(np.arange(len(READS)), [len(values) for values in READS])
    reads = IntLists.from_pairs(len(READS), rows, np.concatenate(READS))
    values = pd.DataFrame(named, columns=["name", "value"])
    return find_written_states(values, reads.invert(4), reads, PARENTS)


def test_a_state_comes_from_what_its_call_was_given():
    named = [("norm.mean", FIRST_STATE), ("norm.mean", SECOND_STATE), ("norm.weight", WEIGHT)]
    assert find(named) == {FIRST_STATE: (X,), SECOND_STATE: (X,)}


def test_a_parameter_of_one_value_is_no_state():
    assert find([("norm.mean", FIRST_STATE), ("norm.weight", WEIGHT)]) == {}
