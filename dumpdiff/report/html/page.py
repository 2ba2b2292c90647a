"""One self-contained file from a template, styles, scripts and packed tables; knows nothing of what it shows.

The page can reach nothing outside itself and runs nothing but the scripts put here: its policy (CSP) names their
checksums, and allows no network, no form, no style attribute. Every text that a template prints is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...wording import number
from ..words import percent, printable
from . import assets
from .pack import Table, pack


@dataclass(frozen=True)
class Page:
    """What makes one page."""

    title: str
    template: str  #: extends page.html
    context: Mapping[str, Any]  #: names that the template uses
    tables: Mapping[str, Table]  #: what scripts show row by row
    data: Mapping[str, Any] = field(default_factory=dict)  #: further plain values for scripts
    styles: tuple[str, ...] = ()  #: names of assets, in order
    scripts: tuple[str, ...] = ()


def render(page: Page) -> bytes:
    """The page as UTF-8 HTML. Raises DumpError if the template engine or the chart library is not installed."""
    assets.check_installed()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def safe(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    templates = Environment(
        loader=FileSystemLoader(assets.TEMPLATES),
        autoescape=True,
        finalize=safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=number, percent=percent)
    templates.globals.update(nan=float("nan"))
    styles = [Markup(assets.text(name)) for name in page.styles]
    scripts = [Markup(assets.text(name)) for name in page.scripts]
    html = templates.get_template(page.template).render(
        page.context,
        title=page.title,
        version=__version__,
        policy=_policy(styles, scripts),
        styles=styles,
        scripts=scripts,
        packed=pack(page.tables, page.data),
    )
    return html.encode("utf-8", errors="backslashreplace")


def _policy(styles: list[Any], scripts: list[Any]) -> str:
    """Content-Security-Policy: nothing is fetched, nothing runs or styles but these very texts."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {' '.join(map(_checksum, styles))}",
            f"script-src {' '.join(map(_checksum, scripts))}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
