"""Changes in a region that belong together: reductions, joined parts, rotations, attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import has_odd_number, search_causes
from dumpdiff.causes.hypotheses import (
    COMPOSITE_HYPOTHESES,
    HYPOTHESES,
    LAST_HYPOTHESES,
    SCAN_HYPOTHESES,
)
from dumpdiff.causes.region import Region, Step, StepInput
from dumpdiff.model.arrays import AnyArray, Floats
from dumpdiff.model.finding import Cause
from dumpdiff.operators.activations import sigmoid
from dumpdiff.operators.softmax import softmax

from .fault_cases import make_fault_case, make_operand
from .test_composites import explain_region, make_region

RNG = np.random.default_rng(3)
TOKENS, HEAD = RNG.standard_normal((2, 6, 8)), RNG.standard_normal((5, 8))
SKIP, BRANCH = RNG.standard_normal((2, 4, 8)), RNG.standard_normal((2, 4, 8))
SKIP_TOKENS = RNG.standard_normal((2, 6, 8))
CLASS_TOKEN, PATCHES = RNG.standard_normal((2, 1, 8)), RNG.standard_normal((2, 5, 8))
POSITIONS = RNG.standard_normal((1, 6, 8))

MEAN = make_region([("mean", [("x", TOKENS), ("axis", 1.0)])], {0: (2, 8)})
JOINED = make_region([
    ("concat", [("skip", SKIP), ("branch", BRANCH), ("axis", 2.0)]),
    ("relu", [("last", 0)]),
], {0: (2, 4, 16)})  # fmt: skip
EMBEDDED = make_region([
    ("concat", [("class_token", CLASS_TOKEN), ("patches", PATCHES), ("axis", 1.0)]),
    ("add", [("last", 0), ("positions", POSITIONS)]),
], {0: (2, 6, 8)})  # fmt: skip


def join(*parts: AnyArray, axis: int = 2) -> Floats:
    joined: Floats = np.concatenate(parts, axis)
    return joined


@pytest.mark.parametrize(("region", "faulty", "cause", "sentence"), [
    (MEAN, TOKENS.max(axis=1), "pooling",
     "the maximum over axis 1; the reference takes the mean over axis 1"),
    (MEAN, TOKENS[:, 0], "pooling",
     "element 0 of axis 1; the reference takes the mean over axis 1"),
    (MEAN, TOKENS[:, 1:].mean(axis=1), "pooling",
     "the mean over axis 1 without its first element; "
     "the reference takes the mean over axis 1"),
    (JOINED, np.maximum(join(BRANCH, SKIP), 0), "input-order",
     "concat_0 of branch, skip, in this order"),
    (JOINED, np.maximum(join(0.5 * SKIP, BRANCH), 0), "constant-factor",
     "skip 0.5 times the reference's in concat_0 (concat)"),
    (EMBEDDED, join(PATCHES, CLASS_TOKEN, axis=1) + POSITIONS, "input-order",
     "concat_0 of patches, class_token, in this order"),
    (EMBEDDED, join(CLASS_TOKEN, PATCHES + POSITIONS[:, 1:], axis=1), "missing-term",
     "without positions for class_token (add_1); the reference adds it to all parts"),
])  # fmt: skip
def test_what_is_reduced_or_joined_is_named(
    region: Region, faulty: AnyArray, cause: str, sentence: str
) -> None:
    assert explain_region(region, faulty) == (cause, sentence)


N_POSITIONS, WIDTH = 6, 8
Q, K = (RNG.standard_normal((2, N_POSITIONS, WIDTH)) for _ in range(2))


def make_tables(base: float, factor: float = 1.0) -> tuple[Floats, Floats]:
    """Return cosines and sines (positions, width) for pairs in halves; positions by a factor."""
    frequencies = np.tile(base ** (-np.arange(0, WIDTH, 2) / WIDTH), 2)
    angles = np.outer(factor * np.arange(N_POSITIONS), frequencies)
    return np.cos(angles), np.sin(angles)


def rotate(x: AnyArray, base: float = 1e4, direction: int = 1, factor: float = 1.0) -> Floats:
    cos, sin = make_tables(base, factor)
    half = WIDTH // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    result: Floats = x * cos + direction * turned * sin
    return result


def interleave(x: AnyArray) -> Floats:
    """Return x with the pairs of the other layout in halves."""
    result: Floats = np.concatenate([x[..., ::2], x[..., 1::2]], -1)
    return result


def neighbor(x: AnyArray) -> Floats:
    """Return x with the pairs in halves next to each other: the reverse."""
    half = x.shape[-1] // 2
    result: Floats = np.stack([x[..., :half], x[..., half:]], -1).reshape(x.shape)
    return result


def make_rotated_scores() -> Region:
    """Return the region from queries and keys to scores, with each operator of the rotation."""
    cos, sin = make_tables(1e4)
    calls = []
    half = WIDTH // 2
    for name, x in (("q", Q), ("k", K)):
        turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
        calls += [
            ("mul", [(name, x), ("cos", cos)]),
            ("mul", [(f"turned_{name}", turned), ("sin", sin)]),
            ("add", [("sum", x * cos), ("sum_2", turned * sin)]),
        ]
    calls.append(("matmul", [("last", 0), ("rotated_k", rotate(K).swapaxes(1, 2))]))
    region = make_region(calls, {6: (2, N_POSITIONS, N_POSITIONS)})
    return link(region, {2: (0, 1), 5: (3, 4), 6: (2, 5)})


def link(region: Region, links: dict[int, tuple[int, ...]]) -> Region:
    """Return the region with the inputs of steps read from other steps, by their numbers."""
    steps = list(region.steps)
    for number, sources in links.items():
        inputs = list(steps[number].inputs)
        for place, source in enumerate(sources):
            array, order = steps[source].output, None
            if array.shape != inputs[place].array.shape:  # the keys are read transposed
                places = np.arange(array.size).reshape(array.shape)
                array, order = array.swapaxes(1, 2), places.swapaxes(1, 2).reshape(-1)
            inputs[place] = replace(
                inputs[place], value=source, array=array, agrees=False, order=order
            )
        output = next(iter(steps[number].interpret([item.array for item in inputs])))
        steps[number] = replace(
            steps[number], inputs=tuple(inputs), output=output[1], interpretation=output[0]
        )
    return Region(tuple(steps), None, steps[-1].output.shape)


SCORES = make_rotated_scores()


def multiply(q: AnyArray, k: AnyArray) -> Floats:
    """Return the scores in the form of the region's last step."""
    step = SCORES.steps[-1]
    output = step.compute([q, k.swapaxes(1, 2)])
    assert output is not None
    return output


@pytest.mark.parametrize(("faulty", "cause", "sentence"), [
    (multiply(rotate(Q, 5e5), rotate(K, 5e5)), "rope-theta",
     "rotary base 500000; the reference has 10000"),
    (multiply(rotate(Q, factor=0.25), rotate(K, factor=0.25)), "rope-scaling",
     "positions 0.25 times the reference's"),
    (multiply(rotate(Q, direction=-1), rotate(K, direction=-1)), "rope-direction",
     "a rotary embedding that turns the other way"),
    (multiply(rotate(Q), K), "rope-missing", "no rotary embedding of k; the reference has it"),
    (multiply(rotate(Q), interleave(K)), "rope-missing",
     "no rotary embedding of k; the reference has it"),
    (multiply(rotate(Q), neighbor(K)), "rope-missing",
     "no rotary embedding of k; the reference has it"),
    (multiply(Q, K), "rope-missing", "no rotary embedding of q and of k; the reference has it"),
])  # fmt: skip
def test_a_rotation_is_recognized_at_the_scores(
    faulty: AnyArray, cause: str, sentence: str
) -> None:
    assert explain_region(SCORES, faulty) == (cause, sentence)


HEADS = (2, 3, 6, 4)
QUERIES, KEYS, VALUES = (RNG.standard_normal(HEADS) for _ in range(3))


def test_keys_and_values_are_exchanged() -> None:
    transposed_keys = KEYS.swapaxes(-1, -2)
    region = make_region([
        ("matmul", [("q", QUERIES), ("k", transposed_keys)]),
        ("softmax", [("last", 0)]),
        ("matmul", [("last", 0), ("v", VALUES)]),
    ], {0: (2, 3, 6, 6), 2: HEADS})  # fmt: skip
    scores = next(iter(region.steps[0].interpret([QUERIES, VALUES.swapaxes(-1, -2)])))[1]
    faulty = region.steps[2].compute([softmax(scores), KEYS])
    assert faulty is not None
    assert explain_region(region, faulty) == ("input-order", "keys and values exchanged (k, v)")


GATE = RNG.standard_normal((4, 8))


def explain_surplus(region: Region, faulty: AnyArray, faulty_kinds: tuple[str, ...]) -> Cause:
    """Return the first cause if the other side's ops have these kinds."""
    faithful = region.steps[-1].output
    case = make_fault_case(faulty, faithful, {}, scope="block")
    kinds = tuple(step.kind for step in region.steps)
    case = replace(
        case,
        kinds=kinds,
        faulty_kinds=faulty_kinds,
        load_region=lambda: region,
        load_consumers=lambda: [("mul", [make_operand("x", GATE)])],
        faulty_operands=(make_operand("fc.bias", GATE[0]),),
    )
    return search_causes([case], HYPOTHESES).causes[0]


def test_a_scaled_sigmoid_that_gates_its_input_is_an_activation() -> None:
    region = make_region([("mul", [("x", GATE), ("factor", 1.702)]), ("sigmoid", [("last", 0)])])
    cause = explain_surplus(region, sigmoid(GATE), ("sigmoid",))
    assert cause.name == "activation-kind"
    assert "silu, x sigmoid(x); the reference has x sigmoid(1.702 x)" in cause.text


def test_a_bias_that_the_other_side_adds_once_is_added_twice() -> None:
    region = make_region([("add", [("y", GATE), ("fc.bias", GATE[0])]), ("tanh", [("last", 0)])])
    cause = explain_surplus(region, np.tanh(GATE), ("tanh",))
    assert cause.name == "bias-doubled"
    assert "its bias added once (fc.bias); the reference adds it twice" in cause.text


@pytest.mark.parametrize(("number", "is_odd"), [
    (0.5, False), (1 / 3, False), (10**0.5, False), (8**-0.5, False), (-1.25, False),
    (0.87342, True), (1.000371, True), (0.496063, True),
])  # fmt: skip
def test_a_fitted_number_is_one_that_people_write(number: float, is_odd: bool) -> None:
    assert has_odd_number({"factor": number}, 1e-6) is is_odd


@pytest.mark.parametrize(("base", "is_odd"), [(10_000, False), (500_000.4, False), (9980, True)])
def test_a_base_has_two_digits(base: float, is_odd: bool) -> None:
    """9980 is 10000 whose powers were rounded; noise moves a fitted base a little."""
    assert has_odd_number({"theta": base}, 1e-6) is is_odd


def test_a_step_left_out_comes_before_an_odd_number() -> None:
    """An offset of -0.87342 and a missing branch leave the same."""
    x, branch = np.abs(GATE) + 1, np.full_like(GATE, 0.87342)
    region = make_region([("add", [("x", x), ("branch", branch)]), ("relu", [("last", 0)])])
    assert explain_region(region, x)[0] == "skip-missing"


def test_a_loss_against_another_input_of_the_run_is_named() -> None:
    noise, image, prediction = (RNG.standard_normal((3, 4)) for _ in range(3))
    region = make_region([
        ("sub", [("prediction", prediction), ("noise", noise)]),
        ("square", [("last", 0)]),
        ("mean", [("last", 0)]),
    ], {2: ()})  # fmt: skip
    target = replace(region.steps[0].inputs[1], is_given=True)
    first = replace(region.steps[0], inputs=(region.steps[0].inputs[0], target))
    region = Region((first, *region.steps[1:]), None, ())
    case = make_fault_case(
        np.mean((prediction - image) ** 2), np.mean((prediction - noise) ** 2), {}, scope="loss"
    )
    case = replace(
        case,
        load_region=lambda: region,
        find_given_values=lambda _: [make_operand("noise", noise), make_operand("image", image)],
    )
    cause = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes[0]
    assert cause.name == "loss-target"
    assert "the loss against another input of the run" in cause.text


@pytest.mark.parametrize(("faulty", "sentence"), [
    (TOKENS * sigmoid(SKIP_TOKENS), "sigmoid of z, not silu"),
    (TOKENS * SKIP_TOKENS, "no activation of z, without gate"),
])  # fmt: skip
def test_a_factor_of_silu_that_is_left_out_is_an_activation(
    faulty: AnyArray, sentence: str
) -> None:
    region = make_region([
        ("mul", [("y", TOKENS), ("z", SKIP_TOKENS)]),
        ("mul", [("last", 0), ("gate", sigmoid(SKIP_TOKENS))]),
    ])  # fmt: skip
    assert explain_region(region, faulty) == ("activation-kind", sentence)


def test_heads_that_are_cut_from_the_columns_in_another_order() -> None:
    """A view (tokens, size, heads) in place of (tokens, heads, size)."""
    projection = RNG.standard_normal((2, 6, 12))
    heads = projection.reshape(2, 6, 3, 4).swapaxes(1, 2)
    region = make_region([("relu", [("v", heads)])])
    faulty = np.maximum(projection.reshape(2, 6, 4, 3).transpose(0, 3, 1, 2), 0)
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="layers.0.attention")
    case = replace(case, load_region=lambda: region)
    cause = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes[0]
    assert cause.name == "heads-permuted"
    assert "heads of v cut from its columns in steps of 3" in cause.text
    assert explain_region(region, faulty)[0] == "axes-swapped"


def test_a_scan_that_one_side_runs_from_the_end() -> None:
    decay, entering = RNG.uniform(0.2, 0.9, (2, 5, 4)), RNG.standard_normal((2, 5, 4))
    region = make_region([
        ("mul", [("decay_1", decay[:, 1]), ("entering_0", entering[:, 0])]),
        ("add", [("last", 0), ("entering_1", entering[:, 1])]),
    ])  # fmt: skip
    faulty = decay[:, 3] * entering[:, 4] + entering[:, 3]
    case = make_fault_case(
        faulty, region.steps[-1].output, {"decay": decay, "entering": entering}, scope="block"
    )
    case = replace(case, load_region=lambda: region)
    cause = search_causes([case], SCAN_HYPOTHESES, checked_only=True).causes[0]
    assert cause.name == "scan-direction"
    expected = "decay and entering read along axis 1 in reverse, from its end; the reference reads"
    assert expected in cause.text


def test_zeros_that_follow_from_zeros_are_not_the_cause() -> None:
    state, x = np.zeros((2, 8)), RNG.standard_normal((2, 8))
    case = make_fault_case(state, x, {})
    read_state = replace(case, faulty_operands=(make_operand("state", state),))
    assert search_causes([case], LAST_HYPOTHESES).causes[0].name == "zeroed"
    assert not search_causes([read_state], LAST_HYPOTHESES).causes


def test_the_gradient_of_a_convolution_is_computed_again() -> None:
    """Two branches are added before the convolution; the faulty side lacks one."""
    branches, weight = RNG.standard_normal((2, 2, 4, 6, 6)), RNG.standard_normal((4, 3, 3, 3))

    def name_inputs(*arrays: tuple[int, str, AnyArray]) -> tuple[StepInput, ...]:
        return tuple(
            StepInput(value, array, name, False, value > 9) for value, name, array in arrays
        )

    total = Step(
        "AddN", "add", name_inputs((10, "direct", branches[0]), (11, "skip", branches[1])), {}, 0,
        branches.sum(axis=0),
    )  # fmt: skip
    gradient = Step(
        "Conv2DBackpropInput", "conv2dbackpropinput",
        name_inputs((0, "AddN", total.output), (12, "kernel", weight)), {}, 1,
        np.zeros((2, 3, 6, 6)), "stride 1, padding 1",
    )  # fmt: skip

    def compute(array: AnyArray) -> AnyArray:
        output = gradient.compute([array, weight])
        assert output is not None
        return output

    region = Region((total, replace(gradient, output=compute(total.output))), None, (2, 3, 6, 6))
    case = make_fault_case(
        compute(branches[0]), compute(total.output), {}, phase="backward", scope="block"
    )
    case = replace(case, load_region=lambda: region)
    cause = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes[0]
    assert (cause.name, cause.text.partition("; residual")[0]) == (
        "gradient-stopped",
        "block behaves as the gradient through skip missing",
    )
