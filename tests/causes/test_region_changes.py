"""Changes in a region: masks, states, gates, numbers, joined and padded tensors, softmax axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.element_places import find_padding
from dumpdiff.causes.fault_case import Operand
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES
from dumpdiff.causes.hypotheses.composites.change import make_search
from dumpdiff.causes.hypotheses.composites.joined_parts import list_foreign_joins
from dumpdiff.causes.hypothesis import Hypothesis
from dumpdiff.causes.region import Region, Step, StepInput
from dumpdiff.model.arrays import AnyArray, Floats
from dumpdiff.operators.activations import ACTIVATIONS, relu, silu
from dumpdiff.operators.softmax import softmax

from .fault_cases import make_fault_case, make_operand
from .test_composites import explain_region, make_region

RNG = np.random.default_rng(13)
X, Y, Z = RNG.standard_normal((3, 2, 6, 8))
WEIGHT = RNG.standard_normal((8, 8)) / 3
_AFFINE = ("weight", "bias")


def explain_with(
    region: Region,
    faulty: AnyArray,
    hypotheses: tuple[Hypothesis, ...] = COMPOSITE_HYPOTHESES,
    phase: str = "forward",
    **fields: object,
) -> tuple[str, str]:
    """Return (cause, sentence without place and residual), with fields of the case."""
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="block", phase=phase)
    case = replace(case, load_region=lambda: region, **fields)
    causes = search_causes([case], hypotheses, checked_only=True).causes
    if not causes:
        return "", ""
    text = causes[0].text.removeprefix("block behaves as ").partition("; residual")[0]
    return causes[0].name, text


def test_a_factor_of_zeros_and_ones_is_a_mask() -> None:
    is_kept = (RNG.random(X.shape) < 0.7).astype(float)
    region = make_region([("mul", [("x", X), ("kept", is_kept)]), ("tanh", [("last", 0)])])
    assert explain_region(region, np.tanh(X)) == ("mask-missing", "no mask (kept in mul_0)")


def test_a_mask_of_truth_values_is_one_too() -> None:
    is_kept = RNG.random(X.shape) < 0.7
    region = make_region([("mul", [("x", X), ("kept", is_kept)]), ("tanh", [("last", 0)])])
    assert explain_region(region, np.tanh(X)) == ("mask-missing", "no mask (kept in mul_0)")


@pytest.mark.parametrize("kind", ["add", "where"])
def test_a_mask_behind_the_softmax_leaves_rows_that_do_not_add_up_to_one(kind: str) -> None:
    is_kept = RNG.random(X.shape) > 0.3
    inputs = {
        "add": [("x", X), ("mask", np.where(is_kept, 0.0, -1e9))],
        "where": [("kept", is_kept), ("x", X), ("fill", np.full(X.shape, -1e9))],
    }
    region = make_region([(kind, inputs[kind]), ("softmax", [("last", 0)])])
    assert explain_region(region, softmax(X) * is_kept) == (
        "mask-kind",
        "the mask applied behind softmax_1 (softmax), whose rows no longer add up to 1; "
        "the reference masks the scores before it",
    )


@pytest.mark.parametrize(("decay_name", "cause", "sentence"), [
    ("decay", "hidden-state-reset", "a state of zeros, without mul_1"),
    ("decay.weight", "zeroed", "mul_1 filled with 0 in add_2"),
])  # fmt: skip
def test_a_sum_times_a_decay_that_is_zero_is_a_state(
    decay_name: str, cause: str, sentence: str
) -> None:
    """h = a h + b: the other side adds zeros in its place. A parameter times a sum is no state."""
    region = make_region([
        ("add", [("x", X), ("y", Y)]),
        ("mul", [("last", 0), (decay_name, np.abs(Z))]),
        ("add", [("1", 0), ("z", Z)]),
    ])  # fmt: skip
    steps = [*region.steps[:2], rename_inputs(region.steps[2], {"1": "mul_1"})]
    region = replace(region, steps=tuple(steps))
    assert explain_with(region, Z, combines_neutral=lambda _value, _size, _kind: True) == (
        cause,
        sentence,
    )


def rename_inputs(step: Step, names: dict[str, str]) -> Step:
    inputs = [replace(item, name=names.get(item.name, item.name)) for item in step.inputs]
    return replace(step, inputs=tuple(inputs))


def test_gate_and_up_are_swapped_in_all_products() -> None:
    region = make_region([
        ("silu", [("gate_1", X)]),
        ("mul", [("last", 0), ("up_1", Y)]),
        ("silu", [("gate_2", Z)]),
        ("mul", [("last", 0), ("up_2", X[::-1])]),
        ("add", [("1", 0), ("3", 0)]),
    ])  # fmt: skip
    faulty = silu(Y) * X + silu(X[::-1]) * Z
    assert explain_region(region, faulty) == (
        "gate-up-swapped",
        "gate and up swapped, and the same at 1 other place",
    )


def test_one_activation_in_place_of_another_in_all_layers() -> None:
    region = make_region([
        ("relu", [("x", X)]),
        ("matmul", [("last", 0), ("fc.weight", WEIGHT)]),
        ("relu", [("last", 0)]),
    ])  # fmt: skip
    gelu = ACTIVATIONS["gelu (erf)"]
    assert explain_region(region, gelu(gelu(X) @ WEIGHT.T)) == (
        "activation-kind",
        "gelu (erf) at 2 places; the reference has relu",
    )
    assert explain_region(region, gelu(relu(X) @ WEIGHT.T)) == (
        "activation-kind",
        "gelu (erf); the reference has relu",
    )


def make_clamped(low: float, high: float, *, is_loss: bool) -> Region:
    calls = [("clamp", [("x", X), ("low", low), ("high", high)])]
    if is_loss:
        calls.append(("mean", [("last", 0)]))
    return make_region(calls, {1: ()})


@pytest.mark.parametrize(("is_loss", "cause"), [(False, "argument"), (True, "loss-threshold")])
def test_two_numbers_that_only_the_other_side_has_take_the_places_of_two(
    is_loss: bool, cause: str
) -> None:
    own, other = (make_clamped(*each, is_loss=is_loss) for each in ((-1, 1), (-0.5, 0.7)))
    faulty = other.steps[-1].output
    assert explain_with(own, faulty, load_faulty_region=lambda: other) == (
        cause,
        "the numbers -0.5, 0.7 in clamp_0; the reference has -1, 1",
    )


def test_one_value_is_read_twice() -> None:
    region = make_region([("mul", [("x", X), ("y", Y)]), ("tanh", [("last", 0)])])
    other = make_region([("mul", [("x", X), ("x", X)]), ("tanh", [("last", 0)])])
    assert explain_with(region, np.tanh(X * X), load_faulty_region=lambda: other) == (
        "input-source",
        "mul_0 (mul) of x twice; the reference has y in the place of one",
    )


class TestJoinedValuesOfOtherSteps:
    """The other side joined values of another step of a sequence, by an op that is not recorded."""

    REGION = make_region([
        ("concat", [("state", X), ("glimpse", Y), ("axis", 2.0)]),
        ("tanh", [("last", 0)]),
    ], {0: (2, 6, 16), 1: (2, 6, 16)})  # fmt: skip
    OTHER_STATE, OTHER_GLIMPSE = RNG.standard_normal((2, 2, 6, 8))

    def explain(self, joined: AnyArray) -> tuple[str, str]:
        others = [
            make_operand("other state", self.OTHER_STATE),
            make_operand("other glimpse", self.OTHER_GLIMPSE),
        ]

        def find_others(shape: tuple[int, ...]) -> list[Operand]:
            return [other for other in others if other.shape == shape]

        hypothesis = Hypothesis("input-source", make_search(list_foreign_joins))
        return explain_with(
            self.REGION,
            np.tanh(joined),
            (hypothesis,),
            find_other_values=find_others,
            faulty_operands=(make_operand("an input", joined, agrees=False),),
        )

    def test_one_part_is_another_one(self) -> None:
        assert self.explain(np.concatenate([self.OTHER_STATE, Y], -1)) == (
            "input-source",
            "other state in the place of state in concat_0",
        )

    def test_all_parts_are_others(self) -> None:
        joined = np.concatenate([self.OTHER_STATE, self.OTHER_GLIMPSE], -1)
        assert self.explain(joined) == (
            "input-source",
            "other state in the place of state in concat_0, and 1 more",
        )

    def test_each_part_must_be_known(self) -> None:
        assert self.explain(np.concatenate([self.OTHER_STATE, Z + 1], -1)) == ("", "")


def make_padded(output: AnyArray) -> Region:
    """Return the region of a padding that no recorder shows, and what reads it."""
    places = find_padding(X, output)
    assert places is not None
    inputs = (StepInput(100, X, "x", False, True),)
    step = Step("an unrecorded pad", "pad", inputs, {}, 0, output, places=places)
    reader = make_region([("tanh", [("padded", output)])]).steps[0]
    item = replace(reader.inputs[0], value=0)
    return Region((step, replace(reader, value=1, inputs=(item,))), None, output.shape)


def pad(widths: tuple[int, int], mode: str = "constant") -> Floats:
    padded: Floats = np.pad(X, ((0, 0), widths, (0, 0)), mode=mode)  # type: ignore[call-overload]
    return padded


@pytest.mark.parametrize(("own", "other", "cause", "sentence"), [
    (pad((2, 2), "edge"), pad((2, 2)), "padding-mode",
     "padding mode zeros; the reference pads with mode replicate"),
    (pad((2, 2)), pad((2, 2), "reflect"), "padding-mode",
     "padding mode reflect; the reference pads with mode zeros"),
    (pad((3, 0)), pad((0, 3)), "causal-shift",
     "0 zeros before and 3 behind; the reference pads 3 before and 0 behind"),
    (pad((3, 0)), pad((2, 1)), "causal-shift",
     "2 zeros before and 1 behind; the reference pads 3 before and 0 behind"),
])  # fmt: skip
def test_a_padding_is_filled_otherwise(
    own: AnyArray, other: AnyArray, cause: str, sentence: str
) -> None:
    assert explain_region(make_padded(own), np.tanh(other)) == (cause, sentence)


def test_a_padding_with_its_axes_exchanged_is_found() -> None:
    output = pad((1, 2), "edge").swapaxes(1, 2)
    places = find_padding(X, output)
    assert places is not None
    assert np.array_equal(X.reshape(-1)[places].reshape(output.shape), output)
    assert find_padding(X, output + 1) is None


def test_one_softmax_in_place_of_one_over_groups() -> None:
    """Rows of one group share a sum, as messages to one node of a graph do."""
    x = RNG.standard_normal((6, 4))
    is_in_group = np.kron(np.eye(2), np.ones((3, 3)))
    region = make_region([
        ("exp", [("x", x)]),
        ("matmul", [("groups", is_in_group), ("0", 0)]),
        ("div", [("0", 0), ("1", 0)]),
    ], {1: (6, 4)})  # fmt: skip
    fields = {"faulty_kinds": ("softmax",)}
    assert explain_with(region, softmax(x, 0), **fields) == (
        "softmax-axis",
        "softmax of x along axis -2; the reference divides by sums over groups of them",
    )
    assert explain_with(region, softmax(x, 1), **fields) == (
        "softmax-axis",
        "softmax of x along axis -1; the reference divides by sums over groups of them",
    )


def explain_scaling(*, depends: bool) -> tuple[str, str]:
    """Return (cause, sentence) of a factor of a branch that is left out."""
    total = [("last", 0), ("x", Y)]
    region = make_region([("mul", [("branch", X), ("scale", 0.5)]), ("add", total)])
    other = make_region([("add", [("branch", X), ("x", Y)])])
    return explain_with(
        region,
        X + Y,
        depends_on=lambda _value, _other: depends,
        load_faulty_region=lambda: other,
    )


def test_a_residual_is_scaled_only_if_its_branch_follows_from_it() -> None:
    """A sum of two other values has no residual branch."""
    sentence = "a factor of 1, without mul_0 (mul); the reference multiplies by 0.5"
    assert explain_scaling(depends=True) == ("residual-scale", sentence)
    assert explain_scaling(depends=False) == ("constant-factor", sentence)


def test_the_sum_of_activated_values_is_not_the_activated_sum() -> None:
    later = make_region([("add", [("x", X), ("y", Y)]), ("tanh", [("last", 0)])])
    earlier = make_region(
        [("tanh", [("x", X)]), ("tanh", [("y", Y)]), ("add", [("0", 0), ("1", 0)])]
    )
    assert explain_region(later, np.tanh(X) + np.tanh(Y)) == (
        "layer-order",
        "tanh (tanh_1) of each addend of add_0; the reference applies it to the sum",
    )
    assert explain_region(earlier, np.tanh(X + Y)) == (
        "layer-order",
        "tanh of the sum add_2; the reference applies it to each addend",
    )


def test_a_gradient_without_a_factor_is_scaled_and_without_an_addend_it_is_stopped() -> None:
    counts = np.arange(2.0, 8.0).reshape(6, 1)
    divided = make_region([("div", [("gradient", X), ("counts", counts)])])
    added = make_region([("add", [("gradient", X), ("branch", Y)])])
    assert explain_with(divided, X, phase="backward") == (
        "gradient-scaled",
        "a gradient that is not divided by counts",
    )
    assert explain_with(added, X, phase="backward") == (
        "gradient-stopped",
        "the gradient through branch missing",
    )


def test_a_loop_leaves_out_one_addend_every_time() -> None:
    """As the gradient through the neighbor of every crop."""
    gradients, branches = RNG.standard_normal((2, 2, *X.shape))
    loop = make_region([
        ("add", [("first", gradients[0]), ("branch_0", branches[0])]),
        ("add", [("second", gradients[1]), ("branch_1", branches[1])]),
        ("concat", [("0", 0), ("1", 0), ("axis", 0)]),
    ], {2: (2 * len(X), *X.shape[1:])})  # fmt: skip
    assert explain_with(loop, np.concatenate(gradients), phase="backward") == (
        "gradient-stopped",
        "the gradient through branch_0 missing, and the same at 1 other place",
    )


def test_what_is_added_to_hidden_scores_may_hide_nothing() -> None:
    """A mask of ones and zeros is added as it is: hidden keys have one less than the others."""
    scores, visible = X[..., :4], np.array([1.0, 1.0, 0.0, 1.0])
    region = make_region([
        ("mul", [("hidden", 1 - visible), ("number", -10000.0)]),
        ("add", [("scores", scores), ("0", 0)]),
        ("softmax", [("last", 0)]),
    ])  # fmt: skip
    assert explain_with(region, softmax(scores + visible)) == (
        "mask-fill",
        "the fill = -1 in mul_0; the reference has -1e+04",
    )


def test_an_activation_that_the_other_side_applies_later_is_of_another_order() -> None:
    region = make_region([("silu", [("x", X)]), ("matmul", [("last", 0), ("fc.weight", WEIGHT)])])

    def find_later_op(kind: str, operand: int) -> str:
        return "silu_later" if (kind, operand) == ("silu", -1) else ""

    faulty = X @ WEIGHT.T
    assert explain_with(region, faulty, find_later_op=find_later_op) == (
        "layer-order",
        "silu applied later, in silu_later; the reference has it in silu_0",
    )
    assert explain_region(region, faulty)[0] == "activation-kind"


CELL = {name: RNG.standard_normal(shape) / 2 for name, shape in {
    "x": (4, 8), "hidden": (4, 8), "memory": (4, 8), "cell.weight_ih.weight": (32, 8),
    "cell.weight_hh.weight": (32, 8), "cell.ih.bias": (32,), "cell.hh.bias": (32,),
}.items()}  # fmt: skip


def compute_cell(**changes: AnyArray) -> AnyArray:
    arrays = {**CELL, **changes}
    return make_region([("lstm", list(arrays.items()))], {0: (4, 8)}).steps[0].output


@pytest.mark.parametrize(("names", "sentence"), [
    (("hidden", "memory"),
     "an initial state of zeros in lstm_0 (lstm); the reference has hidden and memory"),
    (("hidden",), "an initial hidden state of zeros in lstm_0 (lstm); the reference has hidden"),
    (("memory",), "an initial cell state of zeros in lstm_0 (lstm); the reference has memory"),
])  # fmt: skip
def test_first_states_of_a_cell_are_zeros(names: tuple[str, ...], sentence: str) -> None:
    region = make_region([("lstm", list(CELL.items())), ("tanh", [("last", 0)])], {0: (4, 8)})
    zeros = {name: np.zeros_like(CELL[name]) for name in names}
    faulty = np.tanh(compute_cell(**zeros))
    assert explain_region(region, faulty) == ("hidden-state-reset", sentence)


def test_two_norms_have_the_weights_of_each_other() -> None:
    """With the weights of one of them in both, the value is neither side's."""
    weights = {f"{norm}.{name}": RNG.standard_normal(8) for norm in "ab" for name in _AFFINE}

    def build(first: str, second: str) -> Region:
        norms = [
            ("layer_norm", [("x", array), *((key, weights[key]) for key in keys), ("eps", 1e-5)])
            for array, norm in ((X, first), (Y, second))
            for keys in [[f"{norm}.{name}" for name in _AFFINE]]
        ]
        return make_region([*norms, ("add", [("0", 0), ("1", 0)])])

    assert explain_region(build("a", "b"), build("b", "a").steps[-1].output) == (
        "weight-swapped",
        "weight, bias of a and of b exchanged",
    )


def test_a_first_state_that_another_step_reads_as_well_is_zeros_there_too() -> None:
    """As attention that reads the state of a decoder."""
    region = make_region([
        ("lstm", list(CELL.items())),
        ("tanh", [("hidden", CELL["hidden"])]),
        ("add", [("0", 0), ("1", 0)]),
    ], {0: (4, 8)})  # fmt: skip
    sentence = "an initial hidden state of zeros in lstm_0 (lstm); the reference has hidden"
    faulty = compute_cell(hidden=np.zeros((4, 8)))
    assert explain_region(region, faulty) == ("hidden-state-reset", sentence)
    also_read = faulty + np.tanh(CELL["hidden"])
    assert explain_region(region, also_read) == ("hidden-state-reset", sentence)


def test_the_state_of_an_earlier_call_may_be_reset_too() -> None:
    """The other side does not carry it from call to call."""
    calls = [
        ("lstm", list(CELL.items())),
        ("lstm", [("last", 0) if name == "hidden" else (name, CELL[name]) for name in CELL]),
    ]
    region = make_region(calls, {0: (4, 8), 1: (4, 8)})
    assert explain_region(region, compute_cell(hidden=np.zeros((4, 8)))) == (
        "hidden-state-reset",
        "an initial hidden state of zeros in lstm_1 (lstm); the reference has last",
    )


def test_weight_and_bias_are_of_another_module() -> None:
    bias, other_bias = RNG.standard_normal((2, 8))
    other_weight = RNG.standard_normal((8, 8)) / 3
    region = make_region(
        [
            ("matmul", [("x", X), ("time.proj.weight", WEIGHT)]),
            ("add", [("last", 0), ("time.proj.bias", bias)]),
        ]
    )
    arrays = {"space.proj.weight": other_weight, "space.proj.bias": other_bias}
    parameters = [make_operand(name, array) for name, array in arrays.items()]
    output = make_region(
        [
            ("matmul", [("x", X), ("time.proj.weight", other_weight)]),
            ("add", [("last", 0), ("time.proj.bias", other_bias)]),
        ]
    ).steps[-1]
    assert explain_with(region, output.output, find_parameters=lambda _: parameters) == (
        "weight-swapped",
        "weight, bias of space.proj; the reference has those of time.proj",
    )


@pytest.mark.parametrize("cut", [np.triu, np.tril])
def test_pairs_of_a_loss_have_another_diagonal(cut: Callable[..., Floats]) -> None:
    losses = RNG.random((2, 5, 5))
    counted, own = cut(np.ones((5, 5)), 0), cut(np.ones((5, 5)), 1 if cut is np.triu else -1)
    region = make_region(
        [
            ("mul", [("losses", losses), ("pairs", own)]),
            ("sum", [("last", 0)]),
            ("div", [("last", 0), ("count", 2 * own.sum())]),
        ],
        {1: (), 2: ()},
    )
    faulty = np.asarray((losses * counted).sum() / (2 * counted.sum()))
    cause, sentence = explain_with(region, faulty)
    assert cause == "mask-shifted"
    assert "diagonal 0" in sentence.partition("; the reference counts")[0]


def test_the_batch_is_cut_elsewhere() -> None:
    image = RNG.standard_normal((2, 3, 12, 13))
    own, other = image[..., :8, :9], image[..., 2:10, 3:12]
    prediction = RNG.standard_normal(own.shape)
    regions = [
        make_region([("sub", [("prediction", prediction), ("target", target)])])
        for target in (own, other)
    ]
    given = [_give_last_input(region) for region in regions]
    assert explain_with(
        given[0], given[1].steps[-1].output, load_faulty_region=lambda: given[1]
    ) == ("batch", "the batch cut [2, 3] places later along its last axes, in sub_0")


def _give_last_input(region: Region) -> Region:
    """Return the region whose last input has no partner: no op computed it."""
    (step,) = region.steps
    *inputs, last = step.inputs
    return replace(region, steps=(replace(step, inputs=(*inputs, replace(last, agrees=False))),))


def test_a_bias_in_reverse_order_is_an_order_of_channels() -> None:
    image, kernel = RNG.standard_normal((2, 3, 5, 5)), RNG.standard_normal((3, 3, 1, 1))
    bias = RNG.standard_normal(3)
    region, other = (
        make_region([("convolution", [("x", image), ("net.weight", kernel), ("net.bias", array)])])
        for array in (bias, bias[::-1])
    )
    assert explain_region(region, other.steps[-1].output) == (
        "channel-order",
        "the channels of net.bias in reverse order",
    )


def test_a_factor_whose_absence_leaves_no_gradient_is_none() -> None:
    """What is equal along a row is lost where the mean of the row is subtracted."""
    gradient = np.repeat(RNG.standard_normal((2, 6, 1)), 8, axis=2)
    region = make_region(
        [
            ("mul", [("gradient", gradient), ("values", Y)]),
            ("mean", [("last", 0), ("axis", -1)]),
            ("sub", [("0", 0), ("last", 0)]),
            ("add", [("last", 0), ("other", Z)]),
        ],
        {1: (2, 6, 1)},
    )
    kinds = tuple(step.kind for step in region.steps)
    cause, sentence = explain_with(region, Z, phase="backward", kinds=kinds, faulty_kinds=("add",))
    assert cause == "gradient-stopped"
    assert "not multiplied by" not in sentence


def test_without_the_mask_that_is_subtracted_from_one_nothing_is_masked() -> None:
    starts = (np.arange(8) % 3 == 0).astype(float)[:, None]
    actions = RNG.standard_normal((8, 3))
    region = make_region([
        ("sub", [("one", 1.0), ("starts", starts)]),
        ("mul", [("actions", actions), ("0", 0)]),
    ], {0: (8, 1)})  # fmt: skip
    name, text = explain_region(region, actions)
    assert name == "mask-missing"
    assert text.startswith("no mask")


def test_a_mask_that_both_sides_compute_takes_the_place_of_another_one() -> None:
    """A comparison with lengths is no noise if it agrees. One side masks what the other keeps."""
    scores = RNG.standard_normal((4, 5, 5))
    lengths, other_lengths = np.array([[3, 5, 4, 2], [5, 2, 3, 4]])[..., None, None]
    own, is_kept = np.arange(5) >= lengths, np.arange(5) < other_lengths
    region = make_region([
        ("masked_fill", [("scores", scores), ("own_mask", own), ("fill", -1e9)]),
        ("softmax", [("last", 0)]),
    ])  # fmt: skip
    step = region.steps[0]
    mask = replace(step.inputs[1], producer_kind="lt")
    step = replace(step, inputs=(step.inputs[0], mask, *step.inputs[2:]))
    region = replace(region, steps=(step, *region.steps[1:]))
    operand = make_operand("is_kept", is_kept, kind="lt")
    assert explain_with(
        region, softmax(np.where(is_kept, scores, -1e9)), faulty_operands=(operand,)
    ) == ("mask-kind", "another mask (is_kept), of 6 of 20 elements; the reference masks 6")
