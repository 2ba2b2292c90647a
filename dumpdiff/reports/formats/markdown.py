"""Markdown for GitHub and GitLab in which text from a dump stays text.

Both turn ``@name`` into a mention, ``#2`` into a link, ``:tada:`` into a picture and ``$x$`` into a
formula, after they have removed backslashes. None of this happens in code, so everything that is
not a plain word or number becomes code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...model.formatting import escape_control

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?"
#: A word, number or sign of a sentence. A long hexadecimal word can be a link to a commit.
_PLAIN = re.compile(
    rf"(?![0-9a-f]{{7,40}}$)(?:[A-Za-z]+(?:[-'][A-Za-z]+)*[0-9]{{0,2}}|{_NUMBER}|[-=%/])"
)
#: What makes a list or a heading at the start of a line.
_BULLET = re.compile(r"[-=]|[0-9]+[.)]")
#: An opening bracket, the word itself, punctuation.
_WORD = re.compile(r"(\(?)(.+?)([,.;:]?)", re.DOTALL)
_MAX_NAME, _MAX_SENTENCE = 240, 1500  #: characters that are shown of one
_MAX_COMMENT = 60_000  #: characters: a comment on GitHub holds 65,536


def format_comment(sections: Iterable[str]) -> str:
    """Join sections of Markdown into a text that fits into one comment.

    A section that does not fit is replaced by a note.
    """
    included_sections: list[str] = []
    for section in sections:
        room = _MAX_COMMENT - sum(map(len, included_sections))
        fits = len(section) < room
        included_sections.append(section if fits else "*Omitted: too long for one comment.*")
    return "\n\n".join(included_sections) + "\n"


def format_code(text: str, limit: int = _MAX_NAME) -> str:
    """Format text as code on one line, with its middle cut out if it is longer; '' stays ''."""
    shown_text = shorten(escape_control(text), limit)
    if not shown_text:
        return ""
    if not set(shown_text) & set("`|\\") and shown_text == shown_text.strip():
        return f"`{shown_text}`"
    # A backtick would end the code. In a table a bar would end the cell, and backslashes count.
    return f"<code>{''.join(map(_escape_character, shown_text))}</code>"


def _escape_character(character: str) -> str:
    is_safe = character.isalnum() or character in " ./-"
    return character if is_safe else f"&#{ord(character)};"


def format_prose(text: str) -> str:
    """Format a sentence: plain words and numbers unchanged, every name in it as code.

    The middle of a long sentence is cut out.
    """
    first, *other_words = shorten(escape_control(text), _MAX_SENTENCE).split() or [""]
    first_word = format_code(first) if _BULLET.fullmatch(first) else _format_word(first)
    return " ".join([first_word, *map(_format_word, other_words)]).strip()


def _format_word(word: str) -> str:
    """Format a word without spaces; '' stays ''."""
    match = _WORD.fullmatch(word)
    if match is None:
        return format_code(word)
    bracket, name, punctuation = match.groups()
    if name.count(")") > name.count("(") and name.endswith(")"):
        # The closing bracket belongs to one that was opened in an earlier word.
        name, punctuation = name[:-1], f"){punctuation}"
    return f"{bracket}{name if _PLAIN.fullmatch(name) else format_code(name)}{punctuation}"


def shorten(text: str, limit: int) -> str:
    """Return a text, or both ends of it if it is longer, since names differ at either end."""
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[str] = ()
) -> str:
    """Format a table of cells that are Markdown already; ``numeric`` columns are right-aligned."""
    rule = ["--:" if name in numeric else ":--" for name in header]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def format_shell_block(lines: Iterable[str]) -> str:
    """Format lines for a shell, to be copied as they are."""
    commands = [escape_control(line) for line in lines]
    backticks = re.findall("`+", "\n".join(commands))
    longest = max(map(len, backticks), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}sh", *commands, fence])


def format_details(summary: str, body: str) -> str:
    """Format a section that can be unfolded; ``summary`` is a few plain words."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def format_list(lines: Iterable[str]) -> str:
    """Format a list of lines that are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)
