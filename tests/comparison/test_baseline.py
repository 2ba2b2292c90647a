"""A second run of the reference: what the two differ by, what that allows the target, and when it says nothing."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    align_traces,
    compare_traces,
    edit_tensors,
    find_tensors_like,
    find_pair,
    scale_result,
    load_shipped_rules,
    select_ops,
    find_value,
    add_noise,
)

from dumpdiff import align
from dumpdiff.comparison import compare_pairs, measure_spread
from dumpdiff.comparison.baseline import COVERAGE_FACTOR
from dumpdiff.divergence import locate

#: The same machine as if it had no vector units to speak of: sums run in another order, and nothing else changes.
OTHER_ORDER = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
LINEAR, SILU = "Functional.linear.11.forward", "Functional.silu.1.forward"
NUMBERS = ("max", "min", "mean", "norm")


def spread(baseline, reference):
    return measure_spread(compare_traces(baseline, reference))


def judged(target, reference, baseline):
    return compare_pairs(align_traces(target, reference), load_shipped_rules(), spread=spread(baseline, reference))


def given_another_weight(trace):
    rows = find_tensors_like(trace, LINEAR, "input.1")
    return edit_tensors(
        trace, rows, **{name: trace.tensors[name].iat[rows[0]] * 1.01 for name in NUMBERS}
    )


class TestSpread:
    def test_of_a_run_with_itself_is_nothing(self, trace):
        found = spread(trace("pt_none"), trace("pt_none"))
        assert (found.baseline.median, found.baseline.largest, found.baseline.unusable) == (
            0.0,
            0.0,
            "",
        )
        assert (found.allowed == 0).all()

    def test_is_the_error_of_one_run_against_the_other(self, trace):
        again = add_noise(trace("pt_none"), 1e-3)
        pairs = compare_traces(again, trace("pt_none")).pairs
        found = spread(again, trace("pt_none"))
        computed = found.allowed > 0
        assert found.baseline.median == pytest.approx(
            np.median(pairs["error"][computed[pairs["reference"]]]), rel=0.05
        )
        assert found.baseline.largest == np.nanmax(found.measured[computed])
        assert found.baseline.largest_op in set(trace("pt_none").ops["name"])
        assert found.baseline.values > 150

    def test_what_nobody_computed_has_none(self, trace):
        found = compare_traces(add_noise(trace("pt_none"), 1e-3), trace("pt_none"))
        weight = find_pair(found, LINEAR, "input.1")["reference"]
        assert measure_spread(found).allowed[weight] == 0

    def test_three_times_of_it_is_allowed(self, trace):
        found = spread(add_noise(trace("pt_none"), 1e-3), trace("pt_none"))
        computed = found.allowed > 0
        assert (
            found.allowed[computed] >= COVERAGE_FACTOR * np.nan_to_num(found.measured[computed]) * (1 - 1e-12)
        ).all()

    def test_a_value_that_happened_to_come_out_equal_has_that_of_the_values_around_it(self, trace):
        whole = trace("pt_none")
        again = add_noise(whole, 1e-3)
        rows = find_tensors_like(whole, SILU, "output.0")
        lucky = edit_tensors(again, rows, **{name: whole.tensors[name].iat[rows[0]] for name in NUMBERS})
        found = compare_traces(lucky, whole)
        here = find_pair(found, SILU)["reference"]
        assert measure_spread(found).measured[here] == 0
        assert 1e-3 < measure_spread(found).allowed[here] < 1e-2

    def test_so_has_a_value_that_the_baseline_lacks(self, trace):
        whole = trace("pt_none")
        rows = find_tensors_like(whole, SILU, "output.0")
        hole = edit_tensors(add_noise(whole, 1e-3), rows, **dict.fromkeys(NUMBERS, np.nan))
        found = compare_traces(hole, whole)
        missing = find_value(found.alignment.reference, SILU, "output.0")
        read = measure_spread(found)
        assert np.isnan(read.measured[missing])
        assert read.baseline.estimated >= 1
        assert 1e-3 < read.allowed[missing] < 1e-2


class TestJudgement:
    def test_what_lies_within_the_spread_agrees(self, trace):
        whole = trace("pt_none")
        target, again = add_noise(whole, 1e-3, seed=1), add_noise(whole, 1e-3, seed=2)
        assert compare_traces(target, whole).pairs["agrees"].mean() < 0.9
        assert judged(target, whole, again).pairs["agrees"].mean() > 0.98

    def test_a_fault_beyond_it_is_seen(self, trace):
        whole = trace("pt_none")
        target = scale_result(add_noise(whole, 1e-4, seed=1), SILU, 1.01)
        pair = find_pair(judged(target, whole, add_noise(whole, 1e-4, seed=2)), SILU)
        assert not pair["agrees"]
        assert 1e-5 < pair["spread"] < 1e-3

    def test_no_tolerance_becomes_smaller(self, trace):
        whole = trace("pt_none")
        target = add_noise(whole, 1e-6)
        assert (
            judged(target, whole, whole).pairs["tolerance"]
            >= compare_traces(target, whole).pairs["tolerance"]
        ).all()

    def test_a_weight_is_judged_as_without_it(self, trace):
        whole = trace("pt_none")
        found = judged(given_another_weight(whole), whole, add_noise(whole, 1e-2))
        assert not find_pair(found, LINEAR, "input.1")["agrees"]

    def test_where_it_allows_everything_nothing_can_be_judged(self, trace):
        whole = trace("pt_none")
        found = judged(whole, whole, scale_result(whole, SILU, 1.5))
        assert not find_pair(found, SILU)["comparable"]


class TestUnusable:
    def verdict(self, target, reference, baseline):
        found = locate(judged(target, reference, baseline), load_shipped_rules(), 0.7)
        return found.verdict, found.notes[0]

    def test_a_run_with_other_weights(self, trace):
        whole = trace("pt_none")
        verdict, reason = self.verdict(whole, whole, given_another_weight(whole))
        assert verdict == "inconclusive"
        assert "other weights or inputs" in reason

    def test_a_run_that_parts_too_far(self, trace):
        whole = trace("pt_none")
        flow = compare_traces(whole, whole).alignment.target
        computed = np.flatnonzero((flow.producers >= 0)[flow.tensor_class])
        factors = np.random.default_rng(0).choice([0.6, 1.5], len(flow.classes))[
            flow.tensor_class[computed]
        ]
        tensors = whole.tensors.copy()
        for name in NUMBERS:
            column = tensors[name].to_numpy(copy=True)
            column[computed] *= factors
            tensors[name] = column
        verdict, reason = self.verdict(whole, whole, replace(whole, tensors=tensors))
        assert verdict == "inconclusive"
        assert "baseline" in reason

    def test_a_run_of_something_else(self, trace):
        whole = trace("pt_none")
        other = select_ops(whole, range(len(whole.ops) // 8))
        verdict, reason = self.verdict(whole, whole, other)
        assert verdict == "inconclusive"
        assert "second run of the reference" in reason

    def test_its_spread_widens_nothing(self, trace):
        whole = trace("pt_none")
        found = judged(whole, whole, given_another_weight(add_noise(whole, 1e-2)))
        assert (found.pairs["tolerance"] == compare_traces(whole, whole).pairs["tolerance"]).all()


@pytest.mark.record
class TestRecorded:
    @pytest.mark.parametrize(
        ("dtype", "least", "most"), [("fp32", 1e-8, 3e-6), ("bf16", 1e-3, 1e-1)]
    )
    def test_the_spread_is_the_rounding_of_the_type(self, recorded, dtype, least, most):
        first, again = (
            recorded("pytorch", "--dtype", dtype),
            recorded("pytorch", "--dtype", dtype, **OTHER_ORDER),
        )
        result = align(recorded("pytorch", "--dtype", dtype), first, baseline=again)
        assert result.verdict == "aligned"
        assert least < result.baseline.median <= result.baseline.largest < most

    @pytest.mark.parametrize(("fault", "scope"), [("w1", "layers.1.mlp"), ("residual", "layers.1")])
    def test_a_fault_is_found_where_it_is_with_a_baseline_too(self, recorded, fault, scope):
        again = recorded("pytorch", **OTHER_ORDER)
        result = align(recorded("pytorch", "--fault", fault), recorded("pytorch"), baseline=again)
        assert result.verdict == "diverged"
        assert result.first_divergence.scope.startswith(scope)

    def test_statistics_of_the_baseline_are_enough(self, recorded):
        again = recorded("pytorch", "--task", "statistics", **OTHER_ORDER)
        result = align(recorded("mindspore"), recorded("pytorch"), baseline=again)
        assert result.verdict == "aligned"
        assert result.baseline.values > 150

    def test_another_dtype_of_the_reference_shows_what_that_dtype_costs(self, recorded):
        result = align(
            recorded("mindspore"),
            recorded("pytorch"),
            baseline=recorded("pytorch", "--dtype", "bf16"),
        )
        assert result.verdict == "aligned"
        assert result.baseline.median > 1e-3
