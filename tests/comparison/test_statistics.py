"""How far a maximum, a minimum, a mean and a norm may differ, and which of them decides."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    compare_traces,
    edit_tensors,
    find_dependents,
    find_pair,
    find_result,
    load_shipped_rules,
    locate_divergence,
)

from dumpdiff.alignment.values import Fingerprints, compute_differences
from dumpdiff.comparison.statistics import compute_extreme_factors
from dumpdiff.graph.statistics import STATISTICS, compute_statistics

LINEAR, WEIGHT = "Functional.linear.11.forward", "input.1"
TOLERANCE = 32 * 2.0**-24  # of a float32 operator without sums
SEEDS = range(40)


def build_fingerprint(array):
    numbers = compute_statistics(array)[:4]
    return Fingerprints(*(np.array([number]) for number in (float(array.size), *numbers, 4)))


def measure_differences(target, reference):
    """Return the relative differences of max, min, mean and norm of two arrays."""
    rows = np.array([0])
    differences = compute_differences(
        build_fingerprint(target), rows, build_fingerprint(reference), rows
    )
    return dict(zip(STATISTICS, differences[:, 0], strict=True))


def compute_relative_l2(target, reference):
    return np.linalg.norm(target - reference) / np.linalg.norm(reference)


def change(trace, **factors):
    """Return the trace with some statistics of the linear layer's result multiplied."""
    rows = find_result(trace, LINEAR)
    numbers = {name: trace.tensors[name].iat[rows[0]] * by for name, by in factors.items()}
    return edit_tensors(trace, rows, **numbers)


class TestExtremes:
    @pytest.mark.parametrize(("size", "factor"), [(2, 1.67), (1152, 3.94), (10**8, 6.18)])
    def test_the_largest_of_n_errors_is_some_root_mean_squares(self, size, factor):
        assert compute_extreme_factors(np.array([size])) == pytest.approx(factor, abs=0.01)

    def test_a_single_number_is_its_own_extreme(self):
        assert compute_extreme_factors(np.array([1.0])) == 1

    @pytest.mark.parametrize("size", [48, 1152, 100_000])
    def test_the_largest_of_n_normal_errors_is_near_the_factor(self, size):
        rng = np.random.default_rng(1)
        largest = [np.abs(rng.standard_normal(size)).max() for _ in SEEDS]
        factor = compute_extreme_factors(np.array([float(size)]))[0]
        assert 0.75 * factor < np.mean(largest) < factor

    @pytest.mark.parametrize(
        ("rows", "length", "columns"), [(24, 48, 48), (24, 160, 48), (64, 1024, 96), (2, 4096, 3)]
    )
    def test_an_extreme_of_a_product_stays_within_its_tolerance(self, rows, length, columns):
        """Float32 against float64, in the units of the rule for a sum of ``length`` terms."""
        tolerance = load_shipped_rules().compute_tolerance("float32", "float32", "matmul", length)
        allowed = tolerance * compute_extreme_factors(np.array([float(rows * columns)]))[0]
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            a = rng.standard_normal((rows, length)).astype(np.float32)
            a *= np.exp(rng.standard_normal((rows, 1))).astype(np.float32)  # rows of unequal size
            b = rng.standard_normal((length, columns)).astype(np.float32)
            differences = measure_differences(a @ b, a.astype(np.float64) @ b)
            assert max(differences["max"], differences["min"]) < allowed

    def test_an_extreme_may_exceed_the_error_of_the_tensor(self):
        """The measured case: a norm-wise bound is no bound for one element."""
        excesses = []
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            exact = np.exp(rng.standard_normal(1152))
            rounded = exact * (1 + 1e-6 * rng.standard_normal(1152))
            error = compute_relative_l2(rounded, exact)
            excesses.append(measure_differences(rounded, exact)["max"] / error)
        assert max(excesses) > 1.5
        assert max(excesses) < compute_extreme_factors(np.array([1152.0]))[0]

    def test_mean_and_norm_never_exceed_the_error_of_the_tensor(self):
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            exact = rng.standard_normal(1152) + rng.standard_normal()
            other = exact + 1e-4 * (rng.standard_normal(1152) + rng.standard_normal())
            differences = measure_differences(other, exact)
            largest = max(differences["mean"], differences["norm"])
            assert largest <= compute_relative_l2(other, exact) * (1 + 1e-9)


class TestJudgement:
    @pytest.mark.parametrize(("name", "n_tolerances", "agrees"), [
        ("max", 2, True), ("min", 2, True), ("norm", 2, True), ("norm", 65, False),
    ])  # fmt: skip
    def test_each_statistic_may_differ_by_its_own_share(self, trace, name, n_tolerances, agrees):
        """Of the norm alone, by as much as adding equal squares in float32 makes."""
        clean_trace = trace("pt_none")
        tolerance = find_pair(compare_traces(clean_trace, clean_trace), LINEAR)["tolerance"]
        by = 1 + n_tolerances * tolerance
        pair = find_pair(compare_traces(change(clean_trace, **{name: by}), clean_trace), LINEAR)
        assert (pair["statistic"], pair["agrees"]) == (name, agrees)

    def test_the_error_is_the_relative_l2_that_the_statistic_shows(self, trace):
        clean_trace = trace("pt_none")
        pair = find_pair(compare_traces(change(clean_trace, max=1.001), clean_trace), LINEAR)
        n_elements = clean_trace.tensors["size"].iat[find_result(clean_trace, LINEAR)[0]]
        assert pair["statistic_error"] == pytest.approx(1e-3, rel=1e-3)
        assert pair["error"] == pytest.approx(1e-3 / np.sqrt(2 * np.log(2 * n_elements)), rel=1e-3)

    def test_the_statistic_with_the_largest_share_of_its_limit_decides(self, trace):
        clean_trace = trace("pt_none")
        both = change(clean_trace, max=1.002, norm=1.001)
        pair = find_pair(compare_traces(both, clean_trace), LINEAR)
        assert (pair["statistic"], pair["error"]) == ("norm", pytest.approx(1e-3, rel=1e-3))

    def test_an_extreme_of_a_parameter_may_differ_by_its_rounding_only(self, trace):
        clean_trace = trace("pt_none")
        weight = find_pair(compare_traces(clean_trace, clean_trace), LINEAR, WEIGHT)
        rows = np.flatnonzero(
            compare_traces(clean_trace, clean_trace).alignment.reference.tensor_class
            == weight["reference"]
        ).tolist()
        largest = clean_trace.tensors["max"].iat[rows[0]]
        other = edit_tensors(clean_trace, rows, max=largest * (1 + 2 * TOLERANCE))
        pair = find_pair(compare_traces(other, clean_trace), LINEAR, WEIGHT)
        assert pair["error"] == pair["statistic_error"]
        assert not pair["agrees"]

    def test_statistics_that_one_side_lacks_do_not_decide(self, trace):
        clean_trace = trace("pt_none")
        rows = find_result(clean_trace, LINEAR)
        without_norm = edit_tensors(change(clean_trace, norm=2.0), rows, norm=np.nan)
        pair = find_pair(compare_traces(without_norm, clean_trace), LINEAR)
        assert (pair["error"], pair["agrees"]) == (0, True)

    def test_printing_moves_an_extreme_no_more_than_a_norm(self, trace):
        """Four digits: 1.000 means 0.9995 to 1.0005, and not 0.998 because it is an extreme."""
        clean_trace = trace("pt_none")
        printed = replace(clean_trace, source=replace(clean_trace.source, resolution=1e-4))
        for name in ("max", "norm"):
            for by, agrees in ((1 + 4e-4, True), (1 + 7e-4, False)):
                pair = find_pair(compare_traces(change(printed, **{name: by}), clean_trace), LINEAR)
                assert (pair["statistic"], pair["agrees"]) == (name, agrees)


def test_a_finding_says_which_statistic_differs_and_what_is_allowed(trace):
    clean_trace = trace("pt_none")
    tensors = clean_trace.tensors.copy()
    tensors.loc[find_dependents(clean_trace, LINEAR), "max"] *= 1.5
    finding = locate_divergence(replace(clean_trace, tensors=tensors), clean_trace).findings[0]
    assert "max differs by 5.0e-1" in finding.title
    (fact,) = (fact for fact in finding.evidence if "statistics" in fact)
    assert fact.startswith("only statistics are compared: max differs by 5.0e-1")
    limit = finding.tolerance * compute_extreme_factors(
        clean_trace.tensors["size"].to_numpy()[find_result(clean_trace, LINEAR)[:1]]
    )
    assert f"{limit[0]:.1e}".replace("e-0", "e-") in fact
