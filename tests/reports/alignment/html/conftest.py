"""The report on the shipped pair of the demo, compared once."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.figures import collect_finding_contexts
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment import html


def write_page(result: Result) -> bytes:
    stream = io.BytesIO()
    html.write(result, stream)
    return stream.getvalue()


@pytest.fixture(scope="session")
def aligned(dump: Callable[[str], Path]) -> Callable[[str, str], Result]:
    """Return ``aligned("ms_graph", "pt_none")``: the cached result of two dumps, with contexts."""

    @cache
    def align(target: str, reference: str) -> Result:
        result = dumpdiff.align(dump(target), dump(reference))
        return add_contexts(result)

    return align


def add_contexts(result: Result) -> Result:
    comparison = result.backend.comparison  # type: ignore[union-attr]
    return replace(result, finding_contexts=collect_finding_contexts(comparison, result))


@pytest.fixture(scope="session")
def demo(aligned: Callable[[str, str], Result]) -> Result:
    """The pair of ``make demo``: one finding."""
    return aligned("demo_mindspore", "demo_pytorch")


@pytest.fixture(scope="session")
def demo_page(demo: Result) -> bytes:
    return write_page(demo)
