"""One self-contained HTML file from a template, styles, scripts and packed tables, of any report.

The page loads nothing from outside itself and runs only its own scripts: its content security
policy names their checksums and allows no network, no form and no style attribute. Every text that
a template prints is escaped. A served page is the same, but asks its server for its tables.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...model.formatting import escape_control, format_number, format_percent
from ..language import get_language, translate
from ..sentences import translate_sentence
from . import assets
from .packed_tables import Table, pack

if TYPE_CHECKING:
    from jinja2 import Environment

#: A number such as 2.0e-7, inside which a line must not break.
_NUMBER = r"-?\d[\d.,]*(?:e-?\d+)?"

#: The page of a triage in the same folder, which all pages that are rendered now link to.
_triage_page: ContextVar[str] = ContextVar("triage_page", default="")


@contextmanager
def link_to_triage(file: str) -> Iterator[None]:
    """Give the pages that are rendered inside a link to that page of the same folder."""
    token = _triage_page.set(file)
    try:
        yield
    finally:
        _triage_page.reset(token)


@dataclass(frozen=True)
class Page:
    """The content of one page."""

    title: str
    template: str  #: extends page.html
    context: Mapping[str, Any]  #: names that the template uses
    tables: Mapping[str, Table]  #: rows that scripts show
    data: Mapping[str, Any] = field(default_factory=dict)  #: further plain values for scripts
    styles: tuple[str, ...] = ()  #: names of assets, in order
    scripts: tuple[str, ...] = ()  #: names of assets, in order
    words: tuple[str, ...] = ()  #: from the tables and the data, which scripts translate


def render(page: Page) -> bytes:
    """Return the page as UTF-8 HTML, with its tables in it."""
    packed = pack(page.tables, _collect_data(page))
    return _render_page(page, base64.b64encode(packed).decode("ascii"))


def render_served(page: Page) -> tuple[bytes, bytes]:
    """Return a page as UTF-8 HTML that asks its server for ``packed``, and what to answer then."""
    return _render_page(page, ""), pack(page.tables, _collect_data(page))


def render_fragment(template: str, context: Mapping[str, Any]) -> bytes:
    """Return a part of a page as UTF-8 HTML, for a script that inserts it."""
    html = _build_environment().get_template(template).render(context)
    return html.encode("utf-8", errors="backslashreplace")


def _render_page(page: Page, packed: str) -> bytes:
    """Return the HTML of a page; without ``packed`` it asks its server for the tables."""
    from markupsafe import Markup

    styles = [Markup(assets.read_asset(name)) for name in page.styles]
    scripts = [Markup(assets.read_asset(name)) for name in page.scripts]
    html = (
        _build_environment()
        .get_template(page.template)
        .render(
            page.context,
            title=page.title,
            version=__version__,
            policy=_build_policy(styles, scripts, is_served=not packed),
            styles=styles,
            scripts=scripts,
            language=get_language(),
            triage_page=_triage_page.get(),
            packed=packed,
        )
    )
    return html.encode("utf-8", errors="backslashreplace")


@cache
def _build_environment() -> Environment:
    """Return the templates, which escape everything that they print."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def escape_controls(value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, Markup):
            return escape_control(value)
        return value

    templates = Environment(
        loader=FileSystemLoader(assets.TEMPLATES),
        autoescape=True,
        finalize=escape_controls,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        number=format_number,
        percent=format_percent,
        prose=_format_prose,
        sentence=translate_sentence,
    )
    templates.globals.update(nan=float("nan"), _=translate)
    return templates


def _collect_data(page: Page) -> dict[str, Any]:
    """Return the plain values for the scripts, with the words that these translate."""
    scripts = [assets.read_asset(name) for name in page.scripts]
    return {**page.data, "words": _translate_words(page, scripts)}


def find_script_messages(script: str) -> list[str]:
    """Return the messages that a script translates."""
    return [json.loads(literal) for literal in re.findall(r'translate\(("[^"]+")', script)]


def _translate_words(page: Page, scripts: Sequence[str]) -> dict[str, str]:
    """Return the translation of everything that the scripts of a page translate."""
    messages = dict.fromkeys(page.words)
    for script in scripts:
        messages |= dict.fromkeys(find_script_messages(script))
    translations = {message: translate(message) for message in messages}
    return {message: text for message, text in translations.items() if text != message}


def _format_prose(sentence: str, names: Sequence[str] = ()) -> Any:
    """Return a sentence as markup: escaped, the given names as code, numbers unbroken."""
    from markupsafe import Markup

    longest_first = sorted(map(re.escape, filter(None, names)), key=len, reverse=True)
    special_pattern = "|".join((*longest_first, _NUMBER))
    markup = Markup("")
    for index, piece in enumerate(re.split(f"({special_pattern})", sentence)):
        if index % 2 == 0:
            form = "{}"
        elif piece in names:
            form = '<code class="op">{}</code>'
        else:
            form = '<span class="nobreak">{}</span>'
        markup += Markup(form).format(escape_control(piece))
    return markup


def _build_policy(styles: Sequence[str], scripts: Sequence[str], *, is_served: bool) -> str:
    """Return a Content-Security-Policy: only these styles and scripts, and no requests.

    A served page may ask its own server for tables and tensors.
    """
    return "; ".join(
        (
            "default-src 'none'",
            *(("connect-src 'self'",) if is_served else ()),
            f"style-src {' '.join(map(_compute_checksum, styles))}",
            f"script-src {' '.join(map(_compute_checksum, scripts))}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _compute_checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
