"""Markdown as it looks when rendered."""

from __future__ import annotations

from html.parser import HTMLParser

from markdown_it import MarkdownIt


class Page(HTMLParser):
    """Tags, text and cells of rendered Markdown (CommonMark, raw HTML, tables, as on GitHub)."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.rows: list[int] = []  #: cells of each row of each table
        self.feed(MarkdownIt("commonmark").enable("table").render(markdown))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_data(self, data: str) -> None:
        self.text += data
