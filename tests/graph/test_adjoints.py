"""Which value is the gradient of which: what a graph's backward pass tells agrees with what API records say."""

import pytest
from traces import align_traces, load_shipped_rules, find_value

from dumpdiff import read
from dumpdiff.graph import find_gradients


def of(flow):
    return find_gradients(flow, [load_shipped_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]])


@pytest.fixture(scope="module")
def clean(recorded):
    """Two runs that agree, so that values alone say which gradient is which."""
    found = align_traces(read(recorded("mindspore")), read(recorded("pytorch")))
    sure = found.classes[found.classes["evidence"].isin(["value", "parameter"])]
    return found, dict(zip(sure["target"].tolist(), sure["reference"].tolist(), strict=True))


class TestRecorded:
    """PyTorch: backward records name their call."""

    def test_the_gradient_of_what_a_call_makes_is_what_its_backward_record_is_given(self, flow):
        side = flow("pt_none")
        made = find_value(side, "Functional.linear.4.forward", "output.0")
        assert of(side).by_value[made] == find_value(side, "Functional.linear.4.backward", "input.0")

    def test_what_goes_back_is_told_by_output_and_input(self, flow):
        side = flow("pt_none")
        made, given = (
            find_value(side, "Functional.silu.1.forward", slot) for slot in ("output.0", "input.0")
        )
        assert of(side).by_edge[made, given, False] == find_value(
            side, "Functional.silu.1.backward", "output.0"
        )

    def test_a_parameter_has_the_gradient_that_is_named_after_it(self, flow):
        side = flow("pt_none")
        names, gradients_of = side.list_column("parameter"), side.list_column("gradient_of")
        found = {
            names[v]: gradients_of[g]
            for v, g in of(side).by_value.items()
            if names[v] and gradients_of[g]
        }
        assert len(found) > 20
        assert all(name == gradient for name, gradient in found.items())

    def test_a_value_with_several_readers_keeps_their_sum_where_a_module_hands_that_back(
        self, flow
    ):
        side = flow("pt_none")
        read_thrice = find_value(side, "Functional.layer_norm.2.forward", "output.0")
        summed = find_value(
            side, "Module.model.layers.1.self_attn.LlamaAttention.backward.0", "output.0"
        )
        assert of(side).by_value[read_thrice] == summed


@pytest.mark.record
class TestInferred:
    """MindSpore's graph mode: the backward pass is more ops, and nothing says whose gradient they make."""

    def test_it_is_the_gradient_that_the_other_framework_recorded(self, clean):
        found, partner = clean
        ours, theirs = of(found.target), of(found.reference)
        known = [
            (g, theirs.by_value[partner[v]])
            for v, g in ours.by_value.items()
            if g in partner and partner.get(v) in theirs.by_value
        ]
        assert len(known) > 60
        assert [pair for pair in known if partner[pair[0]] != pair[1]] == []

    def test_so_is_what_goes_back_through_single_ops(self, clean):
        found, partner = clean
        ours, theirs = of(found.target), of(found.reference)
        known = [
            (back, theirs.by_edge[key])
            for (made, given, detour), back in ours.by_edge.items()
            if (key := (partner.get(made, -1), partner.get(given, -1), detour)) in theirs.by_edge
            and back in partner
        ]
        assert len(known) > 40
        assert [pair for pair in known if partner[pair[0]] != pair[1]] == []

    def test_most_values_that_the_other_framework_has_a_gradient_of_have_one(self, clean):
        found, partner = clean
        ours, theirs = of(found.target), of(found.reference)
        wanted = {r for t, r in partner.items() if r in theirs.by_value}
        assert len({partner[v] for v in ours.by_value if v in partner} & wanted) > 0.8 * len(wanted)

    def test_an_input_that_reaches_the_output_in_two_ways_is_told_apart(self, clean):
        side = clean[0].target
        kinds = [load_shipped_rules().resolve_kind(kind) for kind in side.trace.ops["kind"]]
        activations = [
            (kinds[side.producers[other]], detour)
            for made, given, detour in of(side).by_edge
            for other in side.reads[side.producers[made]]
            if kinds[side.producers[made]] == "mul"
            and side.producers[other] >= 0
            and given != other
        ]
        assert ("sigmoid", True) in activations
        assert ("sigmoid", False) not in activations
