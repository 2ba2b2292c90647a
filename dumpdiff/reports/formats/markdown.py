"""Pieces of GitHub and GitLab flavoured Markdown in which text from a dump stays text.

Both turn ``@name`` into a mention, ``#2`` into a link, ``:tada:`` into a picture and ``$x$`` into a formula, after
they have rendered backslashes away; none of it happens in code. So whatever is no plain word or number becomes code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...model.formatting import printable

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?"
#: A word, number or sign as sentences have them. A long hexadecimal word can be a link to a commit.
_PLAIN = re.compile(
    rf"(?![0-9a-f]{{7,40}}$)(?:[A-Za-z]+(?:[-'][A-Za-z]+)*[0-9]{{0,2}}|{_NUMBER}|[-=%/])"
)
_BULLET = re.compile(
    r"[-=]|[0-9]+[.)]"
)  # at the start of a line the sign of a list, or of a heading
_WORD = re.compile(
    r"(\(?)(.+?)([,.;:]?)", re.DOTALL
)  # an opening bracket, what it is about, punctuation
_NAME, _SENTENCE = 240, 1500  # characters that are shown of one
_ROOM = 60_000  # characters: one comment on GitHub holds 65,536


def comment(parts: Iterable[str]) -> str:
    """Parts that are Markdown already, as one text that fits into a comment; of those that do not it says so."""
    said: list[str] = []
    for part in parts:
        room = _ROOM - sum(map(len, said))
        said.append(part if len(part) < room else "*Left out here: too long for one comment.*")
    return "\n\n".join(said) + "\n"


def code(text: str, longest: int = _NAME) -> str:
    """Text as code, on one line, cut in its middle if longer; '' stays ''."""
    said = shortened(printable(text), longest)
    if not said:
        return ""
    if not set(said) & set("`|\\") and said == said.strip():
        return f"`{said}`"
    # A backtick would end the code; in a table a bar would end the cell, and backslashes count there as well.
    return (
        f"<code>{''.join(c if c.isalnum() or c in ' ./-' else f'&#{ord(c)};' for c in said)}</code>"
    )


def prose(text: str) -> str:
    """A sentence: plain words and numbers as they are, every name in it as code; its middle cut out if it is long."""
    first, *others = shortened(printable(text), _SENTENCE).split() or [""]
    return " ".join(
        [code(first) if _BULLET.fullmatch(first) else _word(first), *map(_word, others)]
    ).strip()


def _word(word: str) -> str:
    """A word without spaces; '' stays ''."""
    found = _WORD.fullmatch(word)
    if found is None:
        return code(word)
    before, name, after = found.groups()
    if name.count(")") > name.count("(") and name.endswith(
        ")"
    ):  # it belongs to a bracket that was opened outside
        name, after = name[:-1], f"){after}"
    return f"{before}{name if _PLAIN.fullmatch(name) else code(name)}{after}"


def shortened(text: str, longest: int) -> str:
    """Both ends of a text that is longer than that, since names differ at either."""
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A table of cells that are Markdown already; columns in ``right`` hold numbers."""
    rule = ["--:" if name in right else ":--" for name in header]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def block(lines: Iterable[str]) -> str:
    """Lines for a shell, to be copied as they are."""
    said = [printable(line) for line in lines]
    longest = max((len(ticks) for line in said for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}sh", *said, fence])


def details(summary: str, body: str) -> str:
    """Something to unfold; ``summary`` is a few plain words."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def items(lines: Iterable[str]) -> str:
    """A list of lines that are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)
