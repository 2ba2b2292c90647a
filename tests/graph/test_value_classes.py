"""Value classes: tensors of the same numbers are one class, whatever their shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.graph.statistics import compute_statistics
from dumpdiff.graph.value_classes import (
    _find_first_equals,
    assign_classes,
    count_evidence,
    flag_doubtful_files,
    flag_immediates,
)
from dumpdiff.model.trace import build_op_table, build_tensor_table


def build_table(arrays, **columns):
    """A tensor table of arrays, all of them inputs of op 0 unless columns say otherwise."""
    rows = [compute_statistics(np.asarray(array)) for array in arrays]
    numbers = dict(
        zip(
            ("max", "min", "mean", "norm", "nonfinite"),
            map(list, zip(*rows, strict=True)),
            strict=True,
        )
    )
    return build_tensor_table(
        {
            "op": [0] * len(arrays),
            "slot": [f"input.{number}" for number in range(len(arrays))],
            "slot_kind": ["input"] * len(arrays),
            "dtype": [str(np.asarray(array).dtype) for array in arrays],
            "shape": [np.asarray(array).shape for array in arrays],
            "size": [np.asarray(array).size for array in arrays],
            **numbers,
            **columns,
        }
    ).copy()  # columns that repeat one number are read-only


def draw_array(seed, shape=(4, 6, 8)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compare_classes(classes):
    """Which rows are one class, whatever the classes are called."""
    return (classes[:, None] == classes[None, :]).tolist()


class TestSameValues:
    @given(st.permutations([0, 1, 2]), st.integers(0, 100))
    def test_a_transpose_is_what_it_transposes(self, axes, seed):
        array = draw_array(seed)
        assert assign_classes(
            build_table([array, array.transpose(axes), array.reshape(-1)]), False
        ).tolist() == [0, 0, 0]

    def test_rotated_complex_numbers_are_another_value(self):
        """What is recorded of them are magnitudes, and these stay the same."""
        numbers = draw_array(1) + 1j * draw_array(2)
        assert assign_classes(build_table([numbers, 1j * numbers]), False).tolist() == [0, 1]

    @given(st.integers(2, 40))
    def test_different_tensors_of_one_distribution_are_different_classes(self, count):
        arrays = [draw_array(seed) for seed in range(count)]
        assert assign_classes(build_table(arrays), False).tolist() == list(range(count))

    @given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
    def test_classes_are_numbered_by_first_appearance(self, seeds):
        classes = assign_classes(build_table([draw_array(seed) for seed in seeds]), False)
        order = list(dict.fromkeys(seeds))
        assert classes.tolist() == [order.index(seed) for seed in seeds]

    @given(st.permutations(range(8)))
    def test_the_order_of_rows_changes_no_class(self, order):
        rows = build_table([draw_array(seed // 2) for seed in range(8)])
        classes = assign_classes(rows, False)
        shuffled = assign_classes(rows.iloc[list(order)].reset_index(drop=True), False)
        assert compare_classes(shuffled) == compare_classes(classes[list(order)])

    def test_a_difference_of_one_part_in_ten_thousand_is_another_value(self):
        array = draw_array(0)
        assert assign_classes(build_table([array, array * np.float32(1.0001)]), False).tolist() == [
            0,
            1,
        ]

    def test_another_number_of_elements_is_another_value(self):
        array = draw_array(0)
        assert assign_classes(
            build_table([array, np.concatenate([array, array])]), False
        ).tolist() == [0, 1]

    def test_norms_summed_in_bfloat16_are_compared_with_its_precision(self):
        rows = build_table([draw_array(0), draw_array(0)], dtype=["bfloat16", "bfloat16"])
        rows.loc[1, "norm"] *= 1 + 2**-8
        assert assign_classes(rows, True).tolist() == [0, 0]
        assert assign_classes(rows, False).tolist() == [0, 1]

    @pytest.mark.parametrize("rounding", [-1e-7, 0, 1e-7])
    def test_another_tensor_of_these_extremes_and_this_norm_stands_between_no_two(self, rounding):
        """Half of a rotated tensor has other signs; where its norm is sorted, rounding decides."""
        rows = build_table([draw_array(0), draw_array(0), draw_array(0)])
        rows.loc[1, "norm"] *= 1 + 2e-7
        rows.loc[2, "norm"] *= 1 + 1e-7 + rounding
        rows.loc[2, "mean"] = 0.5
        assert assign_classes(rows, False).tolist() == [0, 0, 1]

    def test_missing_statistics_do_not_separate_equal_values(self):
        rows = build_table([draw_array(0), draw_array(0)])
        rows.loc[1, ["mean", "norm"]] = np.nan
        assert assign_classes(rows, False).tolist() == [0, 0]


class TestModuleResults:
    """A tensor of one repeated number carries no information."""

    REPEATED = np.full((4,), 3.25, np.float32)

    @pytest.mark.parametrize(("parent", "expected"), [(1, [0, 0]), (-1, [0, 1])])
    def test_what_an_op_inside_computed_is_what_the_module_returns(self, parent, expected):
        outputs = [self.REPEATED] * 2
        tensors = build_table(outputs, op=[0, 1], slot_kind=["output"] * 2)
        ops = build_op_table({"name": ["add", "block"], "level": ["op", "module"],
                              "parent": [parent, -1]})  # fmt: skip
        assert assign_classes(tensors, False, ops=ops).tolist() == expected


class TestTensorsThatSayNothing:
    """All ones, zeros, masks: equal by chance, not because one is the other."""

    def test_equal_parameters_stay_apart(self):
        assert assign_classes(build_table([np.ones(64), np.ones(64)]), False).tolist() == [0, 1]

    def test_an_input_is_the_latest_output_that_looks_the_same(self):
        rows = build_table(
            [np.zeros(64), np.zeros(64), np.zeros(64)],
            slot_kind=["output", "output", "input"],
            op=[0, 1, 2],
        )
        assert assign_classes(rows, False).tolist() == [0, 1, 1]

    def test_an_input_before_any_output_is_a_value_of_its_own(self):
        rows = build_table([np.zeros(64), np.zeros(64)], slot_kind=["input", "output"], op=[0, 1])
        assert assign_classes(rows, False).tolist() == [0, 1]


class TestWhatTheDumpItselfSays:
    def test_a_recorded_edge_joins_whatever_the_numbers(self):
        rows = build_table(
            [draw_array(0), draw_array(1)], slot_kind=["output", "input"], source_tensor=[-1, 0]
        )
        assert assign_classes(rows, False).tolist() == [0, 0]

    def test_equal_checksums_join_tensors_without_numbers(self):
        rows = build_table([draw_array(0), draw_array(1), draw_array(2)], hash=["aa", "bb", "aa"])
        rows[["max", "min", "mean", "norm"]] = np.nan
        assert assign_classes(rows, False).tolist() == [0, 1, 0]

    def test_untrusted_tensors_have_no_class(self):
        rows = build_table([draw_array(0), draw_array(0)], trusted=[True, False])
        assert assign_classes(rows, False).tolist() == [0, -1]

    def test_shapes_axes_and_scalars_have_no_class(self):
        rows = build_table([np.array([2, 3]), draw_array(0)], constant=[True, False])
        assert flag_immediates(rows).tolist() == [True, False]
        assert assign_classes(rows, False).tolist() == [-1, 0]

    def test_a_table_of_constants_has_a_class(self):
        rows = build_table([draw_array(0, (64,))], constant=[True])
        assert assign_classes(rows, False).tolist() == [0]


class TestEvidence:
    @given(st.integers(0, 200))
    def test_a_tensor_of_random_numbers_says_all_four(self, seed):
        assert count_evidence(build_table([draw_array(seed)])).tolist() == [4]

    @pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.5, 1e-5, 1e-2, -1e9, np.inf, np.nan])
    def test_one_repeated_number_of_those_people_type_says_nothing(self, value):
        assert count_evidence(build_table([np.full((4, 4), value)])).tolist() == [0]

    def test_one_repeated_computed_number_says_one_thing(self):
        assert count_evidence(build_table([np.full((4, 4), 0.123456)])).tolist() == [1]

    def test_a_causal_mask_says_nothing_by_its_extremes(self):
        mask = np.triu(np.full((8, 8), -1e9), 1)
        assert count_evidence(build_table([mask])).tolist() == [0]

    @given(st.integers(0, 50))
    def test_a_number_that_is_missing_never_says_more(self, seed):
        rows = build_table([draw_array(seed)])
        full = count_evidence(rows)[0]
        for name in ("max", "min", "mean", "norm"):
            less = rows.copy()
            less[name] = np.nan
            assert count_evidence(less)[0] < full


class TestDoubtfulFiles:
    """Op 0 has a file of a value that nobody produced; other records of it have statistics."""

    def flag(self, parents, forward_ops=(-1, -1), phases=("forward", "forward")):
        ops = build_op_table(
            {
                "name": ["Functional.linear.0", "other"],
                "level": ["op", "module"],
                "parent": parents,
                "forward": forward_ops,
                "phase": phases,
            }
        )
        tensors = build_tensor_table({"op": [0, 1], "slot": ["input.0"] * 2, "size": [6, 6]})
        tensor_class, producers = np.zeros(2, dtype=np.int64), np.array([-1])
        lacks_file = np.array([False, True])
        return flag_doubtful_files(ops, tensors, tensor_class, producers, lacks_file).tolist()

    def test_another_value_of_equal_statistics_may_be_a_table_in_another_order(self):
        assert self.flag([-1, -1]) == [True, True]

    def test_the_call_of_the_module_around_the_op_reads_the_same_value(self):
        assert self.flag([1, -1]) == [False, False]

    def test_the_backward_call_of_that_module_has_another_phase(self):
        assert self.flag([1, -1], phases=("forward", "backward")) == [True, True]


def test_each_row_has_the_first_row_with_its_numbers():
    sizes = np.array([4.0, 4.0, 4.0, 8.0, 4.0])
    norms = np.array([1.0, np.nan, 1.0, 1.0, np.nan])
    assert _find_first_equals([sizes, norms]).tolist() == [0, 1, 0, 3, 1]
    assert _find_first_equals([np.empty(0), np.empty(0)]).tolist() == []
