"""One self-contained file from a template, styles, scripts and packed tables; knows nothing of what it shows.

The page can reach nothing outside itself and runs nothing but the scripts put here: its policy (CSP) names their
checksums, and allows no network, no form, no style attribute. Every text that a template prints is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...model.formatting import number, percent, printable
from . import assets
from .packed_tables import Table, pack


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
        return (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        )

    templates = Environment(
        loader=FileSystemLoader(assets.TEMPLATES),
        autoescape=True,
        finalize=safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=number, percent=percent, prose=_prose)
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


#: What a line must not be broken in: a number such as 2.0e-7.
_NUMBER = r"-?\d[\d.,]*(?:e-?\d+)?"


def _prose(sentence: str, names: Sequence[str] = ()) -> Any:
    """A sentence as markup: escaped, the given names set as code, numbers unbroken."""
    from markupsafe import Markup

    longest_first = sorted(map(re.escape, filter(None, names)), key=len, reverse=True)
    pieces = re.split(f"({'|'.join((*longest_first, _NUMBER))})", sentence)
    plain, code, unbroken = map(
        Markup, ("{}", '<code class="op">{}</code>', '<span class="nobreak">{}</span>')
    )
    forms = (
        plain if not place % 2 else code if piece in names else unbroken
        for place, piece in enumerate(pieces)
    )
    return Markup("").join(
        form.format(printable(piece)) for form, piece in zip(forms, pieces, strict=True)
    )


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
