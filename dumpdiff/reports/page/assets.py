"""What a page is made of besides its data: own styles and scripts, and the chart library uPlot.

uPlot (MIT licence) draws axes, scales and zoom in 120 kB. Its files come with the package uplot-python and are read
without importing it; measured against the alternatives in docs/report.md.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ...model.errors import DumpError

_HERE = Path(__file__).parent
_UPLOT = {"uPlot.js": "uplot/static/uPlot.iife.js", "uPlot.css": "uplot/static/uPlot.min.css"}

TEMPLATES = _HERE / "templates"


def check_installed() -> None:
    """Raise DumpError with the command that helps if what only the HTML report needs is not installed."""
    try:
        import jinja2  # noqa: F401

        distribution("uplot-python")
    except (ImportError, PackageNotFoundError):
        raise DumpError(
            "an HTML report needs Jinja2 and uplot-python: pip install 'dumpdiff[html]'"
        ) from None


def text(name: str) -> str:
    """A script or style: ``uPlot.js`` and ``uPlot.css`` of the library, any other of this package."""
    if name not in _UPLOT:
        return (_HERE / "static" / name).read_text(encoding="utf-8")
    return Path(str(distribution("uplot-python").locate_file(_UPLOT[name]))).read_text(
        encoding="utf-8"
    )
