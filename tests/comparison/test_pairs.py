"""Every pair is judged: by whole tensors, else by statistics, else by checksum."""

import numpy as np
import pytest
from traces import (
    compare_traces,
    edit_tensors,
    find_pair,
    find_tensors_like,
    find_value,
    scale_result,
)

SILU = "Functional.silu.1.forward"
MASKED = "Tensor.__add__.3.forward"
NUMBERS = ["max", "min", "mean", "norm"]


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

    def test_a_mask_of_minus_infinity_is_one_of_minus_ten_thousand(self, trace):
        clean_trace = trace("pt_none")
        infinite = clean_trace
        for slot in ("input.1", "output.0"):
            rows = find_tensors_like(clean_trace, MASKED, slot)
            infinite = edit_tensors(
                infinite, rows, min=-np.inf, mean=-np.inf, norm=np.inf, nonfinite=1
            )
        comparison = compare_traces(infinite, clean_trace)
        assert not find_pair(comparison, MASKED)["nonfinite_mismatch"] > 0


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
