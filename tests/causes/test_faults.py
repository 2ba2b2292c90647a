"""Every fault of the recording scripts' model: the first cause is that fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dumpdiff import Finding

#: Fault of fixtures/model_spec.py, the cause that must be listed first, and its parameters.
FAULTS = [
    ("w1", "weight-scaled", {"factor": 1.01}),
    ("embedding_row", "weight-rows", {"rows": 1.0}),
    ("head_order", "heads-permuted", {"block": 16.0}),
    ("eps", "epsilon", {"epsilon": 1e-2}),
    ("eps_subtle", "epsilon", {"epsilon": 1e-4}),
    ("attn_scale", "scale", {"factor": 0.25}),
    ("mask", "mask-shifted", {}),
    ("rope_layout", "rope-layout", {}),
    ("rope_theta", "rope-theta", {"theta": 5e5}),
    ("gelu", "activation-kind", {}),
    ("residual", "residual-scale", {"factor": 0.9}),
    ("half_probs", "low-precision", {}),
    ("grad_stop", "gradient-stopped", {}),
]


@pytest.mark.record
@pytest.mark.parametrize(
    ("fault", "cause_name", "parameters"), FAULTS, ids=[fault for fault, *_ in FAULTS]
)
def test_the_first_cause_is_the_fault(
    find_first: Callable[..., Finding], fault: str, cause_name: str, parameters: dict[str, float]
) -> None:
    finding = find_first(fault, "mindspore")
    assert [cause.name for cause in finding.causes[:1]] == [cause_name]
    assert finding.unexplained == ""
    cause = finding.causes[0]
    assert f"residual {cause.residual:.1e}"[:12] in cause.text or "residual 0" in cause.text
    for name, value in parameters.items():
        assert cause.parameters[name] == pytest.approx(value, rel=1e-2)


@pytest.mark.record
@pytest.mark.parametrize(
    ("fault", "cause_name"),
    [("gelu", "activation-kind"), ("mask", "mask-shifted"), ("w1", "weight-scaled")],
)
def test_a_fault_of_the_reference_is_found(
    find_first: Callable[..., Finding], fault: str, cause_name: str
) -> None:
    assert find_first(fault, "pytorch").causes[0].name == cause_name


def test_the_shipped_demo_names_the_epsilon(dump: Callable[[str], object]) -> None:
    from dumpdiff import align

    result = align(str(dump("demo_mindspore")), str(dump("demo_pytorch")))
    finding = result.first_divergence
    assert finding is not None
    assert finding.side == "target"
    assert [cause.name for cause in finding.causes] == ["epsilon"]
    assert "behaves as epsilon = 0.01; the reference uses 1e-05; residual" in finding.causes[0].text
    assert any("recomputed in float64" in line for line in finding.evidence)


def test_a_scaled_weight_is_reported_with_its_factor(dump: Callable[[str], object]) -> None:
    from dumpdiff import align

    finding = align(str(dump("ms_graph_bug_w1")), str(dump("v6.0_api_stack"))).first_divergence
    assert finding is not None
    assert finding.causes[0].name == "weight-scaled"
    assert finding.causes[0].parameters["factor"] == pytest.approx(1.01, rel=1e-4)
