"""Styles and scripts of a page: those of this package, and the chart library uPlot.

uPlot (MIT license) draws axes, scales and zoom in 120 kB. Its files come with the package
uplot-python and are read without importing it. docs/report.md compares it with the alternatives.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ...model.errors import DumpError

_FOLDER = Path(__file__).parent
_UPLOT = {"uPlot.js": "uplot/static/uPlot.iife.js", "uPlot.css": "uplot/static/uPlot.min.css"}

TEMPLATES = _FOLDER / "templates"


def check_installed() -> None:
    """Check that the packages that only an HTML report needs are installed.

    Raises DumpError with the command that installs them.
    """
    try:
        import jinja2  # noqa: F401

        distribution("uplot-python")
    except (ImportError, PackageNotFoundError):
        raise DumpError(
            "an HTML report needs Jinja2 and uplot-python: pip install 'dumpdiff[html]'"
        ) from None


def read_asset(name: str) -> str:
    """Read a script or style: ``uPlot.js``, ``uPlot.css``, or a file below ``static``."""
    if name in _UPLOT:
        file = Path(str(distribution("uplot-python").locate_file(_UPLOT[name])))
    else:
        file = _FOLDER / "static" / name
    return file.read_text(encoding="utf-8")
