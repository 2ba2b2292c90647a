"""Lists of whole numbers in two arrays."""

import numpy as np

from dumpdiff.model.int_lists import IntLists

LISTS = [(3, 1, 3), (), (0,)]


class TestIntLists:
    def test_rows_are_the_lists(self):
        lists = IntLists.from_lists(LISTS)
        assert list(lists) == LISTS
        assert [lists[row] for row in range(len(lists))] == LISTS
        assert lists.counts.tolist() == [3, 0, 1]
        assert lists.rows.tolist() == [0, 0, 0, 2]

    def test_pairs_of_a_row_keep_their_order(self):
        rows, values = np.array([2, 0, 0, 0]), np.array([0, 3, 1, 3])
        assert list(IntLists.from_pairs(3, rows, values)) == LISTS

    def test_the_first_of_equal_values_is_kept(self):
        assert list(IntLists.from_lists(LISTS).remove_repeats()) == [(3, 1), (), (0,)]

    def test_rows_are_taken_in_the_order_asked_for(self):
        assert list(IntLists.from_lists(LISTS).take(np.array([2, 0, 1, 2]))) == [
            (0,), (3, 1, 3), (), (0,),
        ]  # fmt: skip

    def test_the_first_value_of_an_empty_list_is_minus_one(self):
        assert IntLists.from_lists(LISTS).first_values.tolist() == [3, -1, 0]

    def test_a_value_is_a_member_of_the_lists_that_hold_it(self):
        lists = IntLists.from_lists([(3, -1), (), (0,)])
        rows, values = np.array([0, 0, 0, 1, 2, 2]), np.array([3, -1, 0, 3, 0, -1])
        assert lists.flag_members(rows, values).tolist() == [True, True, False, False, True, False]
        assert not IntLists.from_lists([(), ()]).flag_members(rows[:0], values[:0]).any()

    def test_inverted_lists_have_the_rows_of_each_value(self):
        assert list(IntLists.from_lists(LISTS).invert(5)) == [(2,), (0,), (), (0, 0), ()]

    def test_no_rows_and_no_values(self):
        assert list(IntLists.from_lists([])) == []
        assert list(IntLists.from_lists([(), ()]).remove_repeats()) == [(), ()]
        assert list(IntLists.from_lists([()]).invert(2)) == [(), ()]
