"""Changes in a region of several operators: found although no value in between is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES
from dumpdiff.causes.hypotheses.composites.change import count_safe_trials
from dumpdiff.causes.region import Region, Step, StepInput
from dumpdiff.model.arrays import AnyArray
from dumpdiff.operators import compute_interpretations, compute_relative_distance
from dumpdiff.operators.activations import ACTIVATIONS, sigmoid, silu
from dumpdiff.operators.call import make_call
from dumpdiff.operators.convolution import ConvolutionSettings, convolve
from dumpdiff.operators.softmax import softmax

from .fault_cases import make_fault_case, make_operand

RNG = np.random.default_rng(7)
X, SKIP = RNG.standard_normal((2, 6, 16)), RNG.standard_normal((2, 6, 16))
WEIGHT, BIAS = RNG.standard_normal((16, 16)) / 4, RNG.standard_normal(16)
SCORES, MASK = RNG.standard_normal((2, 4, 6, 6)), np.triu(np.full((6, 6), -1e9), 1)
IMAGE, KERNEL = RNG.standard_normal((2, 4, 8, 8)), RNG.standard_normal((4, 4, 3, 3))
SETTINGS = ConvolutionSettings(1, 1, (1, 1))


def make_region(
    calls: Sequence[tuple[str, Sequence[tuple[str, AnyArray | float]]]],
    shapes: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> Region:
    """Return the region of some calls (kind, inputs).

    The input ``last`` is the output before, a whole number that of the call with this number.
    ``shapes``: of the outputs, by call; the others have the shape of their first input.
    """
    steps: list[Step] = []
    values: dict[str, int] = {}
    for number, (kind, arguments) in enumerate(calls):
        inputs = []
        for name, argument in arguments:
            producer = int(name) if name.isdigit() else number - 1
            is_computed = name == "last" or name.isdigit()
            array = steps[producer].output if is_computed else np.asarray(argument)
            value = producer if is_computed else 100 + values.setdefault(name, len(values))
            is_parameter = name.endswith((".weight", ".bias"))
            producer_kind = steps[producer].kind if is_computed else ""
            value = value if array.ndim or is_computed else -1
            inputs.append(
                StepInput(value, array, name, is_parameter, not is_computed, producer_kind)
            )
        arrays = [step_input.array for step_input in inputs]
        shape = shapes.get(number, arrays[0].shape)
        interpretation, output = next(compute_interpretations(kind, arrays, output_shape=shape))
        steps.append(
            Step(f"{kind}_{number}", kind, tuple(inputs), {}, number, output, interpretation)
        )
    return Region(tuple(steps), None, steps[-1].output.shape)


def explain_region(region: Region, faulty: AnyArray) -> tuple[str, str]:
    """Return (cause, sentence without place and residual) of the best composite hypothesis."""
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="block")
    case = replace(case, load_region=lambda: region)
    causes = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    if not causes:
        return "", ""
    text = causes[0].text.removeprefix("block behaves as ").partition("; residual")[0]
    return causes[0].name, text


MLP = make_region([
    ("matmul", [("x", X), ("fc.weight", WEIGHT)]),
    ("add", [("last", 0), ("fc.bias", BIAS)]),
    ("silu", [("last", 0)]),
    ("mul", [("last", 0), ("scale", 0.5)]),
    ("add", [("last", 0), ("skip", SKIP)]),
])  # fmt: skip
HIDDEN = X @ WEIGHT.T + BIAS
ATTENTION = make_region([
    ("div", [("scores", SCORES), ("scale", 4.0)]),
    ("add", [("last", 0), ("mask", MASK)]),
    ("softmax", [("last", 0)]),
])  # fmt: skip
CONVOLUTION = make_region([
    ("convolution", [("image", IMAGE), ("conv.weight", KERNEL)]),
    ("silu", [("last", 0)]),
])  # fmt: skip


@pytest.mark.parametrize(("region", "faulty", "cause_name", "sentence"), [
    (MLP, 0.5 * silu(X @ WEIGHT.T) + SKIP, "bias-missing", "without its bias (fc.bias)"),
    (MLP, 0.5 * silu(HIDDEN), "skip-missing", "without skip in the sum add_4"),
    (MLP, 0.5 * ACTIVATIONS["relu"](HIDDEN) + SKIP, "activation-kind",
     "relu; the reference has silu"),
    (MLP, 0.7 * silu(HIDDEN) + SKIP, "constant-factor",
     "the number = 0.7 in mul_3; the reference has 0.5"),
    (MLP, 0.5 * silu(X @ WEIGHT + BIAS) + SKIP, "weight-transposed",
     "fc.weight transposed"),
    (ATTENTION, softmax(SCORES / 8 + MASK), "scale",
     "the number = 8 in div_0; the reference has 4"),
    (ATTENTION, softmax(SCORES / 4), "mask-missing", "no mask (mask)"),
    (ATTENTION, softmax(SCORES / 4 + MASK, 1), "softmax-axis",
     "softmax with axis 1; the reference has axis 3"),
    (CONVOLUTION, silu(convolve(IMAGE, KERNEL, ConvolutionSettings(1, 1, (1, 1), "reflect"))),
     "padding-mode", "padding mode reflect; the reference pads with zeros"),
    (CONVOLUTION, silu(convolve(IMAGE, KERNEL[:, :, ::-1, ::-1], SETTINGS)), "kernel-flipped",
     "the kernel conv.weight flipped"),
    (CONVOLUTION, silu(convolve(IMAGE, KERNEL.swapaxes(2, 3), SETTINGS)), "kernel-axes",
     "axes 2 and 3 of conv.weight exchanged"),
    (CONVOLUTION, silu(convolve(IMAGE, KERNEL, ConvolutionSettings(1, 2, (2, 2)))), "dilation",
     "convolution with stride 1, padding 2, dilation 2; "
     "the reference has stride 1, padding 1, dilation 1"),
])  # fmt: skip
def test_one_change_within_a_region_is_recognized(
    region: Region, faulty: AnyArray, cause_name: str, sentence: str
) -> None:
    assert explain_region(region, faulty) == (cause_name, sentence)


def test_two_changes_at_once_are_not_explained() -> None:
    assert explain_region(MLP, 0.7 * sigmoid(X @ WEIGHT.T) + 0.9 * SKIP) == ("", "")


def test_a_region_gives_its_value_again() -> None:
    run_again = MLP.unchanged
    assert run_again is not None
    assert compute_relative_distance(run_again, 0.5 * silu(HIDDEN) + SKIP) < 1e-14


def test_a_change_spreads_to_the_last_value() -> None:
    changed = MLP.run(1, X @ WEIGHT.T)
    assert changed is not None
    assert compute_relative_distance(changed, 0.5 * silu(X @ WEIGHT.T) + SKIP) < 1e-14
    assert MLP.find_kinds_after(2) == {"mul", "add"}


def test_a_single_number_is_not_explained_by_chance():
    """Of hundreds of changes, one comes near a loss that differs by little."""
    loss = make_fault_case(np.array([1.002]), np.array([1.0]), {})
    assert count_safe_trials(loss) == pytest.approx(1e-3 / (4e-6 / 0.001996), rel=0.01)  # 0.5
    assert count_safe_trials(make_fault_case(2 * X, X, {})) == float("inf")


def test_base_of_a_rotary_table_is_the_number_that_the_other_side_records() -> None:
    exponents = np.array([0.0, 0.5])
    region = make_region([("pow", [("base", 1e4), ("exponents", exponents)])], {0: (2,)})
    case = make_fault_case(
        100.0**exponents, 1e4**exponents, {}, consumer_kinds=frozenset({"mul", "cos"})
    )
    call = make_call("pow", [100.0, exponents])
    case = replace(case, faulty_call=call, load_region=lambda: region)
    causes = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    assert causes[0].name == "rope-theta"
    assert causes[0].parameters == {"rotary base": 100.0}


CAPPED = make_region([
    ("div", [("logits", SCORES), ("cap", 5.0)]),
    ("tanh", [("last", 0)]),
    ("mul", [("last", 0), ("cap", 5.0)]),
])  # fmt: skip


def test_tanh_between_two_factors_is_a_soft_cap() -> None:
    assert explain_region(CAPPED, SCORES) == (
        "soft-cap",
        "no soft cap; the reference has c tanh(x / c)",
    )


def test_number_that_is_fitted_at_zero_is_left_out() -> None:
    region = make_region([
        ("add", [("n.weight", BIAS), ("one", 1.0)]),
        ("mul", [("x", HIDDEN), ("0", 0)]),
    ])  # fmt: skip
    assert explain_region(region, HIDDEN * BIAS) == (
        "constant-offset",
        "without the number of add_0 (add 1)",
    )


def test_weight_of_a_normalized_value_that_is_left_out() -> None:
    rows = X / np.sqrt(np.mean(X**2, -1, keepdims=True))
    weight = 1 + 0.1 * RNG.standard_normal(X.shape[-1])
    region = make_region([
        ("mul", [("normalized", rows), ("norm.weight", weight)]),
        ("matmul", [("last", 0), ("fc.weight", WEIGHT)]),
    ], {1: (*X.shape[:-1], len(WEIGHT))})  # fmt: skip
    assert explain_region(region, rows @ WEIGHT.T) == (
        "affine-missing",
        "a norm without its weight (norm.weight)",
    )


def test_input_of_unknown_origin_is_no_other_source() -> None:
    """An op that was not recorded may have computed it from the value that the other side reads."""
    normalized = X / np.sqrt(np.mean(X**2, -1, keepdims=True))
    region = make_region([("add", [("an input", normalized), ("skip", X)])])
    step = region.steps[0]
    unknown_input = replace(step.inputs[0], agrees=False)
    step = replace(step, inputs=(unknown_input, step.inputs[1]))
    branch = make_operand("attention", RNG.standard_normal(X.shape))
    case = make_fault_case(branch.array + X, step.output, {}, scope="block")
    region = replace(region, steps=(step,))
    case = replace(case, operands=(branch,), load_region=lambda: region)
    causes = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    assert causes[0].name == "missing-step"
    assert "add_0 (add) of attention itself; the reference has what an op" in causes[0].text


def test_no_trial_is_a_chance_if_nothing_is_tolerated() -> None:
    case = make_fault_case(np.array([1.0]), np.array([2.0]), {})
    exact_case = replace(case, tolerance=0.0)
    assert count_safe_trials(exact_case) == float("inf")


def test_op_between_agreeing_values_that_is_left_out() -> None:
    """The exponential agrees, so it is no step of the region; the other side reads its input."""
    logarithm = RNG.standard_normal(12)
    region = make_region([("neg", [("exp_of_a", np.exp(logarithm))])])
    step = region.steps[0]
    step = replace(step, inputs=(replace(step.inputs[0], producer_kind="exp"),))
    case = make_fault_case(-logarithm, step.output, {"a.weight": logarithm}, scope="block")
    case = replace(case, load_region=lambda: replace(region, steps=(step,)))
    causes = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    assert causes[0].name == "missing-step"
    assert "a.weight without exp_of_a (exp)" in causes[0].text


def test_one_of_softplus_is_no_step_by_itself() -> None:
    softplus = make_region([
        ("exp", [("x", X)]),
        ("add", [("last", 0), ("one", 1.0)]),
        ("log", [("last", 0)]),
    ])  # fmt: skip
    assert explain_region(softplus, X) == (
        "activation-kind",
        "no activation; the reference has softplus",
    )


def test_groups_may_have_elements_that_are_apart() -> None:
    """Channels are cut into groups in a row, or every third one is in a group."""
    channels = RNG.standard_normal((2, 3, 4, 5))
    region = make_region(
        [("mean", [("x", channels), ("axis", 2)]), ("tanh", [("last", 0)])],
        {0: (2, 3, 5), 1: (2, 3, 5)},
    )
    faulty = np.tanh(channels.reshape(2, 4, 3, 5).mean(axis=1))
    assert explain_region(region, faulty) == (
        "axes-swapped",
        "mean (mean_0) over 4 elements that are 3 apart; the reference reduces over 4 in a row",
    )
