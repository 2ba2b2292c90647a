"""A gradient with a parameter's name that has no partner is no agreement."""

import pytest
from traces import locate_divergence, remove_ops

WEIGHT = "Module.transformer.h.0.attn.v_proj.Linear.parameters_grad.0"


@pytest.fixture(scope="module")
def computing_op(trace):
    """Return the op of the MindSpore dump that computes the gradient of a weight."""
    pairs = locate_divergence(trace("ms_gpt2"), trace("pt_gpt2")).pairs
    is_weight = (pairs["reference_op"] == WEIGHT) & (pairs["reference_slot"] == "output.weight")
    (name,) = pairs.loc[is_weight, "target_op"]
    return name


def test_a_gradient_without_a_partner_makes_the_answer_inconclusive(trace, computing_op) -> None:
    without_op = remove_ops(trace("ms_gpt2"), computing_op)
    for sides, name in (((without_op, trace("pt_gpt2")), "reference"),
                        ((trace("pt_gpt2"), without_op), "target")):  # fmt: skip
        result = locate_divergence(*sides)
        assert result.verdict == "inconclusive"
        assert result.notes[0] == (
            f"the gradients of 1 of 37 parameters of the {name} have no partner and were not "
            "compared: transformer.h.0.attn.v_proj.weight"
        )


def test_a_backward_pass_of_one_side_alone_is_not_needed(trace) -> None:
    both = trace("pt_gpt2")
    backward = both.ops.loc[both.ops["phase"] == "backward", "name"]
    assert locate_divergence(both, remove_ops(both, *backward)).verdict == "aligned"
