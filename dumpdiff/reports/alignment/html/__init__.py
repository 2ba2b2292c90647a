"""The result as one self-contained HTML file: to be opened, mailed, printed.

``document`` puts the page together from ``findings`` (with ``dataflow_diagram`` and
``tensor_charts``), ``heat_map`` and ``tables``.
"""

from __future__ import annotations

from typing import IO

from ....model.result import Result
from ...language import use_chosen_language
from ...page.renderer import render
from ..markdown import to_markdown
from .document import build_page

__all__ = ["write"]


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report; equal results give equal bytes."""
    markdown = to_markdown(result)
    with use_chosen_language():
        stream.write(render(build_page(result, markdown)))
