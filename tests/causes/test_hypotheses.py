"""Each hypothesis on arrays: it explains its own fault, with the right figures, and nothing else does so better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.causes.cause_search import find_causes
from dumpdiff.model.arrays import AnyArray
from dumpdiff.operators import Call
from dumpdiff.operators.activations import ACTIVATIONS
from dumpdiff.operators.attention import attention, make_causal_mask
from dumpdiff.operators.linear import linear
from dumpdiff.operators.losses import cross_entropy, compute_token_losses
from dumpdiff.operators.norms import layer_norm, rms_norm
from dumpdiff.operators.rotary import make_rotary_tables
from dumpdiff.operators.softmax import softmax

from .fault_cases import make_fault_case, explain_fault_case

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, 6, 16)), RNG.standard_normal((2, 6, 16))
GAMMA, BETA = 1 + 0.1 * RNG.standard_normal(16), RNG.standard_normal(16)
WEIGHT = RNG.standard_normal((16, 16)) / 4
HEADS = [RNG.standard_normal((2, 4, 12, 8)) for _ in range(3)]
LOGITS, LABELS = RNG.standard_normal((24, 50)), RNG.integers(0, 50, 24)


def first(
    departing: AnyArray, plain: AnyArray, operands: dict[str, AnyArray], **more: object
) -> str:
    causes = explain_fault_case(make_fault_case(departing, plain, operands, **more))
    return causes[0].name if causes else ""


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1e-1])
def test_epsilon_is_solved_for(eps: float) -> None:
    causes = explain_fault_case(
        make_fault_case(rms_norm(X, GAMMA, eps), rms_norm(X, GAMMA, 1e-5), {"x": X, "norm.weight": GAMMA})
    )
    assert causes[0].name == "epsilon"
    assert causes[0].parameters["epsilon"] == pytest.approx(eps, rel=1e-2)


def test_the_other_norm() -> None:
    plain, other = rms_norm(X, GAMMA, 1e-5), layer_norm(X, GAMMA, 0.0, 1e-5)
    assert first(other, plain, {"x": X, "norm.weight": GAMMA}) == "norm-kind"


@pytest.mark.parametrize(("ours", "theirs", "cause"), [
    ("gelu (erf)", "gelu (tanh)", "gelu-variant"),
    ("relu", "silu", "activation-kind"),
    ("gelu (tanh)", "silu", "activation-kind"),
])  # fmt: skip
def test_another_activation(ours: str, theirs: str, cause: str) -> None:
    assert first(ACTIVATIONS[ours](X), ACTIVATIONS[theirs](X), {"x": X}) == cause


def test_gate_and_up_changed_round() -> None:
    silu = ACTIVATIONS["silu"]
    assert first(silu(Y) * X, silu(X) * Y, {"gate": X, "up": Y}) == "gate-up-swapped"


def test_attention_as_a_whole() -> None:
    q, k, v = HEADS
    operands = {"q": q, "k": k, "v": v}
    hidden = make_causal_mask(12, 12)
    plain = attention(q, k, v, 8**-0.5, hidden)
    assert first(attention(q, k, v, 8**-0.5), plain, operands) == "mask-missing"
    assert first(attention(q, k, v, 8**-0.5, make_causal_mask(12, 12, 2)), plain, operands) == "mask-shifted"
    causes = explain_fault_case(make_fault_case(attention(q, k, v, 0.125, hidden), plain, operands))
    assert causes[0].name == "scale"
    assert causes[0].parameters["scale"] == pytest.approx(0.125, rel=1e-4)


def test_masked_scores_and_the_mask_itself() -> None:
    scores = RNG.standard_normal((2, 4, 12, 12))
    mask = np.where(make_causal_mask(12, 12), -1e9, 0.0)
    shifted = np.where(make_causal_mask(12, 12, 2), -1e9, 0.0)
    assert first(scores, scores + mask, {"scores": scores}) == "mask-missing"
    assert first(scores + shifted, scores + mask, {"scores": scores}) == "mask-shifted"
    assert first(shifted, mask, {}, kind="parameter") == "mask-shifted"
    assert first(np.zeros((12, 12)), mask, {}, kind="parameter") in ("mask-missing", "zeroed")


def test_softmax_along_another_axis() -> None:
    scores = RNG.standard_normal((2, 4, 12, 12))
    assert first(softmax(scores, -2), softmax(scores), {"scores": scores}) == "softmax-axis"


def test_rotary_tables() -> None:
    plain = make_rotary_tables(np.arange(16), 8, 1e4)[0]
    causes = explain_fault_case(make_fault_case(make_rotary_tables(np.arange(16), 8, 5e5)[0], plain, {}, kind="parameter"))
    assert causes[0].name == "rope-theta"
    assert causes[0].parameters["theta"] == pytest.approx(5e5, rel=1e-3)
    assert (
        first(make_rotary_tables(np.arange(1, 17), 8, 1e4)[0], plain, {}, kind="parameter") == "position-offset"
    )
    assert (
        first(make_rotary_tables(np.arange(16), 8, 1e4, interleaved=True)[0], plain, {}, kind="parameter")
        == "rope-layout"
    )


def test_biases() -> None:
    plain = linear(X, WEIGHT, BETA)
    operands = {"x": X, "o.weight": WEIGHT, "o.bias": BETA}
    assert first(linear(X, WEIGHT), plain, operands) == "bias-missing"
    assert first(plain + BETA, plain, operands) == "bias-doubled"
    assert first(linear(X, WEIGHT.T, BETA), plain, operands) == "weight-transposed"


def projected(biases: int) -> dict[str, AnyArray]:
    """Tokens, the weight and bias of the queries, and queries of 4 heads to which the bias is added so often."""
    random = np.random.default_rng(8)
    x, weight, bias = (random.standard_normal(shape) / 6 for shape in ((2, 12, 32), (32, 32), 32))
    q = linear(x, weight, biases * bias).reshape(2, 12, 4, 8).swapaxes(1, 2)
    return {"x": x, "q.weight": weight, "q.bias": bias, "q": q}


@pytest.mark.parametrize(("target", "reference", "side", "cause"), [
    (1, 0, "reference", "bias-missing"),
    (0, 1, "target", "bias-missing"),
    (1, 2, "reference", "bias-doubled"),
    (2, 1, "target", "bias-doubled"),
])  # fmt: skip
@pytest.mark.parametrize(
    "after", [False, True], ids=["in the product", "in the scores made from it"]
)
def test_which_side_has_not_one_bias_is_seen_from_its_own_product(
    target: int, reference: int, side: str, cause: str, after: bool
) -> None:
    both = [projected(biases) for biases in (target, reference)]
    keys = HEADS[1].swapaxes(2, 3)
    calls = [Call("matmul", (operands["q"], keys), {}, (2, 4, 12, 12)) for operands in both]
    values = [
        call.inputs[0] @ keys if after else call.inputs[0].swapaxes(1, 2).reshape(2, 12, 32)
        for call in calls
    ]
    seen = [
        replace(
            make_fault_case(
                values[ours], values[theirs], both[theirs], call=calls[theirs] if after else None
            ),
            departing_role=("target", "reference")[ours],
        )
        for ours, theirs in ((0, 1), (1, 0))
    ]
    role, found = find_causes(seen, HYPOTHESES)
    assert (role, found[0].name) == (side, cause)


@pytest.mark.parametrize(("change", "cause"), [
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
def test_parameters(change: object, cause: str) -> None:
    others = {"q.weight": WEIGHT, "k.weight": LOGITS[:16, :16]}
    assert first(change(WEIGHT), WEIGHT, {}, kind="parameter", parameters=others) == cause


def test_residual_branches_and_dropout() -> None:
    assert first(X + 0.9 * Y, X + Y, {"x": X, "y": Y}) == "residual-scale"
    kept = RNG.random(Y.shape) < 0.9
    assert first(X + Y * kept / 0.9, X + Y, {"x": X, "y": Y}) == "dropout"


def test_losses() -> None:
    operands = {"logits": LOGITS, "labels": LABELS}
    mean, each = cross_entropy(LOGITS, LABELS), compute_token_losses(LOGITS, LABELS)
    moved = compute_token_losses(LOGITS, np.roll(LABELS, 1))
    assert first(each.sum(), mean, operands, loss_near=True, scope="loss") == "loss-reduction"
    assert first(mean + np.log(2), mean, operands, loss_near=True, scope="loss") == "loss-reduction"
    assert first(2 * mean, mean, operands, loss_near=True, scope="loss") == "constant-factor"
    assert first(moved, each, operands, loss_near=True, scope="loss") == "label-shift"


def test_gradients() -> None:
    assert first(2 * X, X, {}, phase="backward") == "gradient-scaled"
    assert first(np.zeros_like(X), X, {}, phase="backward") == "gradient-stopped"
    assert first(X, X + Y, {"one": X, "other": Y}, phase="backward") == "gradient-stopped"


def test_router_weights() -> None:
    weights = np.sort(softmax(RNG.standard_normal((24, 8))), axis=-1)[:, -2:]
    shares = weights / weights.sum(-1, keepdims=True)
    assert first(weights, shares, {"topk": weights}, scope="layers.1.mlp") == "router-normalisation"


@pytest.mark.parametrize(("change", "cause"), [
    ({"eps": 1e-3}, "optimizer-epsilon"),
    ({"decay": 0.1}, "weight-decay"),
    ({"corrected": False}, "bias-correction"),
    ({"learning_rate": 3e-3}, "learning-rate"),
])  # fmt: skip
def test_the_optimizer_step(change: dict[str, float], cause: str) -> None:
    from dumpdiff.causes.hypotheses.optimizers import Rule

    rule, gradient = Rule(1e-3), 0.01 * X
    after, other = rule.step(Y, gradient), replace(rule, **change).step(Y, gradient)
    assert first(other, after, {"weight": Y, "gradient": gradient}, phase="optimizer") == cause


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_what_nothing_explains_is_not_guessed(phase: str) -> None:
    """An unrelated difference, large or small, and one of three operands that have nothing to do with it."""
    noise = RNG.standard_normal(X.shape)
    for size in (1e-4, 1e-2, 1.0):
        assert first(X + size * noise, X, {"y": Y, "w": WEIGHT, "b": BETA}, phase=phase) == ""


def test_an_agreeing_pair_is_not_explained_by_a_change() -> None:
    """The limit never exceeds a tenth of the error: noise is not explained by noise."""
    seen = make_fault_case(X + 1e-6 * Y, X, {"y": Y})
    assert seen.limit <= 0.1 * seen.error
