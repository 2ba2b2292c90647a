"""The whole alignment: edited copies of one dump with known pairs, and two frameworks."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    add_noise,
    align_traces,
    edit_tensors,
    find_op,
    find_tensors_like,
    find_wrong_pairs,
    load_shipped_rules,
    remove_ops,
    scale_result,
    select_ops,
)

FIRST = "Tensor.__add__.1.forward"  #: the residual of layer 0
Q, K, V = 35, 37, 39  #: calls that project in layer 1, each followed by its module


def reorder_projections(trace):
    """Project values, keys, queries in this order, not queries, keys, values."""
    return select_ops(
        trace, [*range(Q), V, V + 1, K, K + 1, Q, Q + 1, *range(V + 2, len(trace.ops))]
    )


def diverge(trace):
    return scale_result(trace, FIRST, 1.07, and_after=True)


def remove_names(trace):
    """Remove the names of ops, parameters and modules."""
    count = len(trace.ops)
    ops = trace.ops.assign(name=[f"op{row}" for row in range(count)], scope="", source="", stack="")
    tensors = trace.tensors.assign(parameter="", gradient_of="")
    return replace(trace, ops=ops, tensors=tensors)


#: Change -> function that makes it, and how many values may stay unpaired.
EDITS = {
    "nothing": (lambda trace: trace, 0),
    "noise of 1e-6": (lambda trace: add_noise(trace, 1e-6), 0),
    "another order of execution": (reorder_projections, 0),
    "a divergence in layer 0": (diverge, 0),
    "a divergence in layer 0 and noise": (lambda trace: add_noise(diverge(trace), 1e-6), 0),
    "a divergence in layer 0 and another order after it": (
        lambda trace: reorder_projections(diverge(trace)),
        0,
    ),
    "a call that was not recorded": (
        lambda trace: remove_ops(trace, "Tensor.__truediv__.1.forward"),
        0,
    ),
    "a call that was not recorded after a divergence": (
        lambda trace: remove_ops(diverge(trace), "Tensor.__truediv__.1.forward"),
        0,
    ),
}


@pytest.mark.parametrize(("edit", "max_unpaired"), EDITS.values(), ids=EDITS)
class TestACopy:
    def test_every_pair_is_right(self, trace, edit, max_unpaired):
        assert find_wrong_pairs(align_traces(edit(trace("pt_none")), trace("pt_none"))) == []

    def test_every_op_is_paired_with_itself(self, trace, edit, max_unpaired):
        alignment = align_traces(edit(trace("pt_none")), trace("pt_none"))
        names_t, names_r = (
            flow.trace.ops["name"].to_numpy() for flow in (alignment.target, alignment.reference)
        )
        pairs = list(
            zip(names_t[alignment.ops["target"]], names_r[alignment.ops["reference"]], strict=True)
        )
        assert [pair for pair in pairs if pair[0] != pair[1]] == []
        assert len(pairs) >= len(names_t) - max_unpaired

    def test_every_value_has_a_partner(self, trace, edit, max_unpaired):
        alignment = align_traces(edit(trace("pt_none")), trace("pt_none"))
        assert len(alignment.classes) >= len(alignment.target.classes) - max_unpaired


def test_names_are_not_needed(trace):
    """Not even after the divergence: values, kinds and dataflow are enough."""
    bare_trace = remove_names(trace("pt_none"))
    alignment = align_traces(diverge(trace("pt_none")), bare_trace)
    is_same = alignment.ops["target"] == alignment.ops["reference"]
    assert is_same.mean() > 0.99
    assert len(alignment.ops) > 0.95 * len(bare_trace.ops)


def test_a_kind_that_no_rule_knows_is_learned(trace):
    clean_trace = trace("pt_none")
    ops = clean_trace.ops.assign(
        kind=clean_trace.ops["kind"].replace("Functional.silu", "Custom.npu_gelu_like")
    )
    alignment = align_traces(replace(diverge(clean_trace), ops=ops), clean_trace)
    assert find_wrong_pairs(alignment) == []
    silu = find_op(clean_trace, "Functional.silu.2.forward")
    assert (silu, silu) in zip(alignment.ops["target"], alignment.ops["reference"], strict=True)


def test_norms_of_ones_in_every_layer_are_distinguished(trace):
    """As when a model has not been trained: nine scales of the same value."""
    ones_trace = trace("pt_none")
    for number in range(9):
        rows = find_tensors_like(ones_trace, f"Functional.layer_norm.{number}.forward", "input.2")
        ones_trace = edit_tensors(ones_trace, rows, max=1.0, min=1.0, mean=1.0, norm=8.0)
    alignment = align_traces(ones_trace, ones_trace)
    assert find_wrong_pairs(alignment) == []
    assert len(alignment.classes) == len(alignment.target.classes)


def test_masks_of_other_constants_are_paired(trace):
    """One framework masks with -1e4, the other with -inf."""
    infinite = trace("pt_none")
    for name, slot in [
        (f"Tensor.__add__.{3 * layer}.forward", slot)
        for layer in range(4)
        for slot in ("input.1", "output.0")
    ]:
        rows = find_tensors_like(trace("pt_none"), name, slot)
        infinite = edit_tensors(infinite, rows, min=-np.inf, mean=-np.inf, norm=np.inf, nonfinite=1)
    alignment = align_traces(infinite, trace("pt_none"))
    assert find_wrong_pairs(alignment) == []
    masked = find_op(infinite, "Tensor.__add__.3.forward")
    assert (masked, masked) in zip(alignment.ops["target"], alignment.ops["reference"], strict=True)


@pytest.fixture(scope="module")
def alignment(trace):
    return align_traces(trace("ms_mf_none"), trace("pt_none"))


class TestTwoFrameworks:
    def test_every_named_parameter_has_the_partner_of_its_name(self, alignment):
        rules = load_shipped_rules()
        names_t, names_r = (
            flow.classes["parameter"].to_numpy() for flow in (alignment.target, alignment.reference)
        )
        pairs = zip(
            names_t[alignment.classes["target"]],
            names_r[alignment.classes["reference"]],
            strict=True,
        )
        named = [
            (rules.resolve_parameter(t), rules.resolve_parameter(r)) for t, r in pairs if t and r
        ]
        assert len(named) == 48
        assert all(t == r for t, r in named)

    def test_paired_calls_are_of_one_kind_or_one_divides_and_the_other_multiplies(self, alignment):
        table = alignment.target.trace.ops.iloc[alignment.ops["target"]]
        is_chosen = ((table["level"] == "op") & (table["phase"] == "forward")).to_numpy()
        kinds = {
            (alignment.target_kinds[t], alignment.reference_kinds[r])
            for t, r in alignment.ops[is_chosen].itertuples(index=False)
        }
        assert {(t, r) for t, r in kinds if t != r} == {("mul", "div")}
        assert {"matmul", "layer_norm", "softmax", "silu"} <= {r for _, r in kinds}

    def test_execution_goes_the_same_way_on_both_sides(self, alignment):
        ops = alignment.ops[
            alignment.target.trace.ops["phase"].to_numpy()[alignment.ops["target"]] == "forward"
        ]
        assert np.corrcoef(ops["target"], ops["reference"])[0, 1] > 0.999

    def test_every_pair_has_a_confidence_and_evidence(self, alignment):
        assert alignment.classes["confidence"].between(0.5, 1.0).all()
        assert set(alignment.classes["evidence"]) <= {
            "value",
            "parameter",
            "structure",
            "role",
            "near value",
            "scaled value",
            "gradient",
        }
