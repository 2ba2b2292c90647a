"""What an op computes bounds the statistics of its output."""

from __future__ import annotations

import numpy as np
import pytest
from traces import load_shipped_rules

from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.verification.operator_results import check_operators
from dumpdiff.verification.tolerances import collect_numbers

#: Two tensors of 3 x 4 numbers and a scale.
RANDOM = np.random.default_rng(7)
A, B = RANDOM.normal(size=(3, 4)), RANDOM.normal(size=(3, 4))


def build_trace(*calls, numbers=("max", "min", "mean", "norm")) -> Trace:
    """Return a trace of calls (kind, inputs, output); of the outputs, only ``numbers``."""
    columns: dict[str, list] = {}
    for op, (_, inputs, output) in enumerate(calls):
        slots = [(f"input.{i}", "input", value) for i, value in enumerate(inputs)]
        for slot, slot_kind, value in [*slots, ("output.0", "output", output)]:
            array = np.asarray(value)
            is_scalar = isinstance(value, int | float)
            dtype = type(value).__name__ if is_scalar else "float32"
            row = {
                "op": op, "slot": slot, "slot_kind": slot_kind, "size": array.size,
                "dtype": dtype, "constant": is_scalar, "max": array.max(), "min": array.min(),
                "mean": array.mean(), "norm": np.linalg.norm(array),
                "nonfinite": int(not np.isfinite(array).all()),
            }  # fmt: skip
            if slot_kind == "output":
                row |= dict.fromkeys({"max", "min", "mean", "norm"} - set(numbers), np.nan)
            for name, cell in row.items():
                columns.setdefault(name, []).append(cell)
    names = [f"call.{op}" for op in range(len(calls))]
    ops = build_op_table({"name": names, "kind": [kind for kind, _, _ in calls]})
    source = Source("/dump", "msprobe", "", "pytorch")
    return Trace(source, ops, build_tensor_table(columns))


def check(*calls, **options):
    trace = build_trace(*calls, **options)
    return check_operators(trace, collect_numbers(trace), load_shipped_rules())


SOUND_CALLS = [
    ("Tensor.__add__", [A, B], A + B),
    ("Tensor.__add__", [A, 3], A + 3),
    ("Tensor.__add__", [A, B[:, :1]], A + B[:, :1]),
    ("AddN", [A, B, A], A + B + A),
    ("Tensor.__mul__", [A, B], A * B),
    ("Tensor.__mul__", [A, -0.5], A * -0.5),
    ("Tensor.__truediv__", [A, 4.0], A / 4),
    ("Neg", [A], -A),
    ("Exp", [A], np.exp(A)),
    ("Torch.rsqrt", [A**2], 1 / np.abs(A)),
    ("Square", [A], A**2),
    ("Tensor.transpose", [A, 0, 1], A.T),
    ("Tensor.expand", [A[:, :1], 3, 4], np.repeat(A[:, :1], 4, axis=1)),
    ("StridedSlice", [A], A[1:]),
    ("Concat", [A, B], np.concatenate([A, B])),
    ("ReduceSum", [A], A.sum(axis=0)),
    ("Tensor.mean", [A, 0], A.mean(axis=0)),
]


@pytest.mark.parametrize("call", SOUND_CALLS, ids=lambda call: call[0])
def test_a_right_result_is_no_contradiction(call) -> None:
    result = check(call)
    assert (result.checked, result.contradictions) == (1, ())


@pytest.mark.parametrize("call", SOUND_CALLS, ids=lambda call: call[0])
def test_a_result_that_is_four_times_as_large_is_found(call) -> None:
    kind, inputs, output = call
    (item,) = check((kind, inputs, 4 * output)).contradictions
    assert (item.kind, item.op, item.slot) == ("result", "call.0", "output.0")


def test_the_message_says_what_must_be_and_why() -> None:
    (item,) = check(("Neg", [np.array([1.0, 2.0, 5.0])], np.array([1.0, 2.0, 5.0]))).contradictions
    assert item.recorded.startswith("recorded with max 5, min 1, mean 2.66667")
    assert item.computed.startswith("the max must be -1: input.0 has max 5, min 1")


def test_max_and_min_alone_are_enough() -> None:
    """MindSpore's statistic.csv has no mean unless it is asked for."""
    (item,) = check(("Neg", [A], A), numbers=("max", "min")).contradictions
    assert item.op == "call.0"


def test_a_number_over_a_tensor_is_not_the_tensor_over_the_number() -> None:
    assert check(("Tensor.__rtruediv__", [A, 2.0], 2.0 / A)).contradictions == ()


def test_a_third_operand_of_a_sum_is_a_factor() -> None:
    assert check(("Torch.add", [A, B, 2.0], A + 2 * B)).contradictions == ()


def test_an_operator_that_often_computes_something_else_is_not_the_one_of_its_name() -> None:
    calls = [("Custom.Neg", [A * factor], A * factor) for factor in (1.0, 2.0, 3.0)]
    assert check(*calls).contradictions == ()


class TestUpdatesInPlace:
    """Recorders keep the input of an update before or after it."""

    def test_the_input_after_the_update_is_no_contradiction(self) -> None:
        updated = 0.5 * A
        assert check(("Tensor.mul_", [updated, 0.5], updated)).contradictions == ()

    def test_one_wrong_update_of_several_is_found(self) -> None:
        zeros = np.zeros_like(A)
        calls = [("Tensor.lerp_", [zeros, A * k, 0.1], A * k * 0.1) for k in (1.0, 2.0, 3.0)]
        calls.append(("Tensor.lerp_", [zeros, B, 0.1], A * 0.4))
        (item,) = check(*calls).contradictions
        assert item.op == "call.3"
        assert check(calls[3]).contradictions == ()


class TestNaN:
    def test_a_nan_that_the_output_does_not_have_is_found(self) -> None:
        damaged = np.full_like(A, np.nan)
        (item,) = check(("Mul", [damaged, B], A * B)).contradictions
        assert (item.slot, item.recorded) == ("input.0", "holds NaN")
        assert item.computed.startswith("output.0 has max")

    def test_an_operator_that_skips_nan_is_right(self) -> None:
        damaged = np.full_like(A, np.nan)
        assert check(("Torch.nansum", [damaged], np.zeros(1))).contradictions == ()
        assert check(("Torch.where", [damaged, A, B], A)).contradictions == ()
