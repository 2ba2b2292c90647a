"""Assertions in the words of the specification, with messages that show the result."""

from __future__ import annotations

import model_spec

from dumpdiff.model.finding import Finding
from dumpdiff.model.result import Result
from dumpdiff.rulebook import load_rules


def describe_result(result: Result) -> str:
    """Return the result in a few lines, for a failure message."""
    lines = [f"{result.verdict}; coverage {result.coverage}", *result.notes]
    lines += [
        f"{f.rank}. {f.kind} {f.phase} {f.scope or '-'}: {f.title}" for f in result.findings[:5]
    ]
    return "\n".join(lines)


def assert_aligned(result: Result) -> None:
    """Assert the verdict aligned, and no findings."""
    assert result.verdict == "aligned", describe_result(result)
    assert not result.findings, describe_result(result)


def assert_compared(result: Result, side: str, **shares: float) -> None:
    """Assert that at least a share of a side's ops was compared, as in ``forward=0.95``."""
    for phase, share in shares.items():
        assert result.coverage[side][phase]["share"] >= share, describe_result(result)


def get_first_divergence(result: Result) -> Finding:
    """Return the first divergence of a result that must have one."""
    assert result.verdict == "diverged", describe_result(result)
    assert result.first_divergence is not None, describe_result(result)
    return result.first_divergence


def assert_located(result: Result, fault: str, layers: int = 2) -> None:
    """Assert that the first divergence is in the module and the phase of the fault."""
    size = model_spec.Size(layers=layers)
    scope = load_rules([]).resolve_scope(model_spec.build(size, fault).scope)
    first = get_first_divergence(result)
    assert first.phase == model_spec.FAULTS[fault.partition("@")[0]].phase, describe_result(result)
    assert f"{first.scope}.".startswith(f"{scope}."), f"expected {scope}\n{describe_result(result)}"
