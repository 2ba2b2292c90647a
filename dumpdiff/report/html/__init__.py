"""The report as one HTML file that needs nothing else: to be opened, mailed, printed.

``pack`` -> compressed columns, ``heat``, ``graph`` and ``drawings`` -> shapes, ``divergence`` -> what is said,
``page`` -> one file. ``page``, ``pack`` and ``assets`` know nothing of results and serve other pages too.
"""

from __future__ import annotations

from typing import IO

from ...result import Result
from ..markdown import to_markdown
from .assets import check_installed
from .divergence import page
from .page import render

__all__ = ["check_installed", "write"]


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report; equal results give equal bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    stream.write(render(page(result, to_markdown(result))))
