"""Exchanged parameters: identified by their names, reported where the runs diverge."""

import numpy as np
import pytest
from traces import (
    align_traces,
    edit_tensors,
    find_dependents,
    find_tensors_like,
    find_value,
    locate_divergence,
    record_calls,
    scale_result,
    scale_tensors,
)

from dumpdiff.alignment.weight_products import find_weight_products
from dumpdiff.divergence.parameters import _list_exchanged_weights

Q, K = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
SCORES = "Torch.matmul.2.forward"


@pytest.fixture(scope="module")
def clean_trace(trace):
    return trace("pt_none")


def exchange_names(trace, *pairs):
    """Return the trace with parameters, and their gradients, under each other's name."""
    exchanged_trace = trace
    for column in ("parameter", "gradient_of"):
        names = trace.tensors[column]
        for pair in pairs:
            for name, other_name in (pair, pair[::-1]):
                rows = names.index[names == name]
                exchanged_trace = edit_tensors(exchanged_trace, rows, **{column: other_name})
    return exchanged_trace


@pytest.fixture(scope="module")
def exchanged_trace(clean_trace):
    """The run whose checkpoint had the two weights under each other's name."""
    return exchange_names(clean_trace, (Q, K))


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_an_exchange_and_what_follows_in_its_module_are_one_finding(
    exchanged_trace, clean_trace, is_mirrored
):
    pair = (scale_result(exchanged_trace, SCORES, 1.3, and_after=True), clean_trace)
    (finding,) = locate_divergence(*(pair[::-1] if is_mirrored else pair)).findings
    assert (finding.kind, finding.scope, finding.rank) == ("parameter", "layers.1.attention", 1)
    assert "k.weight holds what layers.1.attention.q.weight holds" in finding.title.replace(
        "q.weight holds what layers.1.attention.k.weight",
        "k.weight holds what layers.1.attention.q.weight",
    )
    assert finding.title.endswith("in the reference; 1 more changed places")
    assert finding.causes[0].name == "weight-swapped"
    assert finding.evidence[-1] == f"the same difference shows at {SCORES} vs {SCORES}"


def test_modules_that_changed_places_are_one_finding(clean_trace):
    layers = ("gate_proj", "up_proj", "down_proj")
    pairs = [[f"model.layers.{n}.mlp.{layer}.weight" for n in (0, 1)] for layer in layers]
    exchanged_trace = exchange_names(clean_trace, *pairs)
    findings = locate_divergence(
        scale_result(exchanged_trace, SCORES, 1.3, and_after=True), clean_trace
    ).findings
    assert [finding.kind for finding in findings] == ["parameter", "introduced"]
    assert findings[0].title == (
        "the parameters of layers.1 hold what those of layers.0 hold in the reference; "
        "5 more changed places"
    )
    assert findings[0].causes[0].text == "layers.1 and layers.0 changed places"
    assert len(findings[0].target_ops) == len(findings[0].reference_ops) == 6


def test_exchanged_names_are_no_finding_if_nothing_diverges(exchanged_trace, clean_trace):
    assert locate_divergence(exchanged_trace, clean_trace).verdict == "aligned"


def test_right_names_are_no_finding(clean_trace):
    findings = locate_divergence(
        scale_result(clean_trace, SCORES, 1.3, and_after=True), clean_trace
    ).findings
    assert [f.kind for f in findings] == ["introduced"]


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_name_that_each_side_gives_to_another_parameter_is_no_finding(clean_trace, is_mirrored):
    """As ``head.weight``, of the attention on one side and of the last layer on the other."""
    renamed = exchange_names(clean_trace, (Q, "model.layers.1.input_layernorm.weight"))
    pair = (clean_trace, renamed) if is_mirrored else (renamed, clean_trace)
    assert locate_divergence(*pair).findings == ()


class TestExchangedProducts:
    """Two weights changed places that have other names in the reference."""

    KEYS, VALUES = "Functional.linear.8.forward", "Functional.linear.9.forward"
    NAMES = ("decoder.1.attention.first.weight", "decoder.1.attention.second.weight")

    @pytest.fixture
    def swapped_trace(self, clean_trace):
        trace = scale_tensors(clean_trace, find_dependents(clean_trace, SCORES), 1.07)
        for slot in ("input.1", "output.0"):
            rows = [find_tensors_like(clean_trace, op, slot) for op in (self.KEYS, self.VALUES)]
            for own_rows, other_rows in (rows, rows[::-1]):
                statistics = clean_trace.tensors.loc[other_rows[0], ["max", "min", "mean", "norm"]]
                trace = edit_tensors(trace, own_rows, **statistics.to_dict())
        for op, name in zip((self.KEYS, self.VALUES), self.NAMES, strict=True):
            rows = find_tensors_like(clean_trace, op, "input.1")
            trace = edit_tensors(trace, rows, parameter=name)
        return trace

    @pytest.mark.parametrize("is_exchanged", [False, True])
    def test_the_place_is_the_weights(self, swapped_trace, clean_trace, is_exchanged):
        pair = (swapped_trace, clean_trace)
        result = locate_divergence(*(pair[::-1] if is_exchanged else pair))
        finding = result.findings[0]
        assert finding.kind == "parameter"
        names = (
            "model.layers.1.self_attn.k_proj.weight",
            "model.layers.1.self_attn.v_proj.weight",
        )
        for name in names if is_exchanged else self.NAMES:
            assert name in finding.title
        assert "changed places: their products are read in each other's place" in finding.title
        assert [finding.target_ops, finding.reference_ops] == [(self.KEYS,), (self.KEYS,)]

    def test_a_sound_pair_has_no_such_finding(self, clean_trace):
        assert locate_divergence(clean_trace, clean_trace).findings == ()


def test_branches_that_changed_places_are_followed_to_their_common_value():
    """Two gates of one value, each with two layers: all their weights changed places."""
    rng = np.random.default_rng(4)
    s, x = rng.standard_normal((2, 6, 5))
    calls, weights, gates = [("linear", [s], x)], rng.standard_normal((2, 2, 5, 5)), []
    for first, second in weights:
        hidden = np.tanh(x @ first)
        gate = np.tanh(hidden @ second)
        calls += [
            ("matmul", [x, first], x @ first),
            ("tanh", [x @ first], hidden),
            ("matmul", [hidden, second], hidden @ second),
            ("tanh", [hidden @ second], gate),
            ("mul", [x, gate], x * gate),
        ]
        gates.append(len(calls) - 1)
    trace = record_calls(*calls)
    alignment = align_traces(trace, trace)
    flow = alignment.target
    products = find_weight_products(flow, alignment.target_kinds)
    product_of_output = {product.output: product for product in products.values()}
    gated = [find_value(flow, f"call.{op}", "output.0") for op in gates]
    expected = [
        tuple(find_value(flow, f"call.{op}", "input.1") for op in ops) for ops in ((1, 6), (3, 8))
    ]
    assert _list_exchanged_weights(alignment, product_of_output, *gated) == expected
    unlike = gated[0], find_value(flow, "call.8", "output.0")
    assert _list_exchanged_weights(alignment, product_of_output, *unlike) == []
