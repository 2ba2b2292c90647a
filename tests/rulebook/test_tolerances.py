"""Tolerances follow the dtype, the operator and the length of its sums."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.model.dtypes import get_unit_roundoff
from dumpdiff.rulebook import Rules, load_rules

RULES = load_rules()


def test_the_clean_pairs_measured_are_within_tolerance(rules: Rules) -> None:
    assert rules.compute_tolerance("float32", "float32", "add") > 9.4e-7
    assert rules.compute_tolerance("bfloat16", "float32", "add") > 2e-2


def test_the_measured_faults_exceed_the_tolerance(rules: Rules) -> None:
    assert (
        rules.compute_tolerance("float32", "float32", "matmul", 4096) < 1.8e-3 / 10
    )  # eps 1e-5 against 1e-3 in a norm
    assert (
        rules.compute_tolerance("float32", "float32", "rms_norm", 4096) < 1e-3 / 10
    )  # 0.1 % of the norm


def test_the_coarser_dtype_decides(rules: Rules) -> None:
    assert rules.compute_tolerance("float16", "float32", "mul") == rules.compute_tolerance(
        "float16", "float16", "mul"
    )
    assert rules.compute_tolerance("float16", "bfloat16", "mul") == rules.compute_tolerance(
        "bfloat16", "bfloat16", "mul"
    )


def test_integers_and_bools_are_exact(rules: Rules) -> None:
    assert (
        rules.compute_tolerance("int32", "int64", "gather_rows")
        == rules.compute_tolerance("bool", "bool", "eq")
        == 0.0
    )


def test_short_types_are_summed_in_float32(rules: Rules) -> None:
    grown = rules.compute_tolerance(
        "bfloat16", "bfloat16", "matmul", 4096
    ) - rules.compute_tolerance("bfloat16", "bfloat16", "matmul", 1)
    assert grown == pytest.approx(rules.compute_growth("matmul", 4096) * 2.0**-24, rel=1e-6)


@given(st.integers(2, 10**7), st.sampled_from(["matmul", "sum", "layer_norm", "softmax"]))
def test_sums_grow_with_the_square_root_of_their_length(length: int, kind: str) -> None:
    assert RULES.compute_growth(kind, 4 * length) == pytest.approx(
        2 * RULES.compute_growth(kind, length)
    )
    assert RULES.compute_growth(kind, length) == pytest.approx(6 * math.sqrt(length))


@given(st.integers(0, 10**7), st.sampled_from(["mul", "reshape", "silu", "cast"]))
def test_what_sums_nothing_does_not_grow(length: int, kind: str) -> None:
    assert RULES.compute_growth(kind, length) == 0.0


def test_conditioning_of_classes_and_of_kinds_unlike_their_class(rules: Rules) -> None:
    assert rules.get_conditioning("linear") == rules.get_conditioning("matmul") == 4
    assert rules.get_conditioning("softmax") == 16
    assert (
        rules.get_conditioning("sub") == rules.get_conditioning("elementwise") == 4
    )  # what cancels is measured in the pair
    assert rules.get_conditioning("log") > rules.get_conditioning("elementwise")
    assert rules.get_conditioning("nobody_knows") == rules.get_conditioning("other")
    assert rules.get_conditioning("grad:silu") == rules.get_conditioning("activation")


def test_every_class_has_a_conditioning_of_one_or_more(rules: Rules) -> None:
    assert all(rule.conditioning >= 1 for rule in rules._tolerances.classes.values())


def test_a_function_that_a_framework_approximates_has_more_units_in_float32_only(
    rules: Rules,
) -> None:
    def compute_units(kind: str, dtype: str) -> float:
        return rules.compute_tolerance(dtype, dtype, kind, 1) / get_unit_roundoff(dtype)

    assert compute_units("tanh", "float32") == 512
    assert compute_units("sigmoid", "float32") == 32
    assert compute_units("tanh", "bfloat16") == compute_units("sigmoid", "bfloat16") == 8


def test_the_gradient_of_a_function_may_have_units_of_its_own(rules: Rules) -> None:
    def compute_units(kind: str) -> float:
        return rules.compute_tolerance("float32", "float32", kind, 1) / 2.0**-24

    assert compute_units("grad:tanh") == 4096
    assert compute_units("grad:sigmoid") == 32
