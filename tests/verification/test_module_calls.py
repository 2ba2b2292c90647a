"""A module call records what the ops inside it record: a wrong copy of a value is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from traces import edit_tensors, find_tensor, remove_ops, remove_tensors

from dumpdiff.verification.module_calls import check_module_calls
from dumpdiff.verification.tolerances import collect_numbers

BLOCK = "Module.transformer.h.0.Block"
PROJECTION = "Module.transformer.h.0.attn.v_proj.Linear"
NUMBERS = ["max", "min", "mean", "norm"]


def check(trace):
    return check_module_calls(trace, collect_numbers(trace))


def swap(trace, name, slot, donor, donor_slot):
    """Return the trace with the statistics of another tensor in a slot."""
    numbers = trace.tensors.loc[find_tensor(trace, donor, donor_slot), NUMBERS].to_dict()
    return edit_tensors(trace, find_tensor(trace, name, slot), **numbers)


@pytest.mark.parametrize(
    ("name", "n_checked"), [("pt_gpt2", 123), ("demo_pytorch", 165), ("pt_gpt2_no_bias", 122)]
)
def test_calls_of_a_sound_dump_hold_what_their_ops_hold(trace, name: str, n_checked: int) -> None:
    """A parameter that the module does not use is no contradiction: no op has a slot for it."""
    result = check(trace(name))
    assert (result.checked, result.contradictions) == (n_checked, ())


def test_without_module_calls_nothing_is_checked(trace) -> None:
    assert check(trace("ms_gpt2")).checked == 0


@pytest.mark.parametrize(
    ("name", "slot", "donor", "donor_slot", "verb"),
    [
        (f"{PROJECTION}.forward.0", "parameter.weight",
         "Module.transformer.h.1.attn.v_proj.Linear.forward.0", "parameter.weight", "read"),
        (f"{BLOCK}.forward.0", "input.0", f"{BLOCK}.forward.0", "output.0", "read"),
        (f"{BLOCK}.forward.0", "output.0", f"{BLOCK}.forward.0", "input.0", "wrote"),
        (f"{PROJECTION}.backward.0", "input.0",
         "Module.transformer.h.1.attn.v_proj.Linear.backward.0", "input.0", "read"),
        ("Module.transformer.h.0.ln_1.LayerNorm.parameters_grad.0", "output.bias",
         "Module.transformer.h.1.ln_1.LayerNorm.parameters_grad.0", "output.bias", "wrote"),
    ],
)  # fmt: skip
def test_the_numbers_of_another_tensor_in_a_call_are_found(
    trace, name: str, slot: str, donor: str, donor_slot: str, verb: str
) -> None:
    (item,) = check(swap(trace("pt_gpt2"), name, slot, donor, donor_slot)).contradictions
    assert (item.kind, item.op, item.slot) == ("module", name, slot)
    assert f"no op inside {verb} that" in item.computed


def test_a_wrong_record_of_the_op_inside_is_found_too(trace) -> None:
    clean = trace("pt_gpt2")
    row = find_tensor(clean, "Functional.linear.2.forward", "input.1")
    damaged = edit_tensors(clean, row, max=9.0)
    (item,) = check(damaged).contradictions
    assert (item.op, item.slot) == (f"{PROJECTION}.forward.0", "parameter.weight")
    assert "Functional.linear.2.forward input.1 has max 9" in item.computed


def test_a_call_whose_op_was_not_recorded_is_not_judged(trace) -> None:
    clean = trace("pt_gpt2")
    row = find_tensor(clean, "Functional.linear.2.forward", "input.1")
    result = check(remove_tensors(clean, [row]))
    assert (result.checked, result.contradictions) == (122, ())


def test_calls_that_ran_other_ops_prove_nothing(trace) -> None:
    """The other layer has an op less, as the first layer of RWKV has a norm more."""
    clean = trace("pt_gpt2")
    damaged = swap(clean, f"{BLOCK}.forward.0", "input.0", f"{BLOCK}.forward.0", "output.0")
    other_activation = "Functional.gelu.1.forward"
    assert len(check(damaged).contradictions) == 1
    assert check(remove_ops(damaged, other_activation)).contradictions == ()


def test_the_gradient_of_tied_weights_is_a_sum(trace) -> None:
    """The embedding and the head share a weight: neither wrote the gradient that is recorded."""
    clean = trace("pt_gpt2")
    row = find_tensor(clean, "Module.lm_head.Linear.parameters_grad.0", "output.weight")
    assert check(edit_tensors(clean, row, norm=np.float64(1e3))).contradictions == ()


def test_the_gradient_of_an_input_that_two_ops_read_is_a_sum(trace) -> None:
    norm = "Module.transformer.h.0.ln_1.LayerNorm"
    clean = trace("pt_gpt2")
    damaged = edit_tensors(clean, find_tensor(clean, f"{norm}.backward.0", "output.0"), max=9.0)
    (item,) = check(damaged).contradictions
    assert (item.op, item.slot) == (f"{norm}.backward.0", "output.0")
    ops = damaged.ops.copy()
    names = ops["name"].tolist()
    residual_sum = names.index("Tensor.__add__.2.forward")  # it reads the same value
    ops.loc[residual_sum, "parent"] = names.index(f"{norm}.forward.0")
    assert check(replace(damaged, ops=ops)).contradictions == ()
