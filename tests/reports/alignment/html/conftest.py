"""The report on the shipped pair of the demo, compared once."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment import html


def write_page(result: Result) -> bytes:
    stream = io.BytesIO()
    html.write(result, stream)
    return stream.getvalue()


@pytest.fixture(scope="session")
def aligned(dump: Callable[[str], Path]) -> Callable[[str, str], Result]:
    """Return ``aligned("ms_graph", "pt_none")``: the cached result of two dumps, with contexts."""
    return cache(
        lambda target, reference: dumpdiff.align(
            dump(target), dump(reference), finding_contexts=True
        )
    )


@pytest.fixture(scope="session")
def demo(aligned: Callable[[str, str], Result]) -> Result:
    """The pair of ``make demo``: one finding."""
    return aligned("demo_mindspore", "demo_pytorch")


@pytest.fixture(scope="session")
def demo_page(demo: Result) -> bytes:
    return write_page(demo)
