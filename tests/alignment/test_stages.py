"""The whole alignment: copies of one real dump, edited, whose right pairs are known; and two frameworks."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    align_traces,
    edit_tensors,
    find_tensors_like,
    find_op,
    scale_result,
    load_shipped_rules,
    select_ops,
    add_noise,
    remove_ops,
    find_wrong_pairs,
)

FIRST = "Tensor.__add__.1.forward"  #: the residual of layer 0
Q, K, V = 35, 37, 39  #: calls that project in layer 1, each followed by its module


def reordered(trace):
    """Values, keys, queries in place of queries, keys, values."""
    return select_ops(trace, [*range(Q), V, V + 1, K, K + 1, Q, Q + 1, *range(V + 2, len(trace.ops))])


def diverged(trace):
    return scale_result(trace, FIRST, 1.07, and_after=True)


def nameless(trace):
    """Nothing has a name: not the ops, not the parameters, not the modules."""
    count = len(trace.ops)
    ops = trace.ops.assign(name=[f"op{row}" for row in range(count)], scope="", source="", stack="")
    tensors = trace.tensors.assign(parameter="", gradient_of="")
    return replace(trace, ops=ops, tensors=tensors)


#: What was done to the copy -> how, and how many of its values at most have no partner.
EDITS = {
    "nothing": (lambda trace: trace, 0),
    "noise of 1e-6": (lambda trace: add_noise(trace, 1e-6), 0),
    "another order of execution": (reordered, 0),
    "a divergence in layer 0": (diverged, 0),
    "a divergence in layer 0 and noise": (lambda trace: add_noise(diverged(trace), 1e-6), 0),
    "a divergence in layer 0 and another order after it": (
        lambda trace: reordered(diverged(trace)),
        0,
    ),
    "a call that was not recorded": (
        lambda trace: remove_ops(trace, "Tensor.__truediv__.1.forward"),
        0,
    ),
    "a call that was not recorded after a divergence": (
        lambda trace: remove_ops(diverged(trace), "Tensor.__truediv__.1.forward"),
        0,
    ),
}


@pytest.mark.parametrize(("edit", "alone"), EDITS.values(), ids=EDITS)
class TestACopy:
    def test_every_pair_is_right(self, trace, edit, alone):
        assert find_wrong_pairs(align_traces(edit(trace("pt_none")), trace("pt_none"))) == []

    def test_every_op_is_paired_with_itself(self, trace, edit, alone):
        found = align_traces(edit(trace("pt_none")), trace("pt_none"))
        names_t, names_r = (
            flow.trace.ops["name"].to_numpy() for flow in (found.target, found.reference)
        )
        pairs = list(
            zip(names_t[found.ops["target"]], names_r[found.ops["reference"]], strict=True)
        )
        assert [pair for pair in pairs if pair[0] != pair[1]] == []
        assert len(pairs) >= len(names_t) - alone

    def test_every_value_has_a_partner(self, trace, edit, alone):
        found = align_traces(edit(trace("pt_none")), trace("pt_none"))
        assert len(found.classes) >= len(found.target.classes) - alone


def test_names_are_not_needed(trace):
    """Not even after the divergence: values, kinds and dataflow are enough."""
    bare = nameless(trace("pt_none"))
    found = align_traces(diverged(trace("pt_none")), bare)
    same = found.ops["target"] == found.ops["reference"]
    assert same.mean() > 0.99
    assert len(found.ops) > 0.95 * len(bare.ops)


def test_a_kind_that_no_rule_knows_is_learned(trace):
    whole = trace("pt_none")
    ops = whole.ops.assign(
        kind=whole.ops["kind"].replace("Functional.silu", "Custom.npu_gelu_like")
    )
    found = align_traces(replace(diverged(whole), ops=ops), whole)
    assert find_wrong_pairs(found) == []
    silu = find_op(whole, "Functional.silu.2.forward")
    assert (silu, silu) in zip(found.ops["target"], found.ops["reference"], strict=True)


def test_norms_of_ones_in_every_layer_are_told_apart(trace):
    """As when a model has not been trained: nine scales of the same value."""
    ones = trace("pt_none")
    for number in range(9):
        rows = find_tensors_like(ones, f"Functional.layer_norm.{number}.forward", "input.2")
        ones = edit_tensors(ones, rows, max=1.0, min=1.0, mean=1.0, norm=8.0)
    found = align_traces(ones, ones)
    assert find_wrong_pairs(found) == []
    assert len(found.classes) == len(found.target.classes)


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
    found = align_traces(infinite, trace("pt_none"))
    assert find_wrong_pairs(found) == []
    masked = find_op(infinite, "Tensor.__add__.3.forward")
    assert (masked, masked) in zip(found.ops["target"], found.ops["reference"], strict=True)


@pytest.fixture(scope="module")
def found(trace):
    return align_traces(trace("ms_mf_none"), trace("pt_none"))


class TestTwoFrameworks:
    def test_every_named_parameter_has_the_partner_of_its_name(self, found):
        rules = load_shipped_rules()
        names_t, names_r = (
            flow.classes["parameter"].to_numpy() for flow in (found.target, found.reference)
        )
        pairs = zip(
            names_t[found.classes["target"]], names_r[found.classes["reference"]], strict=True
        )
        named = [(rules.resolve_parameter(t), rules.resolve_parameter(r)) for t, r in pairs if t and r]
        assert len(named) == 48
        assert all(t == r for t, r in named)

    def test_paired_calls_are_of_one_kind_or_one_divides_and_the_other_multiplies(self, found):
        table = found.target.trace.ops.iloc[found.ops["target"]]
        chosen = ((table["level"] == "op") & (table["phase"] == "forward")).to_numpy()
        kinds = {
            (found.target_kinds[t], found.reference_kinds[r])
            for t, r in found.ops[chosen].itertuples(index=False)
        }
        assert {(t, r) for t, r in kinds if t != r} == {("mul", "div")}
        assert {"matmul", "layer_norm", "softmax", "silu"} <= {r for _, r in kinds}

    def test_execution_goes_the_same_way_on_both_sides(self, found):
        ops = found.ops[
            found.target.trace.ops["phase"].to_numpy()[found.ops["target"]] == "forward"
        ]
        assert np.corrcoef(ops["target"], ops["reference"])[0, 1] > 0.999

    def test_it_says_how_sure_it_is_and_why(self, found):
        assert found.classes["confidence"].between(0.5, 1.0).all()
        assert set(found.classes["evidence"]) <= {
            "value",
            "parameter",
            "structure",
            "role",
            "near value",
            "scaled value",
            "gradient",
        }
