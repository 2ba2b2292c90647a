"""The report as one HTML file that needs nothing else: to be opened, mailed, printed.

``tables``, ``heat``, ``findings`` (with ``graph`` and ``drawings``) -> what there is to show; ``divergence`` -> the
page of a result; ``weights`` -> the page of two checkpoints; ``page``, ``pack`` and ``assets`` -> one file of any page,
they know nothing of results.
"""

from __future__ import annotations

from typing import IO

from ....model.result import Result
from ...page.assets import check_installed
from ...page.renderer import render
from ..markdown import to_markdown
from .document import page

__all__ = ["check_installed", "write"]


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report; equal results give equal bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    stream.write(render(page(result, to_markdown(result))))
