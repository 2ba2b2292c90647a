"""The comparison of two checkpoints in a terminal: the answer, then each mistake once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...model.formatting import escape_control, format_number, format_percent
from ...weight_comparison import CheckpointSummary, Pair, WeightsResult
from ...weight_comparison.summary import MistakeGroup, format_headline, group_mistakes
from ..formats.blocks import ListBlock, write_blocks, write_sides
from ..language import translate, use_chosen_language
from ..sentences import translate_sentence
from ..stages.stage import COLORS, write_first_line

_SHORT = 20  #: lines of a kind that are shown without -v


@use_chosen_language()
def write(
    result: WeightsResult, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the report; the first line is the answer, short and unbroken on any console."""
    write_first_line("", format_headline(result), COLORS[result.verdict], console, quiet=quiet)
    if quiet:
        return
    write_sides(console, *format_sides(result))
    write_blocks(console, build_blocks(result, verbose=verbose))
    console.print()
    console.print(_format_counts(result))
    if verbose:
        console.print()
        console.print(_build_table(result.pairs))


def format_sides(result: WeightsResult) -> tuple[str, str]:
    """Describe target and reference, one line each."""
    return _format_side(result.target), _format_side(result.reference)


def _format_side(side: CheckpointSummary) -> str:
    return translate(
        "{format}, {family} names: {count} tensors, {size}, {path}",
        format=side.format,
        family=side.family,
        count=side.tensors,
        size=format_size(side.bytes),
        path=escape_control(side.path),
    )


def format_size(n_bytes: int) -> str:
    """Format a number of bytes in MB, or in GB from 0.1 GB on."""
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.3g} MB"


def build_blocks(result: WeightsResult, *, verbose: bool = False) -> Iterator[ListBlock]:
    """Yield the mistakes, once for all layers, then missing and unknown parameters, and notes."""
    limit = None if verbose else _SHORT
    if result.layer_shift is not None:
        sign = "+" if result.layer_shift > 0 else "-"
        source_layer = f"layer i {sign} {abs(result.layer_shift)} of the reference"
        sentence = translate_sentence(f"layer i of the target holds {source_layer}")
        yield ListBlock("layers", (sentence,))
    mistakes = map(_format_mistakes, group_mistakes(result.mistakes))
    yield ListBlock("wrong", tuple(mistakes), limit)
    yield ListBlock("missing in the target", result.missing, limit)
    yield ListBlock("not in the reference", result.unknown, limit)
    yield ListBlock("notes", tuple(map(translate_sentence, result.notes)), limit)
    yield ListBlock("problems", tuple(map(str, result.problems)), limit)


def _format_mistakes(group: MistakeGroup) -> str:
    parameters = group.parameter
    if len(group.pairs) > 1:
        parameters += translate(" ({count} parameters)", count=len(group.pairs))
    return f"{parameters}{translate(': ')}{translate_sentence(group.message)}"


def _format_counts(result: WeightsResult) -> Text:
    counts = Counter(pair.relation for pair in result.pairs)
    relations = translate(", ").join(
        f"{count} {translate(relation)}" for relation, count in counts.items()
    )
    share = format_percent(result.coverage)
    coverage = translate("{share} of the elements compared", share=share)
    label = f"{translate('parameters')}  "
    return Text.assemble((label, "bold"), f"{relations}{translate('; ')}{coverage}")


def _build_table(pairs: Sequence[Pair]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("parameter", "target", "reference", "relation", "error", "layout"):
        table.add_column(translate(column), overflow="fold")
    for pair in pairs:
        orders = filter(None, (pair.layout, pair.rounding))
        layout = translate(", ").join(map(translate_sentence, orders))
        if pair.mistake is not None:
            layout = translate_sentence(pair.mistake.summary)
        error = format_number(pair.error)
        cells = (pair.path, pair.target, pair.reference, translate(pair.relation), error, layout)
        table.add_row(*(Text(escape_control(cell)) for cell in cells))
    return table
