"""Each hypothesis on arrays: it explains its own fault, with the right parameters, and is best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.fault_case import FaultCase
from dumpdiff.causes.hypotheses import HYPOTHESES, LAST_HYPOTHESES, optimizers
from dumpdiff.causes.scalings import Scaling
from dumpdiff.model.arrays import AnyArray, Floats
from dumpdiff.operators import Call
from dumpdiff.operators.activations import ACTIVATIONS
from dumpdiff.operators.attention import attention, make_causal_mask
from dumpdiff.operators.linear import linear
from dumpdiff.operators.losses import compute_token_losses, cross_entropy
from dumpdiff.operators.norms import layer_norm, rms_norm
from dumpdiff.operators.rotary import make_rotary_tables
from dumpdiff.operators.softmax import softmax

from .fault_cases import explain_fault_case, make_fault_case, make_operand

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, 6, 16)), RNG.standard_normal((2, 6, 16))
GAMMA, BETA = 1 + 0.1 * RNG.standard_normal(16), RNG.standard_normal(16)
WEIGHT = RNG.standard_normal((16, 16)) / 4
HEADS = [RNG.standard_normal((2, 4, 12, 8)) for _ in range(3)]
LOGITS, LABELS = RNG.standard_normal((24, 50)), RNG.integers(0, 50, 24)


def find_first_cause(
    faulty: AnyArray, faithful: AnyArray, operands: dict[str, AnyArray], **options: object
) -> str:
    """Return the name of the best cause, '' if there is none."""
    causes = explain_fault_case(make_fault_case(faulty, faithful, operands, **options))
    return causes[0].name if causes else ""


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1e-1])
def test_epsilon_is_solved_for(eps: float) -> None:
    faulty, faithful = rms_norm(X, GAMMA, eps), rms_norm(X, GAMMA, 1e-5)
    causes = explain_fault_case(make_fault_case(faulty, faithful, {"x": X, "norm.weight": GAMMA}))
    assert causes[0].name == "epsilon"
    assert causes[0].parameters["epsilon"] == pytest.approx(eps, rel=1e-2)


def test_the_other_norm_is_recognized() -> None:
    faulty, faithful = layer_norm(X, GAMMA, 0.0, 1e-5), rms_norm(X, GAMMA, 1e-5)
    assert find_first_cause(faulty, faithful, {"x": X, "norm.weight": GAMMA}) == "norm-kind"


@pytest.mark.parametrize(("faulty", "faithful", "cause_name"), [
    ("gelu (erf)", "gelu (tanh)", "gelu-variant"),
    ("relu", "silu", "activation-kind"),
    ("gelu (tanh)", "silu", "activation-kind"),
])  # fmt: skip
def test_another_activation_is_recognized(faulty: str, faithful: str, cause_name: str) -> None:
    arrays = ACTIVATIONS[faulty](X), ACTIVATIONS[faithful](X)
    assert find_first_cause(*arrays, {"x": X}) == cause_name


def test_two_forms_of_gelu_are_not_exchanged_parts() -> None:
    """Both are calls of one kind: both sides have such a call, and it shows nothing."""
    erf, tanh = ACTIVATIONS["gelu (erf)"](X), ACTIVATIONS["gelu (tanh)"](X)
    case = make_fault_case(erf, tanh, {"x": X})
    case = replace(case, kinds=("gelu",), faulty_kinds=("gelu",))
    assert explain_fault_case(case)[0].name == "gelu-variant"


def test_swapped_gate_and_up_are_recognized() -> None:
    silu = ACTIVATIONS["silu"]
    faulty, faithful = silu(Y) * X, silu(X) * Y
    assert find_first_cause(faulty, faithful, {"gate": X, "up": Y}) == "gate-up-swapped"


def test_whole_attention_is_explained() -> None:
    q, k, v = HEADS
    operands = {"q": q, "k": k, "v": v}
    scale, hidden = 8**-0.5, make_causal_mask(12, 12)
    faithful = attention(q, k, v, scale, hidden)
    unmasked = attention(q, k, v, scale)
    assert find_first_cause(unmasked, faithful, operands) == "mask-missing"
    shifted = attention(q, k, v, scale, make_causal_mask(12, 12, 2))
    assert find_first_cause(shifted, faithful, operands) == "mask-shifted"
    rescaled = attention(q, k, v, 0.125, hidden)
    causes = explain_fault_case(make_fault_case(rescaled, faithful, operands))
    assert causes[0].name == "scale"
    assert causes[0].parameters["scale"] == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize("is_cut_by_head", [False, True])
def test_rows_of_one_projection_that_are_cut_otherwise_are_recognized(is_cut_by_head: bool) -> None:
    rows = np.stack(HEADS).transpose(1, 3, 0, 2, 4)  # batch, tokens, parts, heads, size
    batch, tokens, parts, heads, size = rows.shape
    if is_cut_by_head:
        cut = rows.reshape(batch, tokens, heads, parts, size).transpose(3, 0, 2, 1, 4)
    else:
        cut = rows.swapaxes(2, 3).reshape(rows.shape).transpose(2, 0, 3, 1, 4)
    faulty, faithful = attention(*cut, 8**-0.5), attention(*HEADS, 8**-0.5)
    operands = dict(zip(("q", "k", "v"), HEADS, strict=True))
    (cause, *_) = explain_fault_case(make_fault_case(faulty, faithful, operands))
    assert cause.name == "split-order"
    words = ("head by head", "part by part")
    cut_word, row_word = words if is_cut_by_head else words[::-1]
    assert f"queries, keys and values cut {cut_word} from rows that are {row_word}" in cause.text


def test_masked_scores_and_the_mask_itself_are_explained() -> None:
    scores = RNG.standard_normal((2, 4, 12, 12))
    mask = np.where(make_causal_mask(12, 12), -1e9, 0.0)
    shifted = np.where(make_causal_mask(12, 12, 2), -1e9, 0.0)
    operands = {"scores": scores}
    assert find_first_cause(scores, scores + mask, operands) == "mask-missing"
    assert find_first_cause(scores + shifted, scores + mask, operands) == "mask-shifted"
    assert find_first_cause(shifted, mask, {}, kind="parameter") == "mask-shifted"
    no_mask = np.zeros((12, 12))
    assert find_first_cause(no_mask, mask, {}, kind="parameter") in ("mask-missing", "zeroed")


@pytest.mark.parametrize("is_seen", [True, False])
def test_other_keys_that_flags_hide_behind_a_causal_mask_are_listed(is_seen: bool) -> None:
    keys, other_keys = np.ones((2, 2, 6), bool)
    keys[1, :3], other_keys[1, ::2] = False, False
    causal = np.tri(6, dtype=bool)
    faithful, faulty = ((causal & each[:, None, None]) == is_seen for each in (keys, other_keys))
    case = make_fault_case(faulty, faithful, {"scores": RNG.standard_normal((2, 4, 6, 6))})
    (cause, *_) = explain_fault_case(case)
    assert cause.name == "mask-kind"
    assert "hides the keys [0 2 4] of a sequence; the reference hides [0 1 2]" in cause.text


def test_softmax_along_another_axis_is_recognized() -> None:
    scores = RNG.standard_normal((2, 4, 12, 12))
    faulty, faithful = softmax(scores, -2), softmax(scores)
    assert find_first_cause(faulty, faithful, {"scores": scores}) == "softmax-axis"


@pytest.mark.parametrize("name", ["keys", "values", "queries"])
def test_other_tensors_of_attention_are_named_last(name: str) -> None:
    names = ("queries", "keys", "values")
    arrays = dict(zip(names, HEADS, strict=True))
    others = {**arrays, name: HEADS[names.index(name)][..., ::-1, :].copy()}
    faulty, faithful = (attention(*each.values(), 8**-0.5) for each in (others, arrays))
    case = make_fault_case(faulty, faithful, arrays)
    case = replace(case, faulty_operands=(make_operand("other", others[name], kind="add"),))
    search = search_causes([case], LAST_HYPOTHESES)
    assert search.causes[0].name == "input-source"
    assert f"{name} taken from other (add)" in search.causes[0].text


@pytest.mark.parametrize(("factor", "words"), [(1 / 255, "times 1/255"), (2.5, "times 2.5")])
def test_scaled_inputs_are_recognized(factor: float, words: str) -> None:
    images = RNG.standard_normal((2, 3, 8, 8))
    case = make_fault_case(factor * images, images, {}, kind="input")
    assert words in explain_fault_case(case)[0].text


def test_channels_scaled_by_other_means_and_deviations_are_recognized() -> None:
    images, shape = RNG.standard_normal((2, 3, 8, 8)), (1, 3, 1, 1)
    factors, shifts = np.array([2.0, 3.0, 4.0]), np.array([0.5, -1.0, 0.25])
    case = make_fault_case(
        images * factors.reshape(shape) + shifts.reshape(shape), images, {}, kind="input"
    )
    (cause, *_) = explain_fault_case(case)
    assert cause.name == "batch"
    assert "times [2, 3, 4], plus [0.5, -1, 0.25]" in cause.text


def test_another_batch_of_images_is_no_scaled_one() -> None:
    images, others = RNG.standard_normal((2, 2, 3, 8, 8))
    assert find_first_cause(others, images, {}, kind="input") == ""


def test_a_table_of_sines_with_the_other_sign_turns_the_other_way() -> None:
    sines = make_rotary_tables(np.arange(16), 8, 1e4)[1]
    assert find_first_cause(-sines, sines, {}) == "rope-direction"


def test_a_factor_of_sines_with_the_other_sign_turns_the_other_way() -> None:
    """One side negates what it multiplies by the sines, and not the sines."""
    sines = make_rotary_tables(np.arange(6), 16, 1e4)[1]
    case = make_fault_case(-X, X, {}, scope="block")
    by_sines = [("mul", [make_operand("sines", sines)])]
    by_others = [("mul", [make_operand("y", Y)])]
    turned = replace(case, load_consumers=lambda: by_sines)
    scaled = replace(case, load_consumers=lambda: by_others)
    assert explain_fault_case(turned)[0].name == "rope-direction"
    assert "a rotation in the other direction" in explain_fault_case(turned)[0].text
    assert explain_fault_case(scaled)[0].name == "constant-factor"


@pytest.mark.parametrize(("number", "own_number", "sentence"), [
    (1.5, np.exp(1.5), "a factor of 1.5 (Mul-op1), without its exponential; "
                       "the reference has 4.48169, its exponential (mul.0)"),
    (np.exp(1.5), 1.5, "a factor of 4.48169 (Mul-op1); "
                       "the reference has 1.5, of which that is the exponential (mul.0)"),
])  # fmt: skip
def test_a_factor_is_the_exponential_of_the_other_one(
    number: float, own_number: float, sentence: str
) -> None:
    case = make_fault_case(number * X, own_number * X, {"x": X}, scope="block")
    case = replace(
        case,
        faulty_scalings=(Scaling("Mul-op1", f"multiplies by {number:.6g}", number),),
        faithful_scalings=(Scaling("mul.0", f"multiplies by {own_number:.6g}", own_number),),
    )
    cause = explain_fault_case(case)[0]
    assert cause.name == "missing-step"
    assert sentence in cause.text


def test_rotary_tables_are_explained() -> None:
    faithful = make_rotary_tables(np.arange(16), 8, 1e4)[0]
    other_base = make_rotary_tables(np.arange(16), 8, 5e5)[0]
    causes = explain_fault_case(make_fault_case(other_base, faithful, {}, kind="parameter"))
    assert causes[0].name == "rope-theta"
    assert causes[0].parameters["theta"] == pytest.approx(5e5, rel=1e-3)
    shifted = make_rotary_tables(np.arange(1, 17), 8, 1e4)[0]
    assert find_first_cause(shifted, faithful, {}, kind="parameter") == "position-offset"
    interleaved = make_rotary_tables(np.arange(16), 8, 1e4, interleaved=True)[0]
    assert find_first_cause(interleaved, faithful, {}, kind="parameter") == "rope-layout"


@pytest.mark.parametrize("n_copies", [1, 2])
def test_angles_of_another_base_are_explained_before_their_cosines(n_copies: int) -> None:
    def make_angles(base: float) -> Floats:
        return np.outer(np.arange(8), np.tile(base ** (-np.arange(4) / 4), n_copies))

    case = make_fault_case(
        make_angles(500.0), make_angles(1e4), {}, consumer_kinds=frozenset({"cos"})
    )
    cause = explain_fault_case(case)[0]
    assert cause.name == "rope-theta"
    assert "rotary base 500; the reference has 10000" in cause.text


def test_a_table_of_positions_that_one_side_shifts() -> None:
    table = X[:1].astype(np.float32).astype(np.float64)
    case = make_fault_case(np.roll(table, 1, axis=1), table, {})
    add = ("add", ())
    table_case = replace(
        case,
        find_parameters=lambda _: [make_operand("positions.weight", table)],
        load_consumers=lambda: [add],
    )
    cause = explain_fault_case(table_case)[0]
    assert (cause.name, cause.parameters["offset"]) == ("position-offset", -1)
    assert "positions shifted by -1, cyclically" in cause.text


def test_an_epsilon_of_two_numbers_is_the_recorded_one() -> None:
    mean = np.array([[0.5], [0.7]])
    case = make_fault_case(
        mean + 0.1, mean + 1e-6, {"mean": mean}, consumer_kinds=frozenset({"div"}), numbers=(1e-6,)
    )
    cause = explain_fault_case(replace(case, faulty_numbers=(0.1,)))[0]
    assert cause.name == "epsilon"
    assert "epsilon = 0.1; the reference uses 1e-06" in cause.text


def test_a_number_that_only_one_side_adds_is_no_epsilon() -> None:
    mean = np.array([[0.5], [0.7]])
    rounded_mean = mean * (1 + 2e-7)
    case = make_fault_case(
        mean + 0.05, rounded_mean, {"mean": mean}, consumer_kinds=frozenset({"div"})
    )
    cause = explain_fault_case(case)[0]
    assert cause.name == "constant-offset"
    assert "a sum with 0.05; the reference adds 0" in cause.text


def test_one_number_that_is_zero_has_no_cause() -> None:
    one_number = make_fault_case(np.zeros(()), np.array(0.7), {})
    three_numbers = make_fault_case(np.zeros(3), np.array([0.7, 0.1, 0.2]), {})
    assert not search_causes([one_number], LAST_HYPOTHESES).causes
    assert search_causes([three_numbers], LAST_HYPOTHESES).causes[0].name == "zeroed"


@pytest.mark.parametrize(("factor", "cause"), [(-1.0, "decay-sign"), (-5.0, "constant-factor")])
def test_factor_of_a_rate_is_no_branch(factor: float, cause: str) -> None:
    rates = -np.exp(RNG.standard_normal(8))
    kinds = frozenset({"mul", "exp", "add"})
    options = {"consumer_kinds": kinds, "scope": "layers.1.mixer"}
    assert find_first_cause(factor * rates, rates, {}, **options) == cause


def test_kernel_of_one_axis_is_flipped() -> None:
    kernel = RNG.standard_normal((6, 1, 4))
    flipped = np.flip(kernel, 2)
    kinds = frozenset({"convolution", "sigmoid"})
    options = {"kind": "parameter", "consumer_kinds": kinds}
    assert find_first_cause(flipped, kernel, {}, **options) == "kernel-flipped"


def test_biases_and_transposed_weights_are_recognized() -> None:
    faithful = linear(X, WEIGHT, BETA)
    operands = {"x": X, "o.weight": WEIGHT, "o.bias": BETA}
    assert find_first_cause(linear(X, WEIGHT), faithful, operands) == "bias-missing"
    assert find_first_cause(faithful + BETA, faithful, operands) == "bias-doubled"
    assert find_first_cause(linear(X, WEIGHT.T, BETA), faithful, operands) == "weight-transposed"


def project_queries(n_biases: int) -> dict[str, AnyArray]:
    """Return tokens, weight, bias and queries of 4 heads with the bias added ``n_biases`` times."""
    random = np.random.default_rng(8)
    x, weight, bias = (random.standard_normal(shape) / 6 for shape in ((2, 12, 32), (32, 32), 32))
    q = linear(x, weight, n_biases * bias).reshape(2, 12, 4, 8).swapaxes(1, 2)
    return {"x": x, "q.weight": weight, "q.bias": bias, "q": q}


@pytest.mark.parametrize(("n_target", "n_reference", "side", "cause_name"), [
    (1, 0, "reference", "bias-missing"),
    (0, 1, "target", "bias-missing"),
    (1, 2, "reference", "bias-doubled"),
    (2, 1, "target", "bias-doubled"),
])  # fmt: skip
@pytest.mark.parametrize("in_scores", [False, True], ids=["in the product", "in the scores"])
def test_the_side_without_exactly_one_bias_is_faulty(
    n_target: int, n_reference: int, side: str, cause_name: str, in_scores: bool
) -> None:
    operands = [project_queries(n_biases) for n_biases in (n_target, n_reference)]
    keys = HEADS[1].swapaxes(2, 3)
    calls = [Call("matmul", (arrays["q"], keys), {}, (2, 4, 12, 12)) for arrays in operands]
    if in_scores:
        values = [call.inputs[0] @ keys for call in calls]
    else:
        values = [call.inputs[0].swapaxes(1, 2).reshape(2, 12, 32) for call in calls]

    def make_case(faulty: int, faithful: int) -> FaultCase:
        call = calls[faithful] if in_scores else None
        case = make_fault_case(values[faulty], values[faithful], operands[faithful], call=call)
        return replace(case, faulty_side=("target", "reference")[faulty])

    search = search_causes([make_case(0, 1), make_case(1, 0)], HYPOTHESES)
    assert (search.faulty_side, search.causes[0].name) == (side, cause_name)


@pytest.mark.parametrize(("change", "cause_name"), [
    (lambda w: 1.01 * w, "weight-scaled"),
    (lambda w: w.T, "weight-transposed"),
    (lambda w: np.zeros_like(w), "zeroed"),
    (lambda w: np.ones_like(w), "zeroed"),
    (lambda w: np.roll(w, 1, axis=0), "row-shift"),
    (lambda w: w.reshape(4, 4, 16)[[1, 0, 2, 3]].reshape(w.shape), "heads-permuted"),
    (lambda w: w.astype(np.float16).astype(np.float64), "low-precision"),
    (lambda w: np.where(np.arange(16)[:, None] == 3, 0.5 * w, w), "weight-rows"),
    (lambda w: LOGITS[:16, :16], "weight-swapped"),
])  # fmt: skip
def test_changed_parameters_are_explained(
    change: Callable[[AnyArray], AnyArray], cause_name: str
) -> None:
    parameters = {"q.weight": WEIGHT, "k.weight": LOGITS[:16, :16]}
    faulty = change(WEIGHT)
    cause = find_first_cause(faulty, WEIGHT, {}, kind="parameter", parameters=parameters)
    assert cause == cause_name


def test_transposed_blocks_of_gates_are_named() -> None:
    weight = np.random.default_rng(6).standard_normal((24, 6))
    faulty = weight.reshape(4, 6, 6).swapaxes(1, 2).reshape(24, 6)
    for predicted, faithful in ((faulty, weight), (faulty.T, weight.T)):
        cause = explain_fault_case(make_fault_case(predicted, faithful, {}, kind="parameter"))[0]
        assert cause.name == "weight-transposed"
        assert "each of 4 blocks of 6 " in cause.text


def test_weights_of_heads_read_as_if_their_axes_were_exchanged_are_named() -> None:
    weight = np.random.default_rng(6).standard_normal((24, 8))
    faulty = weight.reshape(4, 6, 8).swapaxes(1, 2).reshape(24, 8)
    cause = explain_fault_case(make_fault_case(faulty, weight, {}, kind="parameter"))[0]
    assert cause.name == "weight-transposed"
    assert "each of 4 blocks of 6 rows of the weight transposed" in cause.text


def test_residual_branches_and_dropout_are_recognized() -> None:
    assert find_first_cause(X + 0.9 * Y, X + Y, {"x": X, "y": Y}) == "residual-scale"
    is_kept = RNG.random(Y.shape) < 0.9
    assert find_first_cause(X + Y * is_kept / 0.9, X + Y, {"x": X, "y": Y}) == "dropout"


def test_losses_are_explained() -> None:
    operands = {"logits": LOGITS, "labels": LABELS}
    mean, losses = cross_entropy(LOGITS, LABELS), compute_token_losses(LOGITS, LABELS)
    shifted_losses = compute_token_losses(LOGITS, np.roll(LABELS, 1))

    def find_loss_cause(faulty: AnyArray, faithful: AnyArray) -> str:
        return find_first_cause(faulty, faithful, operands, is_near_loss=True, scope="loss")

    assert find_loss_cause(losses.sum(), mean) == "loss-reduction"
    assert find_loss_cause(mean + np.log(2), mean) == "loss-reduction"
    assert find_loss_cause(2 * mean, mean) == "constant-factor"
    assert find_loss_cause(shifted_losses, losses) == "label-shift"


def test_gradients_are_explained() -> None:
    assert find_first_cause(2 * X, X, {}, phase="backward") == "gradient-scaled"
    assert find_first_cause(np.zeros_like(X), X, {}, phase="backward") == "gradient-stopped"
    branches = {"branch": X, "other branch": Y}
    assert find_first_cause(X, X + Y, branches, phase="backward") == "gradient-stopped"


def test_router_weights_that_are_not_normalized_are_recognized() -> None:
    weights = np.sort(softmax(RNG.standard_normal((24, 8))), axis=-1)[:, -2:]
    shares = weights / weights.sum(-1, keepdims=True)
    cause = find_first_cause(weights, shares, {"topk": weights}, scope="layers.1.mlp")
    assert cause == "router-normalisation"


@pytest.mark.parametrize(("change", "cause_name"), [
    ({"eps": 1e-3}, "optimizer-epsilon"),
    ({"decay": 0.1}, "weight-decay"),
    ({"corrected": False}, "bias-correction"),
    ({"learning_rate": 3e-3}, "learning-rate"),
])  # fmt: skip
def test_one_change_of_the_optimizer_step_is_recognized(
    change: dict[str, float], cause_name: str
) -> None:
    from dumpdiff.causes.hypotheses.optimizers import Rule

    rule, gradient = Rule(1e-3), 0.01 * X
    faithful, faulty = rule.step(Y, gradient), replace(rule, **change).step(Y, gradient)
    operands = {"weight": Y, "gradient": gradient}
    assert find_first_cause(faulty, faithful, operands, phase="optimizer") == cause_name


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_an_unrelated_difference_has_no_cause(phase: str) -> None:
    """The difference is small or large, and the operands have nothing to do with it."""
    noise = RNG.standard_normal(X.shape)
    operands = {"y": Y, "w": WEIGHT, "b": BETA}
    for size in (1e-4, 1e-2, 1.0):
        assert find_first_cause(X + size * noise, X, operands, phase=phase) == ""


def test_noise_is_not_explained_by_noise() -> None:
    """The limit never exceeds a tenth of the error."""
    case = make_fault_case(X + 1e-6 * Y, X, {"y": Y})
    assert case.limit <= 0.1 * case.error


def test_an_update_with_nan_has_no_rule_and_nothing_is_printed(capfd):
    """LAPACK complains on standard output, where a program may read JSON."""
    weight = np.linspace(-1, 1, 12)
    gradient = np.linspace(0.5, 1.5, 12)
    new_weight = weight - 1e-3 * np.sign(gradient)
    assert optimizers.fit_rule(weight, gradient, new_weight) is not None
    new_weight[3] = np.nan
    assert optimizers.fit_rule(weight, gradient, new_weight) is None
    assert capfd.readouterr().out == ""


WEIGHTS, GRADIENTS = RNG.standard_normal((24, 16)), 0.01 * RNG.standard_normal((24, 16))


def explain_update(
    faulty: AnyArray, faithful: AnyArray, gradient: AnyArray = GRADIENTS
) -> tuple[str, str]:
    """Return (cause, description) of a value of an optimizer with its gradient and weight."""
    operands = {"gradient": gradient, "layers.0.weight": WEIGHTS}
    case = make_fault_case(faulty, faithful, operands, phase="optimizer", scope="layers.0")
    causes = explain_fault_case(case)
    if not causes:
        return "", ""
    description = causes[0].text.removeprefix("layers.0 behaves as ").partition("; residual")[0]
    return causes[0].name, description


@pytest.mark.parametrize(("faulty", "faithful", "cause_name", "description"), [
    # SGD: w - rate (g + decay w)
    (WEIGHTS - 0.1 * GRADIENTS, WEIGHTS - 0.05 * GRADIENTS, "learning-rate",
     "learning rate = 0.1; the reference has learning rate = 0.05"),
    (WEIGHTS - 0.1 * (GRADIENTS + 0.02 * WEIGHTS), WEIGHTS - 0.1 * (GRADIENTS + 0.01 * WEIGHTS),
     "weight-decay", "weight decay = 0.02; the reference has 0.01"),
    # the sum of gradient and decay
    (GRADIENTS + 0.02 * WEIGHTS, GRADIENTS + 0.01 * WEIGHTS, "weight-decay",
     "weight decay = 0.02; the reference has 0.01"),
    # the first moment with the decay in it
    (0.1 * (GRADIENTS + 0.02 * WEIGHTS), 0.1 * GRADIENTS, "weight-decay",
     "weight decay = 0.02; the reference has 0"),
    # only the gradient is multiplied
    (2.5 * GRADIENTS + 0.01 * WEIGHTS, GRADIENTS + 0.01 * WEIGHTS, "clip",
     "gradients 2.5 times the reference's"),
    # moments of the first step
    (
        0.01 * GRADIENTS**2,
        0.001 * GRADIENTS**2,
        "beta",
        "beta2 = 0.99; the reference has beta2 = 0.999",
    ),
    # 1 - beta in float32, off by 5e-5 of itself
    (
        float(1 - np.float32(0.99)) * GRADIENTS**2,
        float(1 - np.float32(0.999)) * GRADIENTS**2,
        "beta",
        "beta2 = 0.99; the reference has beta2 = 0.999",
    ),
    (0.05 * GRADIENTS, 0.1 * GRADIENTS, "beta", "beta1 = 0.95; the reference has beta1 = 0.9"),
    (0.5 * GRADIENTS, 0.1 * GRADIENTS, "beta", "beta1 = 0.5; the reference has beta1 = 0.9"),
    (0.0317 * GRADIENTS, 0.1 * GRADIENTS, "clip", "gradients 0.317 times the reference's"),
])  # fmt: skip
def test_one_number_of_an_update_is_solved_for(
    faulty: AnyArray, faithful: AnyArray, cause_name: str, description: str
) -> None:
    assert explain_update(faulty, faithful) == (cause_name, description)


def test_a_moment_before_its_first_update_is_no_stopped_gradient() -> None:
    assert explain_update(np.zeros_like(GRADIENTS), 0.1 * GRADIENTS + 0.3 * WEIGHTS**2) == ("", "")


@pytest.mark.parametrize(
    ("change", "cause", "description"),
    [
        (lambda k: k[:, :, ::-1, ::-1], "kernel-flipped", "the kernel flipped"),
        (lambda k: k[:, :, :, ::-1], "kernel-flipped", "the kernel flipped along its width"),
        (
            lambda k: k.swapaxes(2, 3),
            "kernel-axes",
            "the kernel with its axes 2 and 3 (height and width) exchanged",
        ),
        (
            lambda k: k.swapaxes(0, 1),
            "weight-transposed",
            "the kernel with its axes in the order (1, 0, 2, 3)",
        ),
        (
            lambda k: k.reshape(4, 3, 3, 4).transpose(0, 3, 1, 2),
            "kernel-axes",
            "the kernel read as if its axes were in the order (0, 2, 3, 1)",
        ),
    ],
)
def test_axes_of_a_kernel(
    change: Callable[[AnyArray], AnyArray], cause: str, description: str
) -> None:
    kernel = np.random.default_rng(5).standard_normal((4, 4, 3, 3))
    case = make_fault_case(np.ascontiguousarray(change(kernel)), kernel, {}, kind="parameter")
    first_cause = explain_fault_case(case)[0]
    assert first_cause.name == cause
    assert f"behaves as {description}; residual" in first_cause.text


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mask_may_begin_at_another_place(axis):
    """A library's mask of features gets the place of the first token at its end."""
    mask = np.random.default_rng(3).random((6, 7)) < 0.5
    case = make_fault_case(np.roll(mask, -1, axis), mask, {}, dtype="bool")
    cause = explain_fault_case(case)[0]
    assert cause.name == "mask-shifted"
    assert f"a mask rolled by -1 along axis {axis - 2}" in cause.text


def test_a_comparison_may_have_another_number():
    depths = np.random.default_rng(4).random((5, 6))
    calls = [Call("gt", (depths, np.array(number))) for number in (0.2, 0.5)]
    case = make_fault_case(depths > 0.5, depths > 0.2, {}, dtype="bool", call=calls[0])
    cause = explain_fault_case(replace(case, faulty_call=calls[1]))[0]
    assert (cause.name, cause.parameters) == ("argument", {"threshold": 0.5})
    assert "a comparison with 0.5; the reference compares with 0.2" in cause.text


def test_a_difference_may_be_that_of_the_other_order():
    """The estimate of a divergence is exp(b - a) - (b - a) - 1, and not symmetric."""
    a, b = np.random.default_rng(5).standard_normal((2, 5, 6))
    case = make_fault_case(b - a, a - b, {}, call=Call("sub", (a, b)))
    faulty_call = Call("sub", (b, a))
    assert explain_fault_case(replace(case, faulty_call=faulty_call))[0].name == "input-order"
