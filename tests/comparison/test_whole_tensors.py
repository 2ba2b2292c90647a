"""Whole tensors of a pair: selected files, layouts, and files that cannot be read."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    align_traces,
    compare_traces,
    edit_tensors,
    find_pair,
    find_tensor,
    find_tensors_like,
    load_shipped_rules,
    replace_arrays,
)

from dumpdiff import read
from dumpdiff.comparison import compare_pairs
from dumpdiff.model.errors import DumpError
from dumpdiff.model.recorded_shapes import load_shaped_tensor

LINEAR, SILU = "Functional.linear.11.forward", "Functional.silu.1.forward"


@pytest.fixture(scope="module")
def clean(trace):
    return compare_traces(trace("demo_pytorch"), trace("demo_pytorch"))


@pytest.fixture(scope="module")
def frameworks(trace):
    return compare_traces(trace("demo_mindspore"), trace("demo_pytorch"))


class TestTwoEqualRuns:
    def test_no_element_differs(self, clean):
        whole_pairs = clean.pairs[clean.pairs["metric"] != "statistics"]
        assert len(whole_pairs) > 250
        assert (whole_pairs["error"] == 0).all()
        assert (whole_pairs["mismatches"] == 0).all()
        assert clean.pairs["agrees"].all()

    def test_no_layout_is_invented(self, clean):
        assert set(clean.pairs["layout"]) <= {"same", "reshape"}

    def test_floats_are_measured_by_relative_l2_and_tokens_by_mismatches(self, clean):
        assert find_pair(clean, LINEAR)["metric"] == "relative_l2"
        tokens = find_pair(clean, "Functional.embedding.0.forward", "input.0")
        assert tokens["metric"] == "mismatches"
        assert tokens["tolerance"] == 0


class TestTwoFrameworks:
    def test_weights_are_equal_bit_for_bit(self, frameworks):
        leaves = (
            frameworks.alignment.target.classes["parameter"].to_numpy()[frameworks.pairs["target"]]
            != ""
        )
        assert leaves.sum() > 25
        assert (frameworks.pairs["error"][leaves] == 0).all()

    def test_tensors_of_the_same_shape_are_preferred(self, frameworks):
        tensors_t, tensors_r = (
            f.tensors for f in (frameworks.alignment.target, frameworks.alignment.reference)
        )
        whole_pairs = frameworks.pairs[frameworks.pairs["layout"] == "same"]
        shapes_t = [
            [n for n in tensors_t["shape"].iat[i] if n != 1] for i in whole_pairs["target_tensor"]
        ]
        shapes_r = [
            [n for n in tensors_r["shape"].iat[i] if n != 1]
            for i in whole_pairs["reference_tensor"]
        ]
        assert shapes_t == shapes_r

    def test_heads_before_and_after_the_sequence_are_a_transpose(self, frameworks):
        turned = frameworks.pairs[frameworks.pairs["layout"] == "transpose(0,2,1,3)"]
        assert len(turned) == 9, (
            "gradients of queries, keys and values of three layers, after the fault of this pair"
        )
        assert turned["error"].max() < 0.1


class TestADifference:
    def test_a_factor_is_measured_exactly(self, trace):
        clean_trace = trace("demo_pytorch")
        comparison = compare_traces(
            replace_arrays(clean_trace, SILU, "output.0", lambda array: array * np.float32(1.25)),
            clean_trace,
        )
        pair = find_pair(comparison, SILU)
        assert pair["error"] == pair["relative_l2"] == pytest.approx(0.25)
        assert pair["cosine"] == pytest.approx(1)
        assert pair["max_relative"] == pytest.approx(0.25)
        assert not pair["agrees"]
        assert comparison.pairs["agrees"].sum() == len(comparison.pairs) - 1

    def test_one_wrong_token_is_one_mismatch(self, trace):
        def change_token(tokens):
            tokens = tokens.copy()
            tokens.flat[3] += 1
            return tokens

        clean_trace = trace("demo_pytorch")
        name = "Functional.embedding.0.forward"
        pair = find_pair(
            compare_traces(replace_arrays(clean_trace, name, "input.0", change_token), clean_trace),
            name,
            "input.0",
        )
        size = clean_trace.tensors["size"].iat[find_tensors_like(clean_trace, name, "input.0")[0]]
        assert pair["mismatches"] == 1
        assert pair["error"] == 1 / size
        assert not pair["agrees"]

    def test_nan_on_one_side_is_counted(self, trace):
        def insert_nan(array):
            array = array.copy()
            array.flat[[1, 5]] = np.nan
            return array

        clean_trace = trace("demo_pytorch")
        pair = find_pair(
            compare_traces(replace_arrays(clean_trace, SILU, "output.0", insert_nan), clean_trace),
            SILU,
        )
        assert pair["nonfinite_mismatch"] == 2
        assert pair["error"] == 0, "of the others"
        assert not pair["agrees"]

    def test_another_order_of_the_axes_is_no_difference(self, trace):
        """The file holds the transpose: that is found, named, and agrees."""
        clean_trace = trace("demo_pytorch")
        weight = find_tensors_like(clean_trace, LINEAR, "input.1")
        rows, columns = clean_trace.tensors["shape"].iat[weight[0]]
        turned = replace_arrays(
            clean_trace, LINEAR, "input.1", lambda array: np.ascontiguousarray(array.T)
        )
        turned = edit_tensors(turned, weight, shape=(columns, rows))
        pair = find_pair(compare_traces(turned, clean_trace), LINEAR, "input.1")
        assert "transpose" in pair["layout"]
        assert pair["error"] == 0
        assert pair["agrees"]

    def test_the_rounded_error_tells_a_dtype_policy_from_a_fault(self, trace):
        clean_trace = trace("demo_pytorch")
        half = replace_arrays(clean_trace, SILU, "output.0", lambda array: array.astype(np.float16))
        half = edit_tensors(half, find_tensors_like(clean_trace, SILU, "output.0"), dtype="float16")
        pair = find_pair(compare_traces(half, clean_trace), SILU)
        assert 1e-5 < pair["error"] < 2.0**-11
        assert pair["rounded_error"] == 0

    def test_types_of_one_precision_are_not_rounded(self, clean):
        assert np.isnan(find_pair(clean, SILU)["rounded_error"])


@pytest.fixture(scope="module")
def damaged(trace):
    """A comparison in which one result of the target cannot be read."""

    def refuse(array):
        raise DumpError("not an npy file")

    clean_trace = trace("demo_pytorch")
    return compare_traces(replace_arrays(clean_trace, SILU, "output.0", refuse), clean_trace)


class TestFewOpsRecordedWhole:
    """Two values can have the same statistics: a rotation keeps the norm, and may the extremes."""

    def compare_with_rolled_inputs(self, clean_trace, **columns):
        """The ops that read a result hold its numbers in another order; it has no file itself."""
        rows = find_tensors_like(clean_trace, SILU, "output.0")
        outputs = [row for row in rows if clean_trace.tensors["slot_kind"].iat[row] == "output"]
        assert len(outputs) < len(rows)
        rolled = replace_arrays(clean_trace, SILU, "output.0", lambda array: np.roll(array, 3))
        target = edit_tensors(edit_tensors(rolled, outputs, file=""), rows, **columns)
        return find_pair(compare_traces(target, clean_trace), SILU)

    def test_equal_statistics_count_if_what_the_op_wrote_is_not_recorded(self, trace):
        pair = self.compare_with_rolled_inputs(trace("demo_pytorch"))
        assert pair["metric"] == "statistics"
        assert pair["agrees"]

    def test_other_statistics_do_not_hide_what_the_whole_tensors_show(self, trace):
        pair = self.compare_with_rolled_inputs(trace("demo_pytorch"), norm=1.0)
        assert pair["metric"] == "relative_l2"
        assert not pair["agrees"]


class TestUnreadableFiles:
    def test_an_unreadable_file_is_a_problem_with_its_name(self, damaged):
        (problem,) = damaged.problems
        assert "not an npy file" in problem.message
        assert (
            problem.file
            == damaged.alignment.target.tensors["file"].iat[
                int(find_pair(damaged, SILU)["target_tensor"])
            ]
        )

    def test_the_statistics_of_an_unreadable_file_are_compared(self, damaged):
        pair = find_pair(damaged, SILU)
        assert pair["metric"] == "statistics"
        assert pair["agrees"]


class TestShape:
    def test_flat_files_get_the_recorded_shape(self, trace):
        clean_trace = trace("demo_pytorch")
        flat = replace_arrays(clean_trace, SILU, "output.0", np.ravel)
        tensor = find_tensors_like(clean_trace, SILU, "output.0")[0]
        assert load_shaped_tensor(flat, tensor).shape == clean_trace.tensors["shape"].iat[tensor]

    def test_files_of_another_size_keep_theirs(self, trace):
        clean_trace = trace("demo_pytorch")
        tensor = find_tensors_like(clean_trace, SILU, "output.0")[0]
        short = replace_arrays(clean_trace, SILU, "output.0", lambda array: array[:1])
        assert load_shaped_tensor(short, tensor).shape == clean_trace.array(tensor)[:1].shape


def test_progress_is_reported(trace):
    shares = []
    compare_pairs(
        align_traces(trace("demo_pytorch"), trace("demo_pytorch")),
        load_shipped_rules(),
        shares.append,
    )
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


class TestClassesOfSeveralOrders:
    """The result of a roll has the numbers of its input, in another order."""

    @pytest.fixture(params=[False, True], ids=["in the target", "in the reference"])
    def sides(self, trace, request):
        """One side wrote the value as a matrix, and has it rolled in the shape of the other."""
        clean_trace = trace("demo_pytorch")
        written, *others = find_tensors_like(clean_trace, SILU, "output.0")
        shape = clean_trace.tensors["shape"].iat[written]
        rolled_files = set(clean_trace.tensors["file"].iloc[others])
        flat = edit_tensors(clean_trace, written, shape=(shape[0] * shape[1], shape[2]))

        def load(file):
            array = clean_trace.load(file)
            return np.roll(array, 1, axis=1) if file in rolled_files else array

        sides = (replace(flat, load=load), clean_trace)
        return sides[::-1] if request.param else sides

    def test_a_value_is_compared_as_its_producers_wrote_it(self, sides):
        pair = find_pair(compare_traces(*sides), SILU)
        assert pair["error"] == 0
        assert pair["layout"] == "reshape"
        slots = [
            side.tensors["slot"].iat[int(pair[column])]
            for side, column in zip(sides, ("target_tensor", "reference_tensor"), strict=True)
        ]
        assert slots == ["output.0", "output.0"]


class TestReadersOfOneOrder:
    """One side wrote the tokens step by step, and moved them back before its readers read them.

    The recorder shows no op that moves them.
    """

    TANH = "Torch.tanh.0.forward"

    @pytest.fixture
    def traces(self, dump):
        folder = dump("pt_unrecorded")
        return [read(folder / f"order_{form}") for form in ("steps", "plain")]

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_a_value_is_compared_as_both_readers_have_it(self, traces, is_mirrored):
        sides = traces[::-1] if is_mirrored else traces
        shapes = [side.array(find_tensor(side, self.TANH, "output.0")).shape for side in sides]
        assert shapes == [(10, 6), (10, 6)]
        pair = find_pair(compare_traces(*sides), self.TANH)
        assert pair["error"] == 0
        slots = [
            side.tensors["slot"].iat[int(pair[column])]
            for side, column in zip(sides, ("target_tensor", "reference_tensor"), strict=True)
        ]
        assert slots == ["input.0", "input.0"]

    @pytest.mark.parametrize("is_mirrored", [False, True])
    @pytest.mark.parametrize("damaged", [0, 1], ids=["steps", "sequences"])
    def test_a_damaged_output_is_not_hidden_by_what_its_reader_read(
        self, traces, damaged, is_mirrored
    ):
        sides = list(traces)
        side = sides[damaged]
        file = side.tensors["file"].iat[find_tensor(side, self.TANH, "output.0")]

        def load(name):
            array = side.load(name)
            return array * np.float32(1.3) if name == file else array

        sides[damaged] = replace(side, load=load)
        pair = find_pair(compare_traces(*(sides[::-1] if is_mirrored else sides)), self.TANH)
        assert pair["error"] > 0.2
        assert not pair["agrees"]
