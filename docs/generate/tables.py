"""Pieces of Markdown for the generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines
    )


def format_code(value: str) -> str:
    """Return a text as inline code, '' for an empty one."""
    if "`" in value:
        return f"`` {value} ``"
    return f"`{value}`" if value else ""
