"""Real pairs of dumps, compared and drawn once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from traces import compared, shipped

from dumpdiff.comparison import Comparison
from dumpdiff.divergence import locate
from dumpdiff.figures import finding_contexts
from dumpdiff.model.defaults import MIN_COVERAGE
from dumpdiff.model.finding_context import Closeup
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Trace

Drawn = tuple[Comparison, Result, tuple[Closeup, ...]]


def drawn_of(target: Trace, reference: Trace) -> Drawn:
    comparison = compared(target, reference)
    result = locate(comparison, shipped(), MIN_COVERAGE)
    return comparison, result, finding_contexts(comparison, result, shipped())


@pytest.fixture(scope="session")
def drawn(trace: Callable[[str], Trace]) -> Callable[[str, str], Drawn]:
    """``drawn("demo_mindspore", "demo_pytorch")``: the comparison, its result, and the closeups of that."""
    return cache(lambda target, reference: drawn_of(trace(target), trace(reference)))
