"""The comparison of two checkpoints as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import IO

from ...weights import WeightsResult
from ..html.page import render
from ..html.weights import page


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write the page; equal results give equal bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    stream.write(render(page(result)))
