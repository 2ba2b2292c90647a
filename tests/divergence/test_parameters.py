"""Exchanged parameters: identified by their names, reported where the runs diverge."""

import pytest
from traces import (
    edit_tensors,
    find_dependents,
    find_tensors_like,
    locate_divergence,
    scale_result,
    scale_tensors,
)

Q, K = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
SCORES = "Torch.matmul.2.forward"


@pytest.fixture(scope="module")
def clean_trace(trace):
    return trace("pt_none")


@pytest.fixture(scope="module")
def exchanged_trace(clean_trace):
    """The run whose checkpoint had the two weights under each other's name."""
    trace = clean_trace
    for column in ("parameter", "gradient_of"):
        names = clean_trace.tensors[column]
        for name, other_name in ((Q, K), (K, Q)):
            trace = edit_tensors(trace, names.index[names == name], **{column: other_name})
    return trace


def test_where_the_same_module_diverges_the_exchange_comes_first(exchanged_trace, clean_trace):
    findings = locate_divergence(
        scale_result(exchanged_trace, SCORES, 1.3, and_after=True), clean_trace
    ).findings
    assert [(f.kind, f.scope) for f in findings[:2]] == [
        ("parameter", "layers.1.attention.k"),
        ("parameter", "layers.1.attention.q"),
    ]
    assert [f.rank for f in findings] == list(range(1, len(findings) + 1))
    assert (
        findings[0].title
        == "parameter layers.1.attention.k.weight holds what layers.1.attention.q.weight holds "
        "in the reference"
    )
    assert findings[0].causes[0].name == "weight-swapped"


def test_exchanged_names_are_no_finding_if_nothing_diverges(exchanged_trace, clean_trace):
    assert locate_divergence(exchanged_trace, clean_trace).verdict == "aligned"


def test_right_names_are_no_finding(clean_trace):
    findings = locate_divergence(
        scale_result(clean_trace, SCORES, 1.3, and_after=True), clean_trace
    ).findings
    assert [f.kind for f in findings] == ["introduced"]


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
