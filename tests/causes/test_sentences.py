"""The sentences of causes: each names the numbers of both sides, and the right side for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.causes.hypotheses.optimizers import Rule
from dumpdiff.causes.scalings import Scaling
from dumpdiff.model.arrays import AnyArray
from dumpdiff.operators import Call
from dumpdiff.operators.activations import ACTIVATIONS
from dumpdiff.operators.attention import attention, make_causal_mask
from dumpdiff.operators.linear import linear
from dumpdiff.operators.losses import compute_token_losses
from dumpdiff.operators.norms import layer_norm, rms_norm
from dumpdiff.operators.rotary import apply_rotary, make_rotary_tables
from dumpdiff.operators.softmax import softmax

from .fault_cases import explain_fault_case, make_fault_case, make_operand

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, 6, 16)), RNG.standard_normal((2, 6, 16))
GAMMA, BETA = 1 + 0.1 * RNG.standard_normal(16), RNG.standard_normal(16)
WEIGHT, OTHER_WEIGHT = RNG.standard_normal((16, 16)) / 4, RNG.standard_normal((16, 16)) / 4
Q, K, V = (RNG.standard_normal((2, 4, 12, 16)) for _ in range(3))
SCORES = RNG.standard_normal((2, 4, 12, 12))
IMAGE = RNG.standard_normal((4, 16, 5, 5))
LOGITS, LABELS = RNG.standard_normal((24, 50)), RNG.integers(0, 50, 24)
LOSSES = compute_token_losses(LOGITS, LABELS)
COUNTED = np.where(np.arange(24) % 4 < 3, 1.0, 0.0)
COS, SIN = make_rotary_tables(np.arange(12), 16, 1e4)
HIDDEN = make_causal_mask(12, 12)


def mask_scores(first_hidden: int) -> AnyArray:
    return np.where(make_causal_mask(12, 12, first_hidden), -1e9, SCORES)


def normalize_image(eps: float) -> AnyArray:
    centered = IMAGE - IMAGE.mean((0, 2, 3), keepdims=True)
    variance = np.mean(centered**2, (0, 2, 3), keepdims=True)
    return centered / np.sqrt(variance + eps) * GAMMA.reshape(-1, 1, 1)


def rotate_table(theta: float, first: int = 0) -> AnyArray:
    return make_rotary_tables(np.arange(first, first + 12), 16, theta)[0]


def change_row(weight: AnyArray) -> AnyArray:
    changed = weight.copy()
    changed[3] *= 0.9
    return changed


@dataclass(frozen=True)
class Example:
    """Values of a faulty and a faithful side, and what the sentence says about both."""

    faulty: AnyArray
    faithful: AnyArray
    operands: Mapping[str, AnyArray]
    sentence: str
    options: Mapping[str, object] = field(default_factory=dict)


PARAMETER = {"kind": "parameter", "parameters": {"q.weight": WEIGHT, "k.weight": OTHER_WEIGHT}}
LOSS = {"is_near_loss": True, "scope": "loss"}
BACKWARD, OPTIMIZER = {"phase": "backward"}, {"phase": "optimizer"}
BATCH, TOKENS = {"kind": "input", "dtype": "int64"}, np.arange(5, 293, 12)
RULE, GRADIENT = Rule(1e-3), 0.01 * X
STEP = {"weight": Y, "gradient": GRADIENT}

EXAMPLES = {
    "epsilon": Example(
        rms_norm(X, GAMMA, 1e-2), rms_norm(X, GAMMA, 1e-5), {"x": X, "norm.weight": GAMMA},
        "epsilon = 0.01; the reference uses 1e-05",
    ),
    "epsilon of a batch norm": Example(
        normalize_image(1e-3), normalize_image(1e-5), {"x": IMAGE, "norm.weight": GAMMA},
        "epsilon = 0.001; the reference uses 1e-05",
    ),
    "norm-kind": Example(
        layer_norm(X, GAMMA, 0.0, 1e-5), rms_norm(X, GAMMA, 1e-5), {"x": X, "norm.weight": GAMMA},
        "layer norm, epsilon 1e-05; the reference has RMS norm",
    ),
    "scale of whole attention": Example(
        attention(Q, K, V, 0.125, HIDDEN), attention(Q, K, V, 0.25, HIDDEN),
        {"q": Q, "k": K, "v": V},
        "attention scores 0.5 times the reference's (effective scale 0.125 against 0.25)",
    ),
    "scale of queries that were scaled before": Example(
        attention(Q / 4, K, V, 0.5, HIDDEN), attention(Q / 4, K, V, 1.0, HIDDEN),
        {"q": Q / 4, "k": K, "v": V},
        "attention scores 0.5 times the reference's",
    ),
    "mask-missing": Example(
        SCORES, mask_scores(1), {"scores": SCORES},
        "no mask; the reference hides from diagonal 1 on",
    ),
    "mask-shifted": Example(
        mask_scores(2), mask_scores(1), {"scores": SCORES},
        "a causal mask shifted by 1 diagonal, which hides from diagonal 2 on; the reference hides "
        "from diagonal 1 on",
    ),
    "mask that keeps the diagonals from 0 on": Example(
        np.triu(np.ones((8, 8)), 1), np.triu(np.ones((8, 8)), 0), {},
        "a causal mask shifted by 1 diagonal, which hides from diagonal 1 on; the reference hides "
        "from diagonal 0 on",
        {"kind": "constant"},
    ),
    "softmax-axis": Example(
        softmax(SCORES, -2), softmax(SCORES), {"scores": SCORES},
        "softmax along axis -2; the reference has axis -1",
    ),
    "rope-theta": Example(
        rotate_table(5e5), rotate_table(1e4), {},
        "rotary base 500000; the reference has 10000", {"kind": "constant"},
    ),
    "rope-layout": Example(
        apply_rotary(Q, COS, SIN, "interleaved"), apply_rotary(Q, COS, SIN),
        {"x": Q, "cos": COS, "sin": SIN},
        "rotary layout = interleaved; the reference has halves",
    ),
    "position-offset of a rotary table": Example(
        rotate_table(1e4, 1), rotate_table(1e4), {},
        "positions shifted by 1, from 1 on; the reference begins at 0", {"kind": "constant"},
    ),
    "position-offset of a position embedding": Example(
        np.stack([WEIGHT[2:8]] * 2), np.stack([WEIGHT[1:7]] * 2),
        {"position.weight": WEIGHT, "positions": np.stack([np.arange(1, 7)] * 2)},
        "positions shifted by 1, from 2 on; the reference begins at 1",
    ),
    "activation-kind": Example(
        ACTIVATIONS["relu"](X), ACTIVATIONS["silu"](X), {"x": X}, "relu; the reference has silu"
    ),
    "gelu-variant": Example(
        ACTIVATIONS["gelu (erf)"](X), ACTIVATIONS["gelu (tanh)"](X), {"x": X},
        "gelu (erf); the reference has gelu (tanh)",
    ),
    "bias-missing": Example(
        linear(X, WEIGHT), linear(X, WEIGHT, BETA), {"x": X, "o.weight": WEIGHT, "o.bias": BETA},
        "without its bias (o.bias)",
    ),
    "bias-doubled": Example(
        linear(X, WEIGHT, 2 * BETA), linear(X, WEIGHT, BETA),
        {"x": X, "o.weight": WEIGHT, "o.bias": BETA},
        "its bias added twice (o.bias)",
    ),
    "weight-scaled": Example(
        1.01 * WEIGHT, WEIGHT, {}, "a weight 1.01 times the reference's", PARAMETER
    ),
    "weight-rows": Example(
        change_row(WEIGHT), WEIGHT, {}, "wrong rows (1 of 16: 3), 0.9 times the reference's",
        PARAMETER,
    ),
    "weight-swapped": Example(OTHER_WEIGHT, WEIGHT, {}, "k.weight in its place", PARAMETER),
    "split-order": Example(
        np.concatenate([WEIGHT[:8], OTHER_WEIGHT[:8]]), WEIGHT, {},
        "8 of 16 rows are those of k.weight, as if all were joined and cut in another way",
        PARAMETER,
    ),
    "zeroed": Example(-0.0 * WEIGHT, WEIGHT, {}, "filled with 0, as if never loaded", PARAMETER),
    "row-shift": Example(np.roll(WEIGHT, 1, 0), WEIGHT, {}, "rows shifted by 1", PARAMETER),
    "low-precision": Example(
        WEIGHT.astype(np.float16), WEIGHT, {}, "rounded to float16", PARAMETER
    ),
    "experts-permuted": Example(
        np.stack([OTHER_WEIGHT, WEIGHT]), np.stack([WEIGHT, OTHER_WEIGHT]), {},
        "experts in the order [1, 0]", {"kind": "parameter"},
    ),
    "residual-scale": Example(
        X + 0.9 * Y, X + Y, {"x": X, "y": Y}, "one branch of the sum 0.9 times the reference's"
    ),
    "batch": Example(
        np.where(np.arange(24) == 3, 7, TOKENS).reshape(2, 12), TOKENS.reshape(2, 12), {},
        "another batch: 1 of 24 numbers differ, the first at [0, 3] is 7; the reference has 41",
        BATCH,
    ),
    "label-shift": Example(
        COUNTED * compute_token_losses(LOGITS, np.roll(LABELS, -1)), COUNTED * LOSSES,
        {"logits": LOGITS, "labels": LABELS, "mask": COUNTED}, "labels shifted by -1", LOSS,
    ),
    "loss-reduction": Example(
        np.asarray(LOSSES.mean()), np.asarray((LOSSES * COUNTED).sum() / 18),
        {"logits": LOGITS, "labels": LABELS, "mask": COUNTED},
        "the mean over all 24 tokens; the reference has the mean over the 18 of 24 tokens that "
        "count",
        LOSS,
    ),
    "constant-factor": Example(
        np.asarray(2 * LOSSES.mean()), np.asarray(LOSSES.mean()),
        {"logits": LOGITS, "labels": LABELS}, "2 times the reference's value", LOSS,
    ),
    "gradient-scaled": Example(0.5 * X, X, {}, "0.5 times the reference's value", BACKWARD),
    "clip": Example(0.5 * X, X, {}, "0.5 times the reference's value", OPTIMIZER),
    "optimizer-epsilon": Example(
        replace(RULE, eps=1e-3).step(Y, GRADIENT), RULE.step(Y, GRADIENT), STEP,
        "epsilon = 0.001; the reference has epsilon = 1e-08", OPTIMIZER,
    ),
    "weight-decay": Example(
        replace(RULE, decay=0.1).step(Y, GRADIENT), RULE.step(Y, GRADIENT), STEP,
        "weight decay = 0.1; the reference has weight decay = 0", OPTIMIZER,
    ),
    "bias-correction": Example(
        replace(RULE, corrected=False).step(Y, GRADIENT), RULE.step(Y, GRADIENT), STEP,
        "without bias correction; the reference has with bias correction", OPTIMIZER,
    ),
    "learning-rate": Example(
        replace(RULE, learning_rate=3e-3).step(Y, GRADIENT), RULE.step(Y, GRADIENT), STEP,
        "learning rate = 0.003; the reference has learning rate = 0.001", OPTIMIZER,
    ),
    "learning-rate of the decay": Example(
        (1 - 3e-4) * Y, (1 - 1e-4) * Y, {"weight": Y},
        "learning rate x weight decay = 0.0003; the reference has 0.0001", OPTIMIZER,
    ),
}  # fmt: skip


def explain_example(example: Example) -> str:
    """Return the sentence of the best cause, without place and residual."""
    case = make_fault_case(example.faulty, example.faithful, example.operands, **example.options)
    (cause, *_) = explain_fault_case(case)
    match = re.fullmatch(r".*? behaves as (.*); residual \S+", cause.text)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_sentence_has_the_numbers_of_both_sides(name: str) -> None:
    assert explain_example(EXAMPLES[name]) == EXAMPLES[name].sentence


def test_with_a_faulty_reference_the_sentence_is_about_the_reference() -> None:
    example = EXAMPLES["epsilon"]
    case = make_fault_case(example.faulty, example.faithful, example.operands)
    (cause, *_) = search_causes([replace(case, faulty_side="reference")], HYPOTHESES).causes
    assert " of the reference behaves as epsilon = 0.01; the target uses 1e-05" in cause.text


def test_dropout_is_reported_by_its_p() -> None:
    """The factor gives p exactly; the share of zeros is only an estimate of it."""
    is_kept = RNG.random(Y.shape) < 0.9
    example = Example(X + Y * is_kept / 0.9, X + Y, {"x": X, "y": Y}, "")
    share = f"{1 - is_kept.mean():.2g}"
    assert explain_example(example) == (
        f"dropout with p = 0.1: {share} of the elements are zero, the others multiplied by 1.111"
    )


def test_a_factor_is_reported_with_the_recorded_numbers_of_both_sides() -> None:
    product = Scaling("Mul-op3", "multiplies by 0.0625", 0.0625)
    quotient = Scaling("Tensor.div.0.forward", "divides by 4", 0.25)
    case = make_fault_case(
        SCORES / 16, SCORES / 4, {"s": SCORES}, consumer_kinds=frozenset({"softmax"})
    )
    case = replace(case, faulty_scalings=(product,), faithful_scalings=(quotient,))
    (cause, *_) = explain_fault_case(case)
    assert cause.name == "scale"
    assert "behaves as attention scores 0.25 times the reference's; recorded: the target " in (
        cause.text
    )
    assert "multiplies by 0.0625 (Mul-op3), the reference divides by 4 (" in cause.text
    assert "): 0.0625 against 0.25; residual" in cause.text


def test_a_scaled_branch_is_reported_with_the_number_of_the_side_that_scales_it() -> None:
    scaling = Scaling("Mul-op2", "multiplies by 0.9", 0.9)
    scaled_branch = replace(
        make_operand("y", 0.9 * Y, agrees=False), load_scalings=lambda: (scaling,)
    )
    case = make_fault_case(X + 0.9 * Y, X + Y, {"x": X, "y": Y})
    (cause, *_) = explain_fault_case(replace(case, faulty_operands=(scaled_branch,)))
    assert "one branch of the sum 0.9 times the reference's; recorded: the target " in cause.text
    assert "multiplies by 0.9 (Mul-op2), the reference multiplies by no recorded" in cause.text


def test_another_weight_in_a_product_is_named() -> None:
    operands = {"x": X, "head.weight": WEIGHT}
    embedding = make_operand("embedding.weight", OTHER_WEIGHT)
    case = make_fault_case(linear(X, OTHER_WEIGHT), linear(X, WEIGHT), operands)
    (cause, *_) = explain_fault_case(replace(case, faulty_operands=(embedding,)))
    assert cause.name == "weight-swapped"
    assert "embedding.weight in its place; the reference multiplies by head.weight" in cause.text


def test_heads_of_a_projection_are_reported_in_their_order() -> None:
    call = Call("matmul", (X, WEIGHT), {}, (2, 6, 16))
    case = make_fault_case(np.roll(Q, 1, axis=1), Q, {}, call=call)
    (cause, *_) = explain_fault_case(replace(case, kinds=("matmul",)))
    assert cause.name == "heads-permuted"
    assert "heads in the order [3, 0, 1, 2]" in cause.text


def test_tokens_beyond_the_capacity_are_counted() -> None:
    expert_rows, tokens = RNG.standard_normal((5, 16)), np.array([0, 3, 4, 7, 9])
    faithful = np.zeros((12, 16))
    faithful[tokens] += expert_rows
    faulty = faithful.copy()
    faulty[tokens[3:]] -= expert_rows[3:]
    case = make_fault_case(
        faulty + X.reshape(12, 16), faithful + X.reshape(12, 16), {"expert": expert_rows},
        scope="layers.1.mlp.experts.0",
    )  # fmt: skip
    (cause, *_) = explain_fault_case(case)
    assert cause.name == "capacity"
    assert "an expert that takes only the first 3 of 5 tokens" in cause.text


def test_the_capacity_of_all_experts_is_fitted_from_their_outputs() -> None:
    """Each of 3 experts holds rows of zeros for the tokens of the others, as in a dense mixture."""
    is_routed = RNG.random((3, 12, 1)) < 0.6
    outputs = is_routed * RNG.standard_normal((3, 12, 16))
    faulty = np.zeros((12, 16))
    for routed, output in zip(is_routed[:, :, 0], outputs, strict=True):
        kept_tokens = np.flatnonzero(routed)[:4]
        faulty[kept_tokens] += output[kept_tokens]
    operands = {f"expert {number}": output for number, output in enumerate(outputs)}
    operands["first two"] = outputs[0] + outputs[1]
    largest_load = int(is_routed.sum(axis=(1, 2)).max())
    assert explain_example(Example(faulty, outputs.sum(0), operands, "")) == (
        f"experts that take only the first 4 of up to {largest_load} tokens"
    )


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_multiple_of_a_gradient_is_no_weight_decay(factor: float) -> None:
    """A decay keeps at least half of a weight; 1e14 fits anything."""
    operands = {"gradient": GRADIENT, "other": 1e-9 * Y}
    case = make_fault_case(0.4 * GRADIENT, factor * GRADIENT, operands, phase="optimizer")
    names = [cause.name for cause in explain_fault_case(case)]
    assert names[0] == "clip"
    assert "weight-decay" not in names
