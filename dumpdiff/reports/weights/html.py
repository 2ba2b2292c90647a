"""The comparison of two checkpoints as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import IO

from ...weight_comparison import WeightsResult
from ..page.renderer import render
from .document import build_page


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write the page; equal results give equal bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    stream.write(render(build_page(result)))
