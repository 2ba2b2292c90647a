"""The result as one self-contained HTML file: to be opened, mailed, printed.

``document`` puts the page together from ``findings`` (with ``dataflow_diagram`` and
``tensor_charts``), ``heat_map`` and ``tables``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import IO

from ....model.result import Result
from ...language import use_chosen_language
from ...page.renderer import Page, render
from ..markdown import to_markdown
from .document import build_page

__all__ = ["build_served_page", "write"]


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report; equal results give equal bytes."""
    markdown = to_markdown(result)
    with use_chosen_language():
        stream.write(render(build_page(result, markdown)))


def build_served_page(result: Result) -> Page:
    """Return the report for a server, which answers questions about single pairs, too."""
    page = build_page(result, to_markdown(result))
    return replace(
        page,
        styles=(*page.styles, "served.css"),
        scripts=("alignment/pair_views.js", *page.scripts),
    )
