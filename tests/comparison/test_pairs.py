"""Every pair is judged: by whole tensors, else by statistics, else by checksum."""

import numpy as np
import pytest
from traces import (
    compare_traces,
    edit_tensors,
    find_pair,
    find_tensor,
    find_tensors_like,
    find_value,
    scale_result,
)

from dumpdiff.comparison.mask_fill import STATISTICS_SET_ASIDE

SILU = "Functional.silu.1.forward"
MASKED = "Tensor.__add__.3.forward"
NUMBERS = ["max", "min", "mean", "norm"]


def get_output(trace, name):
    return trace.tensors.iloc[find_tensor(trace, name, "output.0")]


class TestByStatistics:
    def test_two_equal_runs_agree_everywhere(self, trace):
        comparison = compare_traces(trace("pt_none"), trace("pt_none"))
        assert set(comparison.pairs["metric"]) == {"statistics"}
        assert (comparison.pairs["error"][comparison.pairs["comparable"]] == 0).all()
        assert comparison.pairs["agrees"].all()

    def test_one_row_for_every_pair_of_the_alignment(self, trace):
        comparison = compare_traces(trace("ms_mf_none"), trace("pt_none"))
        assert (
            comparison.pairs["target"].tolist() == comparison.alignment.classes["target"].tolist()
        )

    @pytest.mark.parametrize("factor", [1.0001, 1.01])
    def test_a_factor_is_the_error(self, trace, factor):
        clean_trace = trace("pt_none")
        comparison = compare_traces(scale_result(clean_trace, SILU, factor), clean_trace)
        assert find_pair(comparison, SILU)["error"] == pytest.approx(factor - 1, rel=0.01)
        assert not find_pair(comparison, SILU)["agrees"]
        assert comparison.pairs["agrees"].sum() == len(comparison.pairs) - 1

    def test_statistics_give_no_metrics_of_whole_tensors(self, trace):
        comparison = compare_traces(trace("pt_none"), trace("pt_none"))
        assert (
            comparison.pairs[["relative_l2", "cosine", "max_absolute", "rounded_error"]]
            .isna()
            .all(axis=None)
        )


class TestNotFinite:
    def lose_result(self, trace, **columns):
        numbers = dict.fromkeys(NUMBERS, np.nan) | columns
        return edit_tensors(
            trace, find_tensors_like(trace, SILU, "output.0"), nonfinite=1, **numbers
        )

    @pytest.mark.parametrize("columns", [{}, {"max": np.inf, "norm": np.inf}], ids=["NaN", "Inf"])
    @pytest.mark.parametrize("swapped", [False, True], ids=["in the target", "in the reference"])
    def test_nonfinite_elements_on_one_side_only_are_a_disagreement(self, trace, columns, swapped):
        clean_trace = trace("pt_none")
        sides = (
            (clean_trace, self.lose_result(clean_trace, **columns))
            if swapped
            else (self.lose_result(clean_trace, **columns), clean_trace)
        )
        comparison = compare_traces(*sides)
        pairs = comparison.pairs[comparison.pairs["slot_pair"].isna()]
        ((_, pair),) = pairs[pairs["nonfinite_mismatch"] > 0].iterrows()
        assert (
            find_value(comparison.alignment.reference, SILU, "output.0") == pair["reference"]
            or swapped
        )
        assert pair["comparable"]
        assert not pair["agrees"]

    def test_nan_on_both_sides_cannot_be_judged(self, trace):
        lost = self.lose_result(trace("pt_none"))
        pair = find_pair(compare_traces(lost, lost), SILU)
        assert not pair["comparable"]
        assert not pair["nonfinite_mismatch"] > 0


INFINITE = {"min": -np.inf, "mean": -np.inf, "norm": np.inf, "nonfinite": 1}


class TestMaskFill:
    """The scores of pt_none are masked with -1e4, which is added before the softmax."""

    def change_mask(self, trace, **columns):
        for slot in ("input.1", "output.0"):
            trace = edit_tensors(trace, find_tensors_like(trace, MASKED, slot), **columns)
        return trace

    def test_minus_infinity_is_minus_ten_thousand(self, trace):
        clean_trace = trace("pt_none")
        comparison = compare_traces(self.change_mask(clean_trace, **INFINITE), clean_trace)
        for slot in ("input.1", "output.0"):
            pair = find_pair(comparison, MASKED, slot)
            assert not pair["nonfinite_mismatch"] > 0
            assert pair["masked"] == STATISTICS_SET_ASIDE
            assert pair["agrees"]

    def test_only_the_maximum_is_compared_then(self, trace):
        clean_trace = trace("pt_none")
        high = 1.01 * get_output(clean_trace, MASKED)["max"]
        changed_trace = self.change_mask(clean_trace, **INFINITE)
        rows = find_tensors_like(changed_trace, MASKED, "output.0")
        pair = find_pair(
            compare_traces(edit_tensors(changed_trace, rows, max=high), clean_trace), MASKED
        )
        assert pair["statistic"] == "max"
        assert pair["statistic_error"] == pytest.approx(0.01, rel=1e-3)
        assert not pair["agrees"]

    def test_the_same_constant_is_compared_in_full(self, trace):
        clean_trace = trace("pt_none")
        pair = find_pair(compare_traces(clean_trace, clean_trace), MASKED)
        assert (pair["masked"], pair["error"]) == (0, 0)

    def test_another_number_of_masked_elements_is_a_difference(self, trace):
        clean_trace = trace("pt_none")
        changed_trace = self.change_mask(clean_trace, min=-2e4, mean=-2500.0, norm=3.2e5)
        pair = find_pair(compare_traces(changed_trace, clean_trace), MASKED)
        assert pair["masked"] == 0
        assert not pair["agrees"]

    @pytest.mark.parametrize("swapped", [False, True])
    def test_outside_of_a_softmax_minus_infinity_is_a_mismatch(self, trace, swapped):
        clean_trace = trace("pt_none")
        rows = find_tensors_like(clean_trace, SILU, "output.0")
        sides = (
            edit_tensors(clean_trace, rows, **INFINITE),
            edit_tensors(clean_trace, rows, min=-7e4, mean=-1.0, norm=7e4),
        )
        comparison = compare_traces(*(sides[::-1] if swapped else sides))
        pair = find_pair(comparison, SILU)
        assert pair["nonfinite_mismatch"] == 1
        assert not pair["agrees"]

    def test_outside_of_a_softmax_large_constants_differ(self, trace):
        clean_trace = trace("pt_none")
        rows = find_tensors_like(clean_trace, SILU, "output.0")
        sides = [
            edit_tensors(clean_trace, rows, min=low, mean=low / 1e4, norm=-low)
            for low in (-7e4, -9e4)
        ]
        pair = find_pair(compare_traces(*sides), SILU)
        assert pair["masked"] == 0
        assert pair["error"] == pytest.approx(2 / 9)


class TestByChecksum:
    def test_equal_sums_agree(self, trace):
        comparison = compare_traces(trace("v6.0_api_stack_md5"), trace("v6.0_api_stack_md5"))
        assert set(comparison.pairs["metric"]) <= {"hash", "statistics"}
        judged = comparison.pairs[comparison.pairs["metric"] == "hash"]
        assert len(judged) > 100
        assert judged["agrees"].all()

    def test_unequal_sums_cannot_be_judged(self, trace):
        """They say that something differs, not whether it is more than rounding."""
        clean_trace = trace("v6.0_api_stack_md5")
        name = "Functional.silu.1.forward"
        comparison = compare_traces(
            edit_tensors(
                clean_trace, find_tensors_like(clean_trace, name, "output.0"), hash="00000000"
            ),
            clean_trace,
        )
        pair = find_pair(comparison, name)
        assert pair["metric"] == "hash"
        assert not pair["comparable"]


class TestFused:
    def test_pairs_of_single_tensors_have_no_group(self, trace):
        assert compare_traces(trace("pt_none"), trace("pt_none")).pairs["group"].isna().all()


def test_a_clean_real_pair_agrees(trace):
    comparison = compare_traces(trace("ms_mf_none"), trace("pt_none"))
    pairs = comparison.pairs[comparison.pairs["comparable"]]
    assert len(pairs) > 250
    assert pairs["agrees"].mean() > 0.97


def test_a_fault_of_a_real_pair_disagrees(trace):
    comparison = compare_traces(trace("ms_mf_attn_scale"), trace("ms_mf_none"))
    assert not find_pair(comparison, "Tensor.__mul__.2.forward")["agrees"]
