"""Values at corresponding slots of paired ops that are not each other's partners."""

import numpy as np
import pytest
from traces import (
    align_traces,
    edit_tensors,
    find_op,
    find_tensor,
    locate_divergence,
    record_calls,
    scale_tensors,
)

from dumpdiff.alignment import slot_pairs

SILU, DOWN = "Functional.silu.1.forward", "Functional.linear.13.forward"
GATE, UP = "Functional.linear.11.forward", "Functional.linear.12.forward"
NUMBERS = ["max", "min", "mean", "norm"]


def describe(alignment):
    """Return (target's op, reference's op, kind of slot) of every slot pair."""
    names_t, names_r = (
        flow.trace.ops["name"].to_numpy() for flow in (alignment.target, alignment.reference)
    )
    return [
        (names_t[pair.target_op], names_r[pair.reference_op], pair.slot_kind)
        for pair in alignment.slot_pairs
    ]


@pytest.mark.parametrize(
    "pair",
    [("pt_none", "pt_none"), ("demo_pytorch", "demo_pytorch"), ("ms_gpt2", "pt_gpt2")],
)
def test_paired_ops_of_a_sound_pair_hold_partners(trace, pair):
    """What they hold besides is equal: copies that the class of the value does not contain."""
    alignment = align_traces(*map(trace, pair))
    distances = [
        abs(alignment.target.norms[p.target] / alignment.reference.norms[p.reference] - 1)
        for p in alignment.slot_pairs
    ]
    assert max(distances, default=0.0) < 1e-5


@pytest.mark.parametrize("swapped", [False, True], ids=["in the target", "in the reference"])
class TestInput:
    @pytest.mark.parametrize("factor", [2.0, np.nan])
    def test_an_input_that_no_op_wrote_is_compared_with_the_input_of_the_other_side(
        self, trace, factor, swapped
    ):
        clean_trace = trace("pt_none")
        row = find_tensor(clean_trace, DOWN, "input.0")
        damaged = scale_tensors(clean_trace, [row], factor)
        sides = (clean_trace, damaged) if swapped else (damaged, clean_trace)
        alignment = align_traces(*sides)
        assert describe(alignment) == [(DOWN, DOWN, "input")]
        (pair,) = alignment.slot_pairs
        assert (pair.target_tensor, pair.reference_tensor) == (row, row)

    def test_an_input_that_another_op_wrote_is_compared_too(self, trace, swapped):
        """The record of one slot was exchanged with that of another op."""
        clean_trace = trace("pt_none")
        row, other = (
            find_tensor(clean_trace, SILU, "input.0"),
            find_tensor(clean_trace, UP, "output.0"),
        )
        numbers = {name: clean_trace.tensors[name].iat[other] for name in NUMBERS}
        damaged = edit_tensors(clean_trace, row, **numbers)
        sides = (clean_trace, damaged) if swapped else (damaged, clean_trace)
        assert (SILU, SILU, "input") in describe(align_traces(*sides))


def test_of_calls_that_run_several_times_partners_of_others_are_no_contradiction(
    trace, monkeypatch
):
    """Which of two norms of one value is which does not show."""
    clean_trace = trace("pt_none")
    other = find_tensor(clean_trace, UP, "output.0")
    numbers = {name: clean_trace.tensors[name].iat[other] for name in NUMBERS}
    damaged = edit_tensors(clean_trace, find_tensor(clean_trace, SILU, "input.0"), **numbers)
    assert (SILU, SILU, "input") in describe(align_traces(damaged, clean_trace))
    monkeypatch.setattr(slot_pairs, "_count_computations", lambda *_: [{2}, {2}])
    assert (SILU, SILU, "input") not in describe(align_traces(damaged, clean_trace))


def test_an_output_that_no_op_reads_is_compared_with_the_output_of_the_other_side(trace):
    clean_trace = trace("pt_none")
    row = find_tensor(clean_trace, UP, "output.0")
    alignment = align_traces(scale_tensors(clean_trace, [row], 1.3), clean_trace)
    (pair,) = alignment.slot_pairs
    assert (pair.target_tensor, pair.slot_kind) == (row, "output")
    assert alignment.reference.tensor_class[row] == pair.reference


def test_a_value_that_ops_of_one_side_compute_is_no_contradiction(trace):
    """Where a fault follows, the values of paired ops are partners, not slots to compare."""
    clean_trace = trace("pt_none")
    assert find_op(clean_trace, GATE) < find_op(clean_trace, SILU)
    damaged = scale_tensors(
        clean_trace,
        np.flatnonzero(clean_trace.tensors["op"] >= find_op(clean_trace, SILU)).tolist(),
        1.05,
    )
    written = {
        name for name, _, kind in describe(align_traces(damaged, clean_trace)) if kind == "output"
    }
    assert written == set()


def test_gradients_of_paired_parameters_are_compared(trace):
    """The gradient of another parameter in a record has a partner of its own."""
    clean = trace("pt_gpt2")
    record = "Module.transformer.h.0.attn.v_proj.Linear.parameters_grad.0"
    donor = "Module.transformer.h.1.attn.v_proj.Linear.parameters_grad.0"
    donor_row = find_tensor(clean, donor, "output.weight")
    numbers = clean.tensors.loc[donor_row, NUMBERS].to_dict()
    swapped = edit_tensors(clean, find_tensor(clean, record, "output.weight"), **numbers)
    assert (record, record, "output") in describe(align_traces(swapped, clean))
    assert describe(align_traces(clean, clean)) == []


def test_parameters_of_equal_numbers_share_no_gradient(trace):
    """The weights of two norms that begin with the same numbers are one value class."""
    sides = []
    for name, weight in (
        ("ms_gpt2", "decoder.layers.{}.input_layernorm.gamma"),
        ("pt_gpt2", "transformer.h.{}.ln_1.weight"),
    ):
        side = trace(name)
        names = side.tensors["parameter"]
        rows = [names.index[names == weight.format(layer)] for layer in (0, 1)]
        numbers = side.tensors.loc[rows[0][0], NUMBERS].to_dict()
        sides.append(edit_tensors(side, rows[1], **numbers))
    alignment = align_traces(*sides)
    assert [slot_kind for *_, slot_kind in describe(alignment)] == ["input"]
    assert len(alignment.target.parameter_values) == 36


def record_margin(margin):
    """The sum of logarithms of a sum with a number."""
    x, y = np.random.default_rng(4).uniform(1, 2, (2, 4, 5))
    logarithms = np.log(x + margin)
    return record_calls(
        ("Sigmoid", (y,), x),
        ("Add", (x,), x + margin),
        ("Log", (x + margin,), logarithms),
        ("Sum", (logarithms,), logarithms.sum()),
    )


@pytest.mark.parametrize("margins", [(0.5, 0.0), (0.0, 0.5)])
def test_a_sum_that_changes_nothing_on_one_side_is_where_the_sides_diverge(margins):
    """What it gives back has the partner of what it read, and agrees."""
    traces = [record_margin(margin) for margin in margins]
    assert describe(align_traces(*traces)) == [("call.1", "call.1", "output")]
    first = locate_divergence(*traces).findings[0]
    assert "call.1" in first.target_ops
    assert "call.1" in first.reference_ops


def test_sums_that_change_nothing_on_both_sides_agree():
    assert align_traces(record_margin(0.0), record_margin(0.0)).slot_pairs == ()
