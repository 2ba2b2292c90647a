"""Assertions in the words of the specification, with a message that shows what dumpdiff said instead."""

from __future__ import annotations

import model_spec

from dumpdiff.model.result import Result
from dumpdiff.model.finding import Finding
from dumpdiff.rulebook import load_rules


def said(result: Result) -> str:
    """The result in a few lines, for a failure message."""
    lines = [f"{result.verdict}; coverage {result.coverage}", *result.notes]
    lines += [
        f"{f.rank}. {f.kind} {f.phase} {f.scope or '-'}: {f.title}" for f in result.findings[:5]
    ]
    return "\n".join(lines)


def assert_aligned(result: Result) -> None:
    """Verdict aligned, not one finding."""
    assert result.verdict == "aligned", said(result)
    assert not result.findings, said(result)


def assert_compared(result: Result, side: str, **shares: float) -> None:
    """``assert_compared(result, "reference", forward=0.95)``: at least this share of a side's ops was compared."""
    for phase, share in shares.items():
        assert result.coverage[side][phase]["share"] >= share, said(result)


def located(result: Result) -> Finding:
    """The first divergence of a result that must have one."""
    assert result.verdict == "diverged", said(result)
    assert result.first_divergence is not None, said(result)
    return result.first_divergence


def assert_located(result: Result, fault: str, layers: int = 2) -> None:
    """The first divergence is in the module, and of the phase, that the fault was put into."""
    size = model_spec.Size(layers=layers)
    scope = load_rules([]).resolve_scope(model_spec.build(size, fault).scope)
    first = located(result)
    assert first.phase == model_spec.FAULTS[fault.partition("@")[0]].phase, said(result)
    assert f"{first.scope}.".startswith(f"{scope}."), f"expected {scope}\n{said(result)}"
