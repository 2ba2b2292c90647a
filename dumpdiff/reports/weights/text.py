"""The comparison of two checkpoints as a person reads it: the answer first, then what is wrong, once for all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...model.formatting import number, percent, printable
from ...weight_comparison import CheckpointSummary, Pair, WeightsResult
from ...weight_comparison.summary import format_headline, group_mistakes
from ..stages.sections import COLORS, ListBlock, write_blocks, write_sides

_FEW = 20  #: lines of a kind that are shown without -v


def write(
    result: WeightsResult, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the report; the first line is the answer, unbroken however narrow the console is."""
    console.print(
        Text(printable(format_headline(result)), style=COLORS[result.verdict]), soft_wrap=True
    )
    if quiet:
        return
    write_sides(console, *format_sides(result))
    write_blocks(console, build_blocks(result, verbose=verbose))
    console.print()
    console.print(_summary(result))
    if verbose:
        console.print()
        console.print(_table(result.pairs))


def format_sides(result: WeightsResult) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _side(result.target), _side(result.reference)


def _side(side: CheckpointSummary) -> str:
    held = f"{side.tensors} tensors, {format_size(side.bytes)}"
    return f"{side.format}, {side.family} names: {held}, {printable(side.path)}"


def format_size(count: int) -> str:
    """Bytes as a person says them: MB, GB from a tenth of one on."""
    return f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"


def build_blocks(result: WeightsResult, *, verbose: bool = False) -> Iterator[ListBlock]:
    """What is wrong, once for all layers, what is missing, and what is to be known besides."""
    few = None if verbose else _FEW
    if result.layer_shift is not None:
        step = result.layer_shift
        said = f"layer i of the target holds layer i {'+' if step > 0 else '-'} {abs(step)} of the reference"
        yield ListBlock("layers", (said,))
    wrong = (
        f"{one.parameter}{f' ({len(one.pairs)} parameters)' if len(one.pairs) > 1 else ''}: {one.message}"
        for one in group_mistakes(result.mistakes)
    )
    yield ListBlock("wrong", tuple(wrong), few)
    yield ListBlock("missing in the target", result.missing, few)
    yield ListBlock("not in the reference", result.unknown, few)
    yield ListBlock("notes", result.notes, few)
    yield ListBlock("problems", tuple(map(str, result.problems)), few)


def _summary(result: WeightsResult) -> Text:
    counts = Counter(pair.relation for pair in result.pairs)
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return Text.assemble(
        ("parameters  ", "bold"), f"{said}; {percent(result.coverage)} of the elements compared"
    )


def _table(pairs: Sequence[Pair]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("parameter", "target", "reference", "relation", "error", "layout"):
        table.add_column(column, overflow="fold")
    for pair in pairs:
        said = (
            pair.mistake.said
            if pair.mistake is not None
            else ", ".join(filter(None, (pair.layout, pair.rounding)))
        )
        cells = (pair.path, pair.target, pair.reference, pair.relation, number(pair.error), said)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
