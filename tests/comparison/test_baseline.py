"""A second run of the reference: its spread, the tolerances, and when it is unusable."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    add_noise,
    align_traces,
    compare_traces,
    edit_tensors,
    find_pair,
    find_tensors_like,
    find_value,
    load_shipped_rules,
    scale_result,
    select_ops,
)

from dumpdiff import align
from dumpdiff.comparison import compare_pairs, measure_spread
from dumpdiff.comparison.baseline import COVERAGE_FACTOR
from dumpdiff.divergence import locate

#: The same machine almost without vector units: only the order of sums changes.
OTHER_ORDER = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
LINEAR, SILU = "Functional.linear.11.forward", "Functional.silu.1.forward"
NUMBERS = ("max", "min", "mean", "norm")


def compute_spread(baseline, reference):
    return measure_spread(compare_traces(baseline, reference))


def compare_with_baseline(target, reference, baseline):
    return compare_pairs(
        align_traces(target, reference),
        load_shipped_rules(),
        spread=compute_spread(baseline, reference),
    )


def change_a_weight(trace):
    rows = find_tensors_like(trace, LINEAR, "input.1")
    return edit_tensors(
        trace, rows, **{name: trace.tensors[name].iat[rows[0]] * 1.01 for name in NUMBERS}
    )


class TestSpread:
    def test_two_equal_runs_have_no_spread(self, trace):
        measured_spread = compute_spread(trace("pt_none"), trace("pt_none"))
        assert (
            measured_spread.baseline.median,
            measured_spread.baseline.largest,
            measured_spread.baseline.unusable,
        ) == (
            0.0,
            0.0,
            "",
        )
        assert (measured_spread.allowed == 0).all()

    def test_the_spread_is_the_error_of_one_run_against_the_other(self, trace):
        repeated_run = add_noise(trace("pt_none"), 1e-3)
        pairs = compare_traces(repeated_run, trace("pt_none")).pairs
        measured_spread = compute_spread(repeated_run, trace("pt_none"))
        computed = measured_spread.allowed > 0
        assert measured_spread.baseline.median == pytest.approx(
            np.median(pairs["error"][computed[pairs["reference"]]]), rel=0.05
        )
        assert measured_spread.baseline.largest == np.nanmax(measured_spread.measured[computed])
        assert measured_spread.baseline.largest_op in set(trace("pt_none").ops["name"])
        assert measured_spread.baseline.values > 150

    def test_parameters_have_no_spread(self, trace):
        comparison = compare_traces(add_noise(trace("pt_none"), 1e-3), trace("pt_none"))
        weight = find_pair(comparison, LINEAR, "input.1")["reference"]
        assert measure_spread(comparison).allowed[weight] == 0

    def test_three_times_the_spread_is_allowed(self, trace):
        measured_spread = compute_spread(add_noise(trace("pt_none"), 1e-3), trace("pt_none"))
        computed = measured_spread.allowed > 0
        assert (
            measured_spread.allowed[computed]
            >= COVERAGE_FACTOR * np.nan_to_num(measured_spread.measured[computed]) * (1 - 1e-12)
        ).all()

    def test_a_value_that_is_equal_by_chance_gets_the_spread_of_its_neighbors(self, trace):
        clean_trace = trace("pt_none")
        repeated_run = add_noise(clean_trace, 1e-3)
        rows = find_tensors_like(clean_trace, SILU, "output.0")
        lucky_run = edit_tensors(
            repeated_run, rows, **{name: clean_trace.tensors[name].iat[rows[0]] for name in NUMBERS}
        )
        comparison = compare_traces(lucky_run, clean_trace)
        silu_value = find_pair(comparison, SILU)["reference"]
        assert measure_spread(comparison).measured[silu_value] == 0
        assert 1e-3 < measure_spread(comparison).allowed[silu_value] < 1e-2

    def test_a_value_missing_in_the_baseline_gets_the_spread_of_its_neighbors(self, trace):
        clean_trace = trace("pt_none")
        rows = find_tensors_like(clean_trace, SILU, "output.0")
        incomplete_run = edit_tensors(
            add_noise(clean_trace, 1e-3), rows, **dict.fromkeys(NUMBERS, np.nan)
        )
        comparison = compare_traces(incomplete_run, clean_trace)
        missing = find_value(comparison.alignment.reference, SILU, "output.0")
        spread_with_gap = measure_spread(comparison)
        assert np.isnan(spread_with_gap.measured[missing])
        assert spread_with_gap.baseline.estimated >= 1
        assert 1e-3 < spread_with_gap.allowed[missing] < 1e-2


class TestJudgement:
    def test_an_error_within_the_spread_agrees(self, trace):
        clean_trace = trace("pt_none")
        target, repeated_run = (
            add_noise(clean_trace, 1e-3, seed=1),
            add_noise(clean_trace, 1e-3, seed=2),
        )
        assert compare_traces(target, clean_trace).pairs["agrees"].mean() < 0.9
        assert (
            compare_with_baseline(target, clean_trace, repeated_run).pairs["agrees"].mean() > 0.98
        )

    def test_a_fault_beyond_the_spread_is_found(self, trace):
        clean_trace = trace("pt_none")
        target = scale_result(add_noise(clean_trace, 1e-4, seed=1), SILU, 1.01)
        pair = find_pair(
            compare_with_baseline(target, clean_trace, add_noise(clean_trace, 1e-4, seed=2)), SILU
        )
        assert not pair["agrees"]
        assert 1e-5 < pair["spread"] < 1e-3

    def test_a_spread_reduces_no_tolerance(self, trace):
        clean_trace = trace("pt_none")
        target = add_noise(clean_trace, 1e-6)
        assert (
            compare_with_baseline(target, clean_trace, clean_trace).pairs["tolerance"]
            >= compare_traces(target, clean_trace).pairs["tolerance"]
        ).all()

    def test_a_weight_is_judged_as_without_a_baseline(self, trace):
        clean_trace = trace("pt_none")
        comparison = compare_with_baseline(
            change_a_weight(clean_trace), clean_trace, add_noise(clean_trace, 1e-2)
        )
        assert not find_pair(comparison, LINEAR, "input.1")["agrees"]

    def test_a_spread_that_allows_any_error_makes_a_pair_incomparable(self, trace):
        clean_trace = trace("pt_none")
        comparison = compare_with_baseline(
            clean_trace, clean_trace, scale_result(clean_trace, SILU, 1.5)
        )
        assert not find_pair(comparison, SILU)["comparable"]


class TestUnusable:
    def judge(self, target, reference, baseline):
        result = locate(
            compare_with_baseline(target, reference, baseline), load_shipped_rules(), 0.7
        )
        return result.verdict, result.notes[0]

    def test_a_baseline_with_other_weights_is_unusable(self, trace):
        clean_trace = trace("pt_none")
        verdict, reason = self.judge(clean_trace, clean_trace, change_a_weight(clean_trace))
        assert verdict == "inconclusive"
        assert "other weights or inputs" in reason

    def test_a_baseline_that_differs_too_much_is_unusable(self, trace):
        clean_trace = trace("pt_none")
        flow = compare_traces(clean_trace, clean_trace).alignment.target
        computed = np.flatnonzero((flow.producers >= 0)[flow.tensor_class])
        factors = np.random.default_rng(0).choice([0.6, 1.5], len(flow.classes))[
            flow.tensor_class[computed]
        ]
        tensors = clean_trace.tensors.copy()
        for name in NUMBERS:
            column = tensors[name].to_numpy(copy=True)
            column[computed] *= factors
            tensors[name] = column
        verdict, reason = self.judge(
            clean_trace, clean_trace, replace(clean_trace, tensors=tensors)
        )
        assert verdict == "inconclusive"
        assert "baseline" in reason

    def test_a_baseline_of_another_model_is_unusable(self, trace):
        clean_trace = trace("pt_none")
        other = select_ops(clean_trace, range(len(clean_trace.ops) // 8))
        verdict, reason = self.judge(clean_trace, clean_trace, other)
        assert verdict == "inconclusive"
        assert "second run of the reference" in reason

    def test_an_unusable_baseline_widens_no_tolerance(self, trace):
        clean_trace = trace("pt_none")
        comparison = compare_with_baseline(
            clean_trace, clean_trace, change_a_weight(add_noise(clean_trace, 1e-2))
        )
        assert (
            comparison.pairs["tolerance"]
            == compare_traces(clean_trace, clean_trace).pairs["tolerance"]
        ).all()


@pytest.mark.record
class TestRecorded:
    @pytest.mark.parametrize(("dtype", "low", "high"), [("fp32", 1e-8, 3e-6), ("bf16", 1e-3, 1e-1)])
    def test_the_spread_is_the_rounding_of_the_type(self, recorded, dtype, low, high):
        first, repeated_run = (
            recorded("pytorch", "--dtype", dtype),
            recorded("pytorch", "--dtype", dtype, **OTHER_ORDER),
        )
        result = align(recorded("pytorch", "--dtype", dtype), first, baseline=repeated_run)
        assert result.verdict == "aligned"
        assert low < result.baseline.median <= result.baseline.largest < high

    @pytest.mark.parametrize(("fault", "scope"), [("w1", "layers.1.mlp"), ("residual", "layers.1")])
    def test_a_fault_is_located_with_a_baseline_too(self, recorded, fault, scope):
        repeated_run = recorded("pytorch", **OTHER_ORDER)
        result = align(
            recorded("pytorch", "--fault", fault), recorded("pytorch"), baseline=repeated_run
        )
        assert result.verdict == "diverged"
        assert result.first_divergence.scope.startswith(scope)

    def test_statistics_of_the_baseline_are_enough(self, recorded):
        repeated_run = recorded("pytorch", "--task", "statistics", **OTHER_ORDER)
        result = align(recorded("mindspore"), recorded("pytorch"), baseline=repeated_run)
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
