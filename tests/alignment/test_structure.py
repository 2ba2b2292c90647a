"""Ops of equal kind that read the same values are the same op, whatever they produce."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    edit_tensors,
    find_op,
    find_tensor,
    find_tensors_like,
    find_value,
    record_calls,
    remove_ops,
    scale_result,
    select_ops,
    start_matching,
)

from dumpdiff.alignment import anchors, structure

#: the residual of layer 0: nearly all of the forward pass depends on it
FIRST = "Tensor.__add__.1.forward"
Q, K, V = (
    35,
    37,
    39,
)  #: ops that project to queries, keys and values in layer 1, each followed by its module call


def close_matching(target, reference):
    matching = start_matching(target, reference)
    anchors.pair_by_value(matching)
    structure.pair_by_structure(matching)
    return matching


def map_ops_by_name(matching):
    names_t, names_r = (
        flow.trace.ops["name"].to_numpy() for flow in (matching.target, matching.reference)
    )
    return {names_t[t]: names_r[r] for t, r in enumerate(matching.ops_t.tolist()) if r >= 0}


def list_computing_ops(trace, first):
    """Return the forward ops from the first on that compute a value, without module calls."""
    is_chosen = (trace.ops["phase"] == "forward") & (trace.ops["level"] == "op")
    return [o for o in np.flatnonzero(is_chosen).tolist() if o >= find_op(trace, first)]


def find_wrong_ops(matching):
    return {
        name_t: name_r for name_t, name_r in map_ops_by_name(matching).items() if name_t != name_r
    }


class TestAcrossADivergence:
    def test_everything_computed_from_a_divergence_is_still_paired(self, trace):
        clean_trace = trace("pt_none")
        matching = close_matching(
            scale_result(clean_trace, FIRST, 1.07, and_after=True), clean_trace
        )
        later_ops = list_computing_ops(clean_trace, FIRST)
        assert len(later_ops) > 50
        assert (matching.ops_t[later_ops] == later_ops).all()
        assert not find_wrong_ops(matching)

    def test_the_order_of_independent_ops_does_not_matter(self, trace):
        clean_trace = trace("pt_none")
        values_first = [
            *range(Q),
            V,
            V + 1,
            K,
            K + 1,
            Q,
            Q + 1,
            *range(V + 2, len(clean_trace.ops)),
        ]
        matching = close_matching(
            select_ops(scale_result(clean_trace, FIRST, 1.07, and_after=True), values_first),
            clean_trace,
        )
        assert not find_wrong_ops(matching)
        assert (
            map_ops_by_name(matching)["Functional.linear.9.forward"]
            == "Functional.linear.9.forward"
        )

    def test_values_of_the_wrong_size_stop_the_pairing(self, trace):
        clean_trace = trace("pt_none")
        diverged_trace = scale_result(clean_trace, FIRST, 1.07, and_after=True)
        rows = find_tensors_like(diverged_trace, "Functional.silu.1.forward", "output.0")
        matching = close_matching(edit_tensors(diverged_trace, rows, size=9999), clean_trace)
        silu = find_value(matching.target, "Functional.silu.1.forward", "output.0")
        assert matching.classes_t[silu] == -1

    def test_an_op_that_only_one_side_has_leaves_the_rest_paired(self, trace):
        clean_trace = trace("pt_none")
        scale = "Tensor.__truediv__.1.forward"
        matching = close_matching(
            remove_ops(scale_result(clean_trace, FIRST, 1.07, and_after=True), scale), clean_trace
        )
        assert not find_wrong_ops(matching)
        open_ops = [o for o in list_computing_ops(clean_trace, FIRST) if matching.ops_r[o] < 0]
        assert [clean_trace.ops["name"].iat[o] for o in open_ops] == [scale]


class TestUpward:
    def test_a_weight_that_differs_is_the_remaining_input_of_paired_ops(self, trace):
        """No record names it: its consumer's other input is paired, and so is the operator."""
        clean_trace = trace("v6.0_api_stack_summary")
        weight = find_tensors_like(clean_trace, "Functional.linear.18.forward", "input.1")
        output = find_tensors_like(clean_trace, "Functional.linear.18.forward", "output.0")
        faulty = edit_tensors(
            edit_tensors(clean_trace, weight, max=0.7, norm=20.0), output, max=7.0, norm=99.0
        )
        matching = close_matching(faulty, clean_trace)
        name_t = find_value(matching.target, "Functional.linear.18.forward", "input.1")
        assert matching.classes_t[name_t] == find_value(
            matching.reference, "Functional.linear.18.forward", "input.1"
        )
        assert matching.evidence[name_t] == "structure"

    def test_scales_of_ones_are_distinguished_by_their_consumers(self, trace):
        clean_trace = trace("pt_none")
        scales = [f"Functional.layer_norm.{number}.forward" for number in range(9)]
        ones_trace = edit_tensors(clean_trace, range(len(clean_trace.tensors)), parameter="")
        for name in scales:
            ones_trace = edit_tensors(
                ones_trace,
                find_tensors_like(clean_trace, name, "input.2"),
                max=1.0,
                min=1.0,
                mean=1.0,
                norm=8.0,
                parameter="",
            )
        matching = close_matching(ones_trace, ones_trace)
        classes = [find_value(matching.target, name, "input.2") for name in scales]
        assert (matching.classes_t[classes] == classes).all()


class TestEquivalentKinds:
    def rename_kind(self, trace, kind, other):
        ops = trace.ops.copy()
        ops["kind"] = ops["kind"].replace(kind, other)
        return replace(trace, ops=ops)

    def test_kinds_that_made_the_same_values_are_equal_where_values_differ(self, trace):
        """An operator that no rule knows: layer 0 shows what it is, and layers 1 to 3 disagree."""
        clean_trace = trace("pt_none")
        unknown = self.rename_kind(clean_trace, "Functional.silu", "Custom.npu_gelu_like")
        matching = start_matching(unknown, clean_trace)
        anchors.pair_by_value(matching)
        kinds_t, kinds_r = structure.find_equivalent_kinds(matching)
        silu = find_op(clean_trace, "Functional.silu.1.forward")
        assert kinds_t[silu] == kinds_r[silu]

    def test_kinds_that_match_once_are_not_equivalent(self, trace):
        clean_trace = trace("pt_none")
        ops = clean_trace.ops.copy()
        once = find_op(clean_trace, "Functional.silu.1.forward")
        ops.loc[once, "kind"] = "Custom.npu_gelu_like"
        matching = start_matching(replace(clean_trace, ops=ops), clean_trace)
        anchors.pair_by_value(matching)
        kinds_t, kinds_r = structure.find_equivalent_kinds(matching)
        assert kinds_t[once] != kinds_r[once]

    def test_kinds_are_equal_to_themselves(self, trace):
        matching = start_matching(trace("pt_none"), trace("pt_none"))
        kinds_t, kinds_r = structure.find_equivalent_kinds(matching)
        assert kinds_t == kinds_r
        assert len(set(kinds_t)) == len(set(matching.kinds_t))


class TestIdleOps:
    def test_backward_records_that_make_nothing_belong_to_paired_calls(self, trace):
        clean_trace = trace("pt_none")
        matching = close_matching(clean_trace, clean_trace)
        backward = find_op(clean_trace, "Functional.linear.12.backward")
        assert matching.ops_t[backward] == -1
        structure.pair_idle_ops(matching)
        assert matching.ops_t[backward] == backward

    def test_layout_ops_that_read_the_same_are_paired(self, trace):
        clean_trace = trace("ms_graph")
        matching = close_matching(clean_trace, clean_trace)
        structure.pair_idle_ops(matching)
        kinds = clean_trace.ops["kind"].to_numpy()
        layouts = np.flatnonzero(
            matching.target.is_layout & np.isin(kinds, ["Reshape", "Transpose"])
        )
        assert len(layouts) == 162
        assert (kinds[matching.ops_t[layouts]] == kinds[layouts]).all()


def test_a_product_inside_a_gelu_is_not_the_one_that_it_gates():
    """x f(x) and x f(y) have one kind and read x, and another value that only one side has."""
    s, x, y = np.random.default_rng(4).standard_normal((3, 6, 5))
    factors = ("linear", [s], x), ("linear", [s], y)
    half, gate, other_gate = np.tanh(x / 2), 1 + np.tanh(x / 2), y * np.tanh(y)
    own = record_calls(
        *factors, ("tanh", [x], half), ("add", [half], gate), ("mul", [x, gate], x * gate)
    )
    gated = record_calls(
        *factors, ("gelu", [y], other_gate), ("mul", [x, other_gate], x * other_gate)
    )
    assert close_matching(own, gated).ops_t[find_op(own, "call.4")] < 0
    assert close_matching(gated, own).ops_t[find_op(gated, "call.3")] < 0


def test_minima_and_their_places_are_paired_in_any_order():
    """MindSpore's operator returns the places first, PyTorch's the minima."""
    s, x = np.random.default_rng(4).standard_normal((2, 6, 5))
    minima, places = x.min(1), x.argmin(1)
    linear = ("linear", [s], x)
    own = record_calls(linear, ("min", [x], (places, minima)))
    other = record_calls(linear, ("min", [x], (minima * 2, places + 1)))
    matching = close_matching(own, other)
    for slot, other_slot in (("output.0", "output.1"), ("output.1", "output.0")):
        value = find_value(matching.target, "call.1", slot)
        assert matching.classes_t[value] == find_value(matching.reference, "call.1", other_slot)


def test_a_mask_is_not_the_complement_of_one_that_the_other_side_has():
    """One minus a mask is another quantity; where one side alone has a mask, it may be wrong."""
    s, x = np.random.default_rng(4).standard_normal((2, 6, 5))
    mask, linear = np.eye(6, 5), ("linear", [s], x)
    own = record_calls(linear, ("mul", [x, mask], x * mask))
    product = ("mul", [x, 1 - mask], x * (1 - mask))
    for other, is_other in (
        (record_calls(linear, ("rsub", [mask], 1 - mask), product), True),
        (record_calls(linear, product), False),
    ):
        matching = start_matching(own, other)
        closure = structure._Closure(matching, structure.find_equivalent_kinds(matching))
        value = find_value(matching.target, "call.1", "input.1")
        complement = find_value(matching.reference, f"call.{1 + is_other}", "input.1")
        assert closure._is_other_quantity(value, complement) == is_other


@pytest.mark.parametrize(
    ("values", "logarithms", "are_exponentials"),
    [
        ((0.1, 0.6), (np.log(0.1), np.log(0.6)), True),
        ((0.1, 0.6), (np.log(0.1), np.log(0.5)), False),
        ((0.0, 0.0), (-np.inf, -np.inf), False),
    ],
)
def test_probabilities_are_known_by_the_extremes_of_their_logarithms(
    values, logarithms, are_exponentials
):
    """kl_div takes the one or the other: what two such ops read besides is no pair."""
    assert structure._are_exponentials(values, logarithms) == are_exponentials


def test_nothing_follows_from_nothing(trace):
    """Without an anchor no op reads anything known."""
    clean_trace = trace("pt_none")
    matching = start_matching(clean_trace, clean_trace)
    structure.pair_by_structure(matching)
    assert (matching.classes_t < 0).all()
    assert find_tensor(clean_trace, FIRST, "output.0") > 0
