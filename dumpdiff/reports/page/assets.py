"""Styles and scripts of a page."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent

TEMPLATES = _FOLDER / "templates"


def read_asset(name: str) -> str:
    """Read a script or style below ``static``."""
    return (_FOLDER / "static" / name).read_text(encoding="utf-8")
