"""How different equal tensors may be: by their types, then by what the pair of dumps shows."""

from dataclasses import replace

import numpy as np
import pytest
from traces import add_noise, select_ops

from dumpdiff.alignment.noise import estimate_prior, find_agreeing_classes
from dumpdiff.graph import build_flow

SINGLE = 3e-6


def set_dtype(trace, dtype, share):
    """Return the trace with this share of its outputs in another dtype."""
    tensors = trace.tensors.copy()
    rows = np.flatnonzero((tensors["slot_kind"] == "output") & (tensors["size"] > 1))
    tensors.loc[rows[: round(share * len(rows))], "dtype"] = dtype
    return replace(trace, tensors=tensors)


class TestPrior:
    def test_float32_is_what_the_order_of_summation_makes(self, flow):
        assert estimate_prior(flow("pt_none"), flow("ms_mf_none")) == SINGLE

    @pytest.mark.parametrize(("dtype", "roundoff"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
    def test_a_coarser_type_counts_with_four_roundoffs_whichever_side_has_it(
        self, trace, flow, dtype, roundoff
    ):
        coarse = build_flow(set_dtype(trace("pt_none"), dtype, 0.5))
        assert (
            estimate_prior(coarse, flow("pt_none"))
            == estimate_prior(flow("pt_none"), coarse)
            == 4 * roundoff
        )

    def test_a_coarser_type_of_a_few_outputs_does_not_count(self, trace, flow):
        assert (
            estimate_prior(
                build_flow(set_dtype(trace("pt_none"), "bfloat16", 0.04)), flow("pt_none")
            )
            == SINGLE
        )

    def test_integers_are_exact(self, trace, flow):
        assert (
            estimate_prior(build_flow(set_dtype(trace("pt_none"), "int64", 0.9)), flow("pt_none"))
            == SINGLE
        )

    def test_six_printed_digits_are_no_more_exact_than_they_are(self, trace, flow):
        clean_trace = trace("pt_none")
        printed = replace(clean_trace, source=replace(clean_trace.source, resolution=1e-6))
        assert estimate_prior(build_flow(printed), flow("pt_none")) == pytest.approx(8e-6)


def estimate_tolerance(target, reference):
    tolerance, _ = find_agreeing_classes(target, reference)
    return tolerance


class TestMatchingTolerance:
    def test_a_pair_without_noise_gets_the_smallest_tolerance(self, flow):
        assert estimate_tolerance(flow("pt_none"), flow("pt_none")) == SINGLE / 2

    def test_noise_within_the_prior_is_measured(self, trace, flow):
        quiet_tolerance = estimate_tolerance(
            build_flow(add_noise(trace("pt_none"), 3e-7)), flow("pt_none")
        )
        loud_tolerance = estimate_tolerance(
            build_flow(add_noise(trace("pt_none"), 9e-7)), flow("pt_none")
        )
        assert loud_tolerance / quiet_tolerance == pytest.approx(3, rel=0.05)

    def test_most_equal_tensors_are_within_the_tolerance(self, trace, flow):
        size = 6e-7
        assert 3 * size < estimate_tolerance(
            build_flow(add_noise(trace("pt_none"), size)), flow("pt_none")
        )

    def test_the_tolerance_is_never_more_than_eight_times_the_prior(self, trace, flow):
        assert (
            estimate_tolerance(build_flow(add_noise(trace("pt_none"), 2e-6)), flow("pt_none"))
            <= 8 * SINGLE
        )

    def test_few_tensors_measure_nothing(self, trace):
        short_flow = build_flow(select_ops(trace("pt_none"), range(8)))
        assert estimate_tolerance(short_flow, short_flow) == SINGLE

    def test_two_frameworks_agree_as_well_as_float32_does(self, flow):
        assert estimate_tolerance(flow("ms_mf_none"), flow("pt_none")) <= 8 * SINGLE
