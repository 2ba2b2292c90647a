"""Parameters in each other's place: told by their names, believed where the runs part."""

import pytest
from traces import edit_tensors, locate_divergence, scale_result

Q, K = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
SCORES = "Torch.matmul.2.forward"


@pytest.fixture(scope="module")
def whole(trace):
    return trace("pt_none")


@pytest.fixture(scope="module")
def exchanged(whole):
    """The run whose checkpoint had the two weights under each other's name: the values of q are called k."""
    names = whole.tensors["parameter"]
    rows = {name: names.index[names == name] for name in (Q, K)}
    return edit_tensors(edit_tensors(whole, rows[Q], parameter=K), rows[K], parameter=Q)


def test_where_the_same_module_parts_the_exchange_comes_first(exchanged, whole):
    found = locate_divergence(scale_result(exchanged, SCORES, 1.3, and_after=True), whole).findings
    assert [(f.kind, f.scope) for f in found[:2]] == [
        ("parameter", "layers.1.attention.k"),
        ("parameter", "layers.1.attention.q"),
    ]
    assert [f.rank for f in found] == list(range(1, len(found) + 1))
    assert (
        found[0].title
        == "parameter layers.1.attention.k.weight holds what layers.1.attention.q.weight holds in the reference"
    )
    assert found[0].causes[0].name == "weight-swapped"


def test_where_nothing_parts_it_is_another_way_to_name_them(exchanged, whole):
    assert locate_divergence(exchanged, whole).verdict == "aligned"


def test_right_names_are_no_finding(whole):
    found = locate_divergence(scale_result(whole, SCORES, 1.3, and_after=True), whole).findings
    assert [f.kind for f in found] == ["introduced"]
