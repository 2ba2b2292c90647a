"""Real pairs of dumps, compared once per session."""

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

DrawnPair = tuple[Comparison, Result, tuple[FindingContext, ...]]


def draw(target: Trace, reference: Trace) -> DrawnPair:
    """Return the comparison of two traces, its result, and the finding contexts."""
    comparison = compare_traces(target, reference)
    result = locate(comparison, load_shipped_rules(), MIN_COVERAGE)
    return comparison, result, collect_finding_contexts(comparison, result)


@pytest.fixture(scope="session")
def draw_pair(trace: Callable[[str], Trace]) -> Callable[[str, str], DrawnPair]:
    """Return ``draw_pair("ms_graph", "pt_none")``: comparison, result, finding contexts."""
    return cache(lambda target, reference: draw(trace(target), trace(reference)))
