"""A parameter of which one side has no gradient is named."""

import pytest
from traces import locate_divergence, remove_ops

LOST = "Module.transformer.h.0.attn.v_proj.Linear.parameters_grad.0"


def list_notes(result):
    return [note for note in result.notes if "has no gradient of" in note]


@pytest.mark.parametrize("target", ["pt_gpt2", "ms_gpt2"])
def test_a_lost_record_of_gradients_is_named(trace, target) -> None:
    result = locate_divergence(trace(target), remove_ops(trace("pt_gpt2"), LOST))
    (note,) = list_notes(result)
    assert note.startswith("the reference has no gradient of 2 of 37 parameters that the target")
    assert "transformer.h.0.attn.v_proj.weight, transformer.h.0.attn.v_proj.bias; frozen" in note


def test_more_than_three_parameters_are_counted(trace) -> None:
    clean = trace("pt_gpt2")
    names = clean.ops["name"]
    lost = names[(clean.ops["kind"] == "parameters_grad") & names.str.contains("h.1.attn")]
    (note,) = list_notes(locate_divergence(remove_ops(clean, *lost), clean))
    assert note.startswith("the target has no gradient of 8 of 37 parameters")
    assert "and 5 more; frozen" in note


def test_a_parameter_that_both_sides_froze_is_not_named(trace) -> None:
    frozen = remove_ops(trace("pt_gpt2"), LOST)
    assert list_notes(locate_divergence(frozen, frozen)) == []


def test_tied_weights_have_one_gradient(trace) -> None:
    clean = trace("pt_gpt2")
    head = remove_ops(clean, "Module.lm_head.Linear.parameters_grad.0")
    assert list_notes(locate_divergence(head, clean)) == []
    assert list_notes(locate_divergence(clean, clean)) == []
