"""Exchanged parameters: identified by their names, reported where the runs diverge."""

import pytest
from traces import edit_tensors, locate_divergence, scale_result

Q, K = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
SCORES = "Torch.matmul.2.forward"


@pytest.fixture(scope="module")
def clean_trace(trace):
    return trace("pt_none")


@pytest.fixture(scope="module")
def exchanged_trace(clean_trace):
    """The run whose checkpoint had the two weights under each other's name."""
    names = clean_trace.tensors["parameter"]
    rows = {name: names.index[names == name] for name in (Q, K)}
    return edit_tensors(edit_tensors(clean_trace, rows[Q], parameter=K), rows[K], parameter=Q)


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
