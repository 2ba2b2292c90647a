"""Text from a dump stays text: no mention, no link, no end of a table cell, no HTML."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.model.formatting import escape_control
from dumpdiff.reports.formats.markdown import format_code, format_prose, format_table, shorten

from ..pages import Page


def read_code(markdown: str) -> str:
    """Return the text that is shown for code, in either of its two forms."""
    if markdown.startswith("`"):
        return markdown[1:-1]
    return html.unescape(markdown.removeprefix("<code>").removesuffix("</code>"))


def remove_code(markdown: str) -> str:
    return re.sub(r"`[^`]*`|<code>[^<]*</code>", "", markdown)


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Torch.add.0.forward", "`Torch.add.0.forward`"),
        ("", ""),
        ("a|b", "<code>a&#124;b</code>"),
        ("`x`", "<code>&#96;x&#96;</code>"),
        ("<script>", "`<script>`"),
        ("a\nb", r"<code>a&#92;nb</code>"),
    ],
)
def test_a_name_is_code(text: str, markdown: str) -> None:
    assert format_code(text) == markdown


@given(st.text(min_size=1, max_size=100))
def test_any_name_is_shown_as_it_is_on_one_line(text: str) -> None:
    markdown = format_code(text)
    assert read_code(markdown) == escape_control(text)
    assert "\n" not in markdown
    assert "|" not in markdown


@pytest.mark.parametrize(
    "text",
    [
        "relative L2 4.3e-3, inputs agree to 2.0e-7; 83 % confidence",
        "epsilon = 0.01; the reference uses 1e-05",
        "float64",
        "(if asked)",
    ],
)
def test_words_and_numbers_stay_as_they_are(text: str) -> None:
    assert format_prose(text) == text


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        (
            "layers.1.norm, add (Default/Add-op12) vs x:",
            "`layers.1.norm`, add (`Default/Add-op12`) vs x:",
        ),
        ("layout transpose(0,2,1).", "layout `transpose(0,2,1)`."),
        ("ask @torvalds about #2", "ask `@torvalds` about `#2`"),
        ("see deadbeef, :tada: and $x$", "see `deadbeef`, `:tada`: and `$x$`"),
        ("https://example.com", "`https://example.com`"),
        ("**bold** ![x](y)", "`**bold**` `![x](y)`"),
        ("1) item", "`1)` item"),
        ("- item - by item", "`-` item - by item"),
    ],
)
def test_names_in_a_sentence_are_code(text: str, markdown: str) -> None:
    assert format_prose(text) == markdown


@given(st.text(max_size=200))
def test_nothing_outside_of_code_has_an_effect(text: str) -> None:
    assert not set(remove_code(format_prose(text))) & set("@#$`*_<>[]!|~\\&{}\n")


@given(st.text(max_size=200))
def test_rendered_markdown_has_the_same_text_and_only_code(text: str) -> None:
    for before, after in (("", ""), ("- ", ""), ("| a |\n| :-- |\n| ", " |")):
        page = Page(f"{before}{format_prose(text)}{after}")
        assert page.tags <= {"p", "code", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
        assert page.tags & {"ul", "li"} == ({"ul", "li"} if before == "- " else set())
        assert page.text.split()[before.count("a") :] == escape_control(text).split()


def test_both_ends_of_a_long_name_are_kept() -> None:
    assert shorten("a" * 300 + "b" * 300, 20) == "a" * 10 + " ... " + "b" * 10
    assert len(format_code("x" * 10_000)) < 300


def test_a_table_has_a_rule_and_numbers_on_the_right() -> None:
    assert (
        format_table(("op", "error"), [("`a`", "1")], numeric=("error",))
        == "| op | error |\n| :-- | --: |\n| `a` | 1 |"
    )
