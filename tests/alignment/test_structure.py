"""Ops of one kind that read the same are the same, whatever came out of them."""

from dataclasses import replace

import numpy as np
from traces import edit_tensors, find_tensors_like, start_matching, find_op, scale_result, select_ops, find_tensor, find_value, remove_ops

from dumpdiff.alignment import anchors, structure

FIRST = "Tensor.__add__.1.forward"  #: the residual of layer 0: nearly all of the forward pass depends on it
Q, K, V = (
    35,
    37,
    39,
)  #: ops that project to queries, keys and values in layer 1, each followed by its module call


def closed(target, reference):
    pairs = start_matching(target, reference)
    anchors.pair_by_value(pairs)
    structure.pair_by_structure(pairs)
    return pairs


def ops_by_name(pairs):
    names_t, names_r = (
        flow.trace.ops["name"].to_numpy() for flow in (pairs.target, pairs.reference)
    )
    return {names_t[t]: names_r[r] for t, r in enumerate(pairs.ops_t.tolist()) if r >= 0}


def computing(trace, first):
    """Forward ops from the first on that make a value; module calls left out."""
    chosen = (trace.ops["phase"] == "forward") & (trace.ops["level"] == "op")
    return [o for o in np.flatnonzero(chosen).tolist() if o >= find_op(trace, first)]


def wrong(pairs):
    return {ours: theirs for ours, theirs in ops_by_name(pairs).items() if ours != theirs}


class TestAcrossADivergence:
    def test_everything_computed_from_it_is_still_paired(self, trace):
        whole = trace("pt_none")
        pairs = closed(scale_result(whole, FIRST, 1.07, and_after=True), whole)
        after = computing(whole, FIRST)
        assert len(after) > 50
        assert (pairs.ops_t[after] == after).all()
        assert not wrong(pairs)

    def test_the_order_of_independent_ops_does_not_matter(self, trace):
        whole = trace("pt_none")
        values_first = [*range(Q), V, V + 1, K, K + 1, Q, Q + 1, *range(V + 2, len(whole.ops))]
        pairs = closed(select_ops(scale_result(whole, FIRST, 1.07, and_after=True), values_first), whole)
        assert not wrong(pairs)
        assert ops_by_name(pairs)["Functional.linear.9.forward"] == "Functional.linear.9.forward"

    def test_values_of_the_wrong_size_stop_it(self, trace):
        whole = trace("pt_none")
        apart = scale_result(whole, FIRST, 1.07, and_after=True)
        rows = find_tensors_like(apart, "Functional.silu.1.forward", "output.0")
        pairs = closed(edit_tensors(apart, rows, size=9999), whole)
        silu = find_value(pairs.target, "Functional.silu.1.forward", "output.0")
        assert pairs.classes_t[silu] == -1

    def test_an_op_that_only_one_side_has_leaves_the_rest_paired(self, trace):
        whole = trace("pt_none")
        scale = "Tensor.__truediv__.1.forward"
        pairs = closed(remove_ops(scale_result(whole, FIRST, 1.07, and_after=True), scale), whole)
        assert not wrong(pairs)
        open_ops = [o for o in computing(whole, FIRST) if pairs.ops_r[o] < 0]
        assert [whole.ops["name"].iat[o] for o in open_ops] == [scale]


class TestUpward:
    def test_a_weight_that_differs_is_what_paired_ops_read_beside_what_agrees(self, trace):
        """No record names it: its reader's other input is paired, and so is the operator."""
        whole = trace("v6.0_api_stack_summary")
        weight = find_tensors_like(whole, "Functional.linear.18.forward", "input.1")
        output = find_tensors_like(whole, "Functional.linear.18.forward", "output.0")
        faulty = edit_tensors(edit_tensors(whole, weight, max=0.7, norm=20.0), output, max=7.0, norm=99.0)
        pairs = closed(faulty, whole)
        ours = find_value(pairs.target, "Functional.linear.18.forward", "input.1")
        assert pairs.classes_t[ours] == find_value(
            pairs.reference, "Functional.linear.18.forward", "input.1"
        )
        assert pairs.evidence[ours] == "structure"

    def test_scales_that_are_all_ones_are_told_apart_by_what_reads_them(self, trace):
        whole = trace("pt_none")
        scales = [f"Functional.layer_norm.{number}.forward" for number in range(9)]
        ones = edit_tensors(whole, range(len(whole.tensors)), parameter="")
        for name in scales:
            ones = edit_tensors(
                ones,
                find_tensors_like(whole, name, "input.2"),
                max=1.0,
                min=1.0,
                mean=1.0,
                norm=8.0,
                parameter="",
            )
        pairs = closed(ones, ones)
        found = [find_value(pairs.target, name, "input.2") for name in scales]
        assert (pairs.classes_t[found] == found).all()


class TestEquivalentKinds:
    def renamed(self, trace, kind, other):
        ops = trace.ops.copy()
        ops["kind"] = ops["kind"].replace(kind, other)
        return replace(trace, ops=ops)

    def test_kinds_that_made_the_same_values_are_equal_where_values_differ(self, trace):
        """An operator that no rule knows: layer 0 shows what it is, and layers 1 to 3 disagree."""
        whole = trace("pt_none")
        unknown = self.renamed(whole, "Functional.silu", "Custom.npu_gelu_like")
        pairs = start_matching(unknown, whole)
        anchors.pair_by_value(pairs)
        kinds_t, kinds_r = structure.find_equivalent_kinds(pairs)
        silu = find_op(whole, "Functional.silu.1.forward")
        assert kinds_t[silu] == kinds_r[silu]

    def test_kinds_seen_once_are_not(self, trace):
        whole = trace("pt_none")
        ops = whole.ops.copy()
        once = find_op(whole, "Functional.silu.1.forward")
        ops.loc[once, "kind"] = "Custom.npu_gelu_like"
        pairs = start_matching(replace(whole, ops=ops), whole)
        anchors.pair_by_value(pairs)
        kinds_t, kinds_r = structure.find_equivalent_kinds(pairs)
        assert kinds_t[once] != kinds_r[once]

    def test_kinds_are_equal_to_themselves(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        kinds_t, kinds_r = structure.find_equivalent_kinds(pairs)
        assert kinds_t == kinds_r
        assert len(set(kinds_t)) == len(set(pairs.kinds_t))


class TestIdleOps:
    def test_backward_records_that_make_nothing_belong_to_paired_calls(self, trace):
        whole = trace("pt_none")
        pairs = closed(whole, whole)
        backward = find_op(whole, "Functional.linear.12.backward")
        assert pairs.ops_t[backward] == -1
        structure.pair_idle_ops(pairs)
        assert pairs.ops_t[backward] == backward

    def test_layout_ops_that_read_the_same_are_paired(self, trace):
        whole = trace("ms_graph")
        pairs = closed(whole, whole)
        structure.pair_idle_ops(pairs)
        kinds = whole.ops["kind"].to_numpy()
        layouts = np.flatnonzero(pairs.target.is_layout & np.isin(kinds, ["Reshape", "Transpose"]))
        assert len(layouts) == 162
        assert (kinds[pairs.ops_t[layouts]] == kinds[layouts]).all()


def test_nothing_follows_from_nothing(trace):
    """Without an anchor no op reads anything known."""
    whole = trace("pt_none")
    pairs = start_matching(whole, whole)
    structure.pair_by_structure(pairs)
    assert (pairs.classes_t < 0).all()
    assert find_tensor(whole, FIRST, "output.0") > 0
