"""What a golden check found, as blocks that a terminal and other outputs show."""

from __future__ import annotations

from ...golden_reference import GoldenCheck, ValueCheck
from ...model.stage import Stage
from ..formats.blocks import Block, ListBlock, TableBlock
from ..language import translate


def build_stage(check: GoldenCheck) -> Stage:
    """Return the answer in the form of all commands."""
    evidence = tuple(format_difference(item) for item in check.differences[:10])
    return Stage("golden", check.verdict, check.headline, evidence)


def format_difference(item: ValueCheck) -> str:
    """Return 'Functional.linear.0.forward output.0: statistics differ by 1.0e-2 (model.py:46)'."""
    source = f" ({item.source})" if item.source else ""
    return f"{item.op} {item.slot}: {item.message}{source}"


def build_blocks(check: GoldenCheck, limit: int) -> list[Block]:
    """Return the differences, and what could not be read."""
    rows = [
        (
            item.op,
            item.slot,
            translate(item.phase),
            translate(item.state),
            item.message,
            item.source,
        )
        for item in check.differences[:limit]
    ]
    columns = ("slot", "phase", "state", "what", "source")
    blocks: list[Block] = [TableBlock("op", columns, tuple(rows))]
    n_more = len(check.differences) - len(rows)
    if n_more > 0:
        more = translate(
            "... {count} more, --limit {limit} shows them",
            count=n_more,
            limit=len(check.differences),
        )
        blocks.append(ListBlock("more", (more,)))
    blocks.append(ListBlock("problems", tuple(map(str, check.problems)), limit))
    return blocks
