"""The localization benchmark's judgment of sentences: numbers, and which side has which."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

LOCALISE = Path(__file__).parents[1] / "benchmarks" / "localise"
sys.path.insert(0, str(LOCALISE))

import claims  # noqa: E402
import faults  # noqa: E402
import sentences  # noqa: E402

SCALE = (
    "layers.1.attention behaves as attention scores {} times the reference's; recorded: the target "
    "multiplies by {} (Mul-op1), the reference divides by {} (Tensor.div.0): {} against {}"
)


def judge(fault: str, side: str, text: str, model: str = "llama") -> str:
    """Return what is wrong with a sentence, given without its residual."""
    return sentences.judge_sentence(f"{text}; residual 4.7e-7", faults.Case("", model, fault, side))


@pytest.mark.parametrize(("fault", "side", "text"), [
    ("eps", "mindspore", "norm behaves as epsilon = 0.001; the reference uses 1e-05"),
    ("eps", "pytorch", "norm behaves as epsilon = 1e-05; the reference uses 0.001"),
    ("eps", "pytorch",
     "norm of the reference behaves as epsilon = 0.001; the target uses 1e-05"),
    ("weight_scaled", "mindspore", "w behaves as a weight 1.01 times the reference's"),
    ("weight_scaled", "pytorch", "w behaves as a weight 0.990099 times the reference's"),
    ("label_shift", "mindspore", "loss of the reference behaves as labels shifted by -1"),
    ("label_shift", "pytorch", "loss of the reference behaves as labels shifted by 1"),
    ("score_scale", "mindspore", SCALE.format(0.25, 0.0721688, 3.4641, 0.0721688, 0.288675)),
    ("score_scale", "pytorch", SCALE.format(4, 0.288675, 13.8564, 0.288675, 0.0721688)),
    ("learning_rate", "mindspore",
     "w behaves as learning rate = 0.003; the reference has learning rate = 0.001"),
    ("learning_rate", "pytorch",
     "w behaves as learning rate x weight decay = 1e-05; the reference has 3e-05"),
    ("gelu_for_silu", "pytorch", "mlp behaves as silu; the reference has gelu (tanh)"),
    ("heads_permuted", "mindspore",
     "q behaves as rows in another order, in blocks of 12"),
    ("embedding_row", "mindspore",
     "embedding behaves as wrong rows (1 of 96: 90), 0.9 times the reference's"),
    ("qk_swapped", "pytorch",
     "layers.1.attention.q.weight and layers.1.attention.k.weight changed places"),
])  # fmt: skip
def test_either_side_may_be_the_subject_of_a_right_sentence(
    fault: str, side: str, text: str
) -> None:
    assert judge(fault, side, text) == ""


@pytest.mark.parametrize(("fault", "side", "text", "error"), [
    ("eps", "pytorch", "norm behaves as epsilon = 0.001; the reference uses 1e-05",
     "0.001 of the reference is missing"),
    ("weight_scaled", "mindspore", "w behaves as a weight 1 times the reference's",
     "the factor 1.01 is missing"),
    ("weight_scaled", "pytorch", "w behaves as a weight 1.01 times the reference's",
     "the factor 0.990099 is missing"),
    ("label_shift", "mindspore", "loss behaves as labels shifted by -1",
     "the shift by 1 is missing"),
    ("score_scale", "mindspore", SCALE.format(0.25, 1, 4, 1, 4), "0.0721688 of the target"),
    ("gelu_for_silu", "pytorch", "mlp behaves as gelu (tanh); the reference has silu",
     "of the reference is missing"),
    ("heads_permuted", "mindspore", "q behaves as rows in another order, in blocks of 4",
     "of 12 rows each is missing"),
])  # fmt: skip
def test_a_number_of_the_other_side_is_an_error(
    fault: str, side: str, text: str, error: str
) -> None:
    assert error in judge(fault, side, text)


def test_the_sentence_with_a_divisor_for_a_factor_is_wrong() -> None:
    """What explain said once: "behaves as scale = 1 where the reference has 4"."""
    text = "layers.1.attention behaves as scale = 1; the reference uses 4"
    assert "0.0721688 of the target is missing" in judge("score_scale", "mindspore", text)


def test_every_fault_has_its_claims() -> None:
    assert set(sentences.CLAIMS) == set(faults.FAULTS) - {"none"}


@pytest.mark.parametrize("model", faults.FAULTS_OF_MODEL)
def test_claims_follow_from_every_model(model: str) -> None:
    """No claim is true of a sentence that says nothing, except where a fault has no number."""
    for fault in faults.FAULTS_OF_MODEL[model].split():
        error = judge(fault, "mindspore", "layers.1 behaves as something else", model)
        has_claims = sentences.CLAIMS[fault] is not sentences.CLAIMS["residual_order"]
        assert bool(error) == has_claims, fault


def test_numbers_in_names_do_not_count() -> None:
    text = "multiplies by 0.25 (Tensor.__mul__.16.forward) and -3.5e-2, p = 0.1: 12 of"
    assert claims.read_numbers(text) == [0.25, -0.035, 0.1, 12.0]
