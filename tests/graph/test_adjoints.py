"""Which value is the gradient of which: the inferred gradients agree with the recorded ones."""

from itertools import chain

import numpy as np
import pytest
from traces import align_traces, find_value, load_shipped_rules

from dumpdiff import read
from dumpdiff.graph import (
    adjoints,
    build_flow,
    find_gradients,
    find_returned_gradients,
    inferred_gradients,
)
from dumpdiff.model.trace import (
    BACKWARD,
    FORWARD,
    Source,
    Trace,
    build_op_table,
    build_tensor_table,
)


def compute_gradients(flow):
    return find_gradients(
        flow, [load_shipped_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    )


@pytest.fixture(scope="module")
def clean_pairs(recorded):
    """Two runs that agree, so that values alone identify every gradient."""
    alignment = align_traces(read(recorded("mindspore")), read(recorded("pytorch")))
    certain_rows = alignment.classes[alignment.classes["evidence"].isin(["value", "parameter"])]
    return alignment, dict(
        zip(certain_rows["target"].tolist(), certain_rows["reference"].tolist(), strict=True)
    )


class TestRecorded:
    """PyTorch: backward records name their call."""

    def test_the_gradient_of_what_a_call_makes_is_what_its_backward_record_is_given(self, flow):
        side = flow("pt_none")
        output = find_value(side, "Functional.linear.4.forward", "output.0")
        assert compute_gradients(side).by_value[output] == find_value(
            side, "Functional.linear.4.backward", "input.0"
        )

    def test_gradients_are_found_by_output_and_input(self, flow):
        side = flow("pt_none")
        output, input_value = (
            find_value(side, "Functional.silu.1.forward", slot) for slot in ("output.0", "input.0")
        )
        assert compute_gradients(side).by_edge[output, input_value, False] == find_value(
            side, "Functional.silu.1.backward", "output.0"
        )

    def test_a_parameter_has_the_gradient_that_is_named_after_it(self, flow):
        side = flow("pt_none")
        names, gradients_of = side.list_column("parameter"), side.list_column("gradient_of")
        alignment = {
            names[v]: gradients_of[g]
            for v, g in compute_gradients(side).by_value.items()
            if names[v] and gradients_of[g]
        }
        assert len(alignment) > 20
        assert all(name == gradient for name, gradient in alignment.items())

    def test_a_value_with_several_consumers_keeps_their_sum_where_a_module_hands_that_back(
        self, flow
    ):
        side = flow("pt_none")
        read_thrice = find_value(side, "Functional.layer_norm.2.forward", "output.0")
        summed = find_value(
            side, "Module.model.layers.1.self_attn.LlamaAttention.backward.0", "output.0"
        )
        assert compute_gradients(side).by_value[read_thrice] == summed


@pytest.mark.record
class TestRepeats:
    def test_the_terms_of_a_repeated_sum_have_a_share_of_its_gradient_too(self, flow, monkeypatch):
        side = flow("pt_none")
        total, branch = (
            find_value(side, "Tensor.__add__.4.forward", slot) for slot in ("output.0", "input.1")
        )
        monkeypatch.setattr(adjoints, "count_repeats", lambda flow: {total: 2})
        gradients = compute_gradients(side)
        assert gradients.by_value[branch] == gradients.by_value[total]
        assert gradients.repeats[branch] == 2


class TestInferred:
    """MindSpore's graph mode: no record says whose gradient a backward op computes."""

    def test_the_inferred_gradient_is_the_one_that_the_other_framework_recorded(self, clean_pairs):
        alignment, partner = clean_pairs
        gradients_t, gradients_r = (
            compute_gradients(alignment.target),
            compute_gradients(alignment.reference),
        )
        gradient_pairs = [
            (g, gradients_r.by_value[partner[v]])
            for v, g in gradients_t.by_value.items()
            if g in partner and partner.get(v) in gradients_r.by_value
        ]
        assert len(gradient_pairs) > 60
        assert [pair for pair in gradient_pairs if partner[pair[0]] != pair[1]] == []

    def test_so_is_what_goes_back_through_single_ops(self, clean_pairs):
        alignment, partner = clean_pairs
        gradients_t, gradients_r = (
            compute_gradients(alignment.target),
            compute_gradients(alignment.reference),
        )
        gradient_pairs = [
            (back, gradients_r.by_edge[key])
            for (output, input_value, detour), back in gradients_t.by_edge.items()
            if (key := (partner.get(output, -1), partner.get(input_value, -1), detour))
            in gradients_r.by_edge
            and back in partner
        ]
        assert len(gradient_pairs) > 40
        assert [pair for pair in gradient_pairs if partner[pair[0]] != pair[1]] == []

    def test_most_values_with_a_gradient_in_the_other_framework_have_one(self, clean_pairs):
        alignment, partner = clean_pairs
        gradients_t, gradients_r = (
            compute_gradients(alignment.target),
            compute_gradients(alignment.reference),
        )
        expected_values = {r for t, r in partner.items() if r in gradients_r.by_value}
        assert len(
            {partner[v] for v in gradients_t.by_value if v in partner} & expected_values
        ) > 0.8 * len(expected_values)

    def test_an_input_that_reaches_the_output_in_two_ways_has_a_detour(self, clean_pairs):
        side = clean_pairs[0].target
        kinds = [load_shipped_rules().resolve_kind(kind) for kind in side.trace.ops["kind"]]
        activations = [
            (kinds[side.producers[other]], detour)
            for output, input_value, detour in compute_gradients(side).by_edge
            for other in side.reads[side.producers[output]]
            if kinds[side.producers[output]] == "mul"
            and side.producers[other] >= 0
            and input_value != other
        ]
        assert ("sigmoid", True) in activations
        assert ("sigmoid", False) not in activations


def test_a_bias_that_a_module_returns_has_the_gradient_of_its_backward_record():
    """Megatron-LM adds the bias later; the module returns the product and the bias."""
    ops = build_op_table(
        {
            "name": ["Module.proj.forward.0", "Module.proj.backward.0"],
            "kind": ["Module.Linear", "Module.Linear"],
            "level": ["module", "module"],
            "phase": [FORWARD, BACKWARD],
            "forward": [-1, 0],
        }
    )
    slots = ["output.0", "output.1", "parameter.bias", "input.0", "input.1"]
    numbers = [3.0, 1.5, 1.5, 0.3, 0.2]
    tensors = build_tensor_table(
        {
            "op": [0, 0, 0, 1, 1],
            "slot": slots,
            "slot_kind": [slot.partition(".")[0] for slot in slots],
            "dtype": ["float32"] * 5,
            "shape": [(4, 8), (8,), (8,), (4, 8), (8,)],
            "size": [32, 8, 8, 32, 8],
            "parameter": ["", "", "proj.bias", "", ""],
            "max": numbers,
            "min": [-number for number in numbers],
            "mean": [0.1 * number for number in numbers],
            "norm": [2.5 * number for number in numbers],
        }
    )
    side = build_flow(Trace(Source("/dump", "msprobe", "", "pytorch"), ops, tensors))
    bias, gradient = side.tensor_class[2], side.tensor_class[4]
    assert find_returned_gradients(side) == {bias: gradient}
    assert find_gradients(side, ["linear", "linear"]).by_value[bias] == gradient


def build_side(calls, parameter=0.0, forward_calls=()):
    """Return the flow of calls (phase, kind, inputs, outputs).

    Every tensor is a matrix, given by a number that identifies it; ``parameter`` is one of them.
    Without the ``forward_calls`` of all calls, it is one of graph mode.
    """
    ops = build_op_table(
        {
            "name": [f"op{number}" for number in range(len(calls))],
            "kind": [kind for _, kind, *_ in calls],
            "level": ["op"] * len(calls),
            "phase": [phase for phase, *_ in calls],
            "forward": list(forward_calls) or [-1] * len(calls),
        }
    )
    rows = [
        (op, f"{kind}.{n}", kind, number)
        for op, (*_, inputs, outputs) in enumerate(calls)
        for kind, numbers in (("input", inputs), ("output", np.atleast_1d(outputs).tolist()))
        for n, number in enumerate(numbers)
    ]
    op_column, slots, slot_kinds, numbers = map(list, zip(*rows, strict=True))
    tensors = build_tensor_table(
        {
            "op": op_column,
            "slot": slots,
            "slot_kind": slot_kinds,
            "dtype": ["float32"] * len(rows),
            "shape": [(8, 8)] * len(rows),
            "size": [64] * len(rows),
            "parameter": ["w" if number == parameter else "" for number in numbers],
            "max": [1.011 * number for number in numbers],
            "min": [-1.013 * number for number in numbers],
            "mean": [0.1017 * number for number in numbers],
            "norm": [2.519 * number for number in numbers],
        }
    )
    return build_flow(Trace(Source("/dump", "statistics", "", "mindspore"), ops, tensors))


def test_a_parameter_that_a_mask_leaves_as_it_is_has_no_inferred_gradient():
    """The numbers before the mask and after it are the same, and their gradients are not."""
    weight, x, y = 3.0, 2.0, 5.0
    side = build_side(
        [(FORWARD, "Mul", [weight, 1.0], weight), (FORWARD, "MatMul", [x, weight], y)], weight
    )
    assert side.tensor_class[0] == side.tensor_class[2], "one value before the mask and after it"
    assert inferred_gradients._list_kept_parameters(side) == {side.tensor_class[0]}


def test_the_gradient_of_what_is_computed_once_and_differentiated_twice_is_the_sum():
    """A compiler joins equal calls, but their gradients have different inputs."""
    weight, normalized, terms, total = 3.0, 5.0, (13.0, 17.0), 30.0
    inputs, outputs, targets = (19.0, 21.0), (23.0, 29.0), (51.0, 57.0)
    differences, gradients = (41.0, 43.0), (7.0, 11.0)
    terms_of_outputs = [
        [
            (BACKWARD, "Sub", [outputs[n], targets[n]], differences[n]),
            (BACKWARD, "MatMul", [differences[n], inputs[n]], gradients[n]),
            (BACKWARD, "L2NormalizeGrad", [weight, normalized, gradients[n]], terms[n]),
        ]
        for n in range(2)
    ]
    side = build_side(
        [
            (FORWARD, "L2Normalize", [weight], normalized),
            *((FORWARD, "MatMul", [inputs[n], normalized], outputs[n]) for n in range(2)),
            *chain.from_iterable(terms_of_outputs),
            (BACKWARD, "AddN", list(terms), total),
        ],
        weight,
    )
    gradient = compute_gradients(side).by_value[side.tensor_class[0]]
    assert gradient == find_value(side, "op9", "output.0")


class TestKnownGradients:
    """What the other side knows is taken over."""

    CALLS = ((FORWARD, "Log", [3.0], 5.0), (BACKWARD, "Div", [7.0, 3.0], 11.0))

    def test_gradients_follow_from_a_known_one(self):
        side = build_side(self.CALLS)
        x, y, gradient, result = side.tensor_class[[0, 1, 2, 4]].tolist()
        assert find_gradients(side, ["log", "div"]).by_value == {}
        assert find_gradients(side, ["log", "div"], {y: gradient}).by_value[x] == result

    def test_the_gradient_of_a_parameter_is_what_its_terms_are_added_up_to(self):
        side = build_side([*self.CALLS, (BACKWARD, "AddN", [11.0, 13.0], 24.0)], parameter=3.0)
        x, y, gradient = side.tensor_class[[0, 1, 2]].tolist()
        gradients = find_gradients(side, ["log", "div", "add"], {y: gradient})
        assert gradients.by_value[x] == find_value(side, "op2", "output.0")

    def test_a_sum_with_the_numbers_of_its_term_is_followed_once(self):
        sums = [(BACKWARD, "AddN", [11.0, 13.0], 24.0), (BACKWARD, "AddN", [24.0, -13.0], 11.0)]
        side = build_side([*self.CALLS, *sums], parameter=3.0)
        x, y, gradient = side.tensor_class[[0, 1, 2]].tolist()
        gradients = find_gradients(side, ["log", "div", "add", "add"], {y: gradient})
        assert gradients.by_value[x] == find_value(side, "op3", "output.0")

    def test_a_maximum_gives_the_gradient_to_its_larger_input(self):
        """MindSpore halves it where both are equal, before it selects."""
        x, y, gradient, result = 3.0, 5.0, 7.0, 11.0
        side = build_side(
            [
                (FORWARD, "Maximum", [x], y),
                (BACKWARD, "Less", [x], 13.0),
                (BACKWARD, "FillV2", [], 17.0),
                (BACKWARD, "Div", [gradient], 3.7),
                (BACKWARD, "Select", [13.0, 17.0, gradient], result),
            ]
        )
        values = {n: find_value(side, f"op{n}", "output.0") for n in range(5)}
        given = find_value(side, "op3", "input.0")
        kinds = ["maximum", "lt", "full", "div", "where"]
        gradients = find_gradients(side, kinds, {values[0]: given}).by_value
        assert gradients[find_value(side, "op0", "input.0")] == values[4]

    def test_what_flows_back_to_two_sums_of_one_gradient_is_spread_once(self):
        """A compiler merges equal calls: the sums of cosines and of sines have one gradient."""
        sums = [(FORWARD, "ReduceSum", [n], n + 100.0) for n in (3.0, 5.0)]
        back = [(BACKWARD, "Mul", [8.0, 9.0], 7.0), (BACKWARD, "Tile", [7.0], 23.0)]
        side = build_side([*sums, *back])
        gradient, spread = (find_value(side, "op3", slot) for slot in ("input.0", "output.0"))
        known = {find_value(side, f"op{n}", "output.0"): gradient for n in range(2)}
        gradients = find_gradients(side, ["sum", "sum", "mul", "tile"], known)
        terms = [find_value(side, f"op{n}", "input.0") for n in range(2)]
        assert [gradients.by_value[term] for term in terms] == [spread, spread]

    def test_a_sum_that_rounding_is_added_to_has_the_gradient_of_its_value(self):
        """What flows back through the maximum that a softmax subtracts is nothing but rounding."""
        side = build_side(
            [
                (FORWARD, "Log", [3.0], 5.0),
                (FORWARD, "Exp", [3.0], 6.0),
                (BACKWARD, "Div", [7.0, 3.0], 11.0),
                (BACKWARD, "Mul", [8.0, 6.0], 1e-9),
                (BACKWARD, "AddN", [11.0, 1e-9], 11.0),
            ]
        )
        values = {n: find_value(side, f"op{n}", "output.0") for n in range(4)}
        given = [find_value(side, f"op{n}", "input.0") for n in (2, 3)]
        gradients = find_gradients(
            side,
            ["log", "exp", "div", "mul", "add"],
            dict(zip((values[0], values[1]), given, strict=True)),
        )
        assert gradients.by_value[find_value(side, "op0", "input.0")] == values[2]


def test_what_flows_back_to_the_state_of_a_cell_is_a_share():
    """The output of the cell is computed from its state, inside of the op."""
    side = build_side([(FORWARD, "LSTMCell", [3.0, 5.0], [7.0, 11.0])])
    output, state = (find_value(side, "op0", f"output.{n}") for n in range(2))
    assert set(find_gradients(side, ["lstm"]).repeats) == {state}
    assert output != state


@pytest.mark.parametrize("n_readers", [1, 2])
def test_an_op_that_adds_zeros_has_the_gradient_of_one_reader(n_readers):
    given, gradient = 3.0, 13.0
    readers = [(FORWARD, "Mul", [given, 5.0 + n], 17.0 + 4 * n) for n in range(n_readers - 1)]
    calls = [(FORWARD, "Add", [given, 0.0], given), *readers, (BACKWARD, "Add", [gradient], 29.0)]
    side = build_side(calls, forward_calls=[-1] * n_readers + [0])
    value = int(side.tensor_class[0])
    assert value == find_value(side, "op0", "output.0")
    by_value = find_gradients(side, ["add", *["mul"] * (n_readers - 1), "add"]).by_value
    assert (value in by_value) == (n_readers == 1)
