"""Real pairs of dumps, compared and drawn once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from traces import compare_traces, load_shipped_rules

from dumpdiff.comparison import Comparison
from dumpdiff.divergence import locate
from dumpdiff.figures import collect_finding_contexts
from dumpdiff.model.defaults import MIN_COVERAGE
from dumpdiff.model.finding_context import FindingContext
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Trace

Drawn = tuple[Comparison, Result, tuple[FindingContext, ...]]


def drawn_of(target: Trace, reference: Trace) -> Drawn:
    comparison = compare_traces(target, reference)
    result = locate(comparison, load_shipped_rules(), MIN_COVERAGE)
    return comparison, result, collect_finding_contexts(comparison, result, load_shipped_rules())


@pytest.fixture(scope="session")
def drawn(trace: Callable[[str], Trace]) -> Callable[[str, str], Drawn]:
    """``drawn("demo_mindspore", "demo_pytorch")``: the comparison, its result, and the finding contexts of that."""
    return cache(lambda target, reference: drawn_of(trace(target), trace(reference)))
