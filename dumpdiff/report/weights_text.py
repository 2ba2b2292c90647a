"""The comparison of two checkpoints as a person reads it: the answer first, then what is wrong, once for all layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..weights import Checked, Pair, WeightsResult
from ..wording import number
from . import stages
from .stages import Lines
from .words import percent, printable

_COLOUR = {"same": "bold green", "differ": "bold red", "inconclusive": "bold yellow"}
_MOVES = 4  #: exchanges that are listed
_FEW = 20  #: lines of a kind that are shown without -v
_SAME = {
    "identical": "bit for bit",
    "equal": "in value, held in other dtypes",
    "rounded": "after rounding",
    "noise": "within noise",
    "different": "",
}


@dataclass(frozen=True)
class Told:
    """One mistake, of all parameters that share it."""

    what: str  #: canonical name, with * for numbers that differ
    said: str
    pairs: tuple[Pair, ...]


def headline(result: WeightsResult) -> str:
    """The answer in one line."""
    count = len(result.pairs)
    if result.verdict == "same":
        how = _SAME[result.relation]
        if result.relation == "rounded":
            used = sorted({pair.rounding for pair in result.pairs if pair.rounding})
            how = f"after rounding ({'; '.join(used)})"
        return f"same weights, {how}: {count} parameters, {percent(result.coverage)} of the elements"
    if result.verdict == "inconclusive":
        return f"inconclusive: only {percent(result.coverage)} of the elements could be paired"
    parts = []
    if result.layer_shift is not None:
        parts.append(f"the layers are off by {abs(result.layer_shift)}")
    if result.mistakes:
        first = told(result.mistakes)[0]
        one = f": {first.what}: {first.said}" if not parts else ""
        parts.append(f"{len(result.mistakes)} of {count} parameters are wrong{one}")
    for names, what in ((result.missing, "missing"), (result.unknown, "not in the reference")):
        if names:
            parts.append(f"{len(names)} {what} ({names[0]}{', ...' if len(names) > 1 else ''})")
    return "different weights: " + "; ".join(parts)


def told(mistakes: Sequence[Pair]) -> list[Told]:
    """Mistakes that are the same but for the layer or the expert, together; most parameters first."""
    groups: dict[tuple[str, str, str], list[Pair]] = {}
    for pair in mistakes:
        assert pair.mistake is not None
        kind, name = pair.mistake.kind, pair.whole if pair.whole and pair.mistake.kind.endswith("-order") else pair.path
        key = kind, "" if kind == "rounding" else _masked(name), _masked(pair.mistake.holds or pair.mistake.said)
        groups.setdefault(key, []).append(pair)
    found = []
    for (_, what, _), pairs in groups.items():
        named = pairs[0].path if len(pairs) == 1 else what or "all" if len(pairs) == len(mistakes) else what or "some"
        found.append(Told(named, _said(pairs), tuple(pairs)))
    return sorted(found, key=lambda one: -len(one.pairs))


def _said(pairs: Sequence[Pair]) -> str:
    """What is wrong with all of them, or with one for all."""
    told = [pair.mistake for pair in pairs if pair.mistake is not None]
    if len({mistake.said for mistake in told}) == 1:
        return told[0].said
    if all(mistake.holds for mistake in told):
        moves = dict.fromkeys(
            ", ".join(
                f"{a} for {b}" for a, b in zip(_numbers(mistake.holds), _numbers(pair.path), strict=False) if a != b
            )
            for pair, mistake in zip(pairs, told, strict=True)
        )
        listed = [move for move in moves if move]
        more = f" ({'; '.join(listed[:_MOVES])}{'; ...' if len(listed) > _MOVES else ''})" if listed else ""
        return f"the reference's {_masked(told[0].holds)}{more}"
    return f"{told[0].said} (and the like)"


def _numbers(text: str) -> list[str]:
    return re.findall(r"(?<=\.)\d+(?=\.)", text)


def _masked(text: str) -> str:
    """Without what differs between layers."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "*", text)


def write(result: WeightsResult, console: Console, *, quiet: bool = False, verbose: bool = False) -> None:
    """Print the report; the first line is the answer, unbroken however narrow the console is."""
    console.print(Text(printable(headline(result)), style=_COLOUR[result.verdict]), soft_wrap=True)
    if quiet:
        return
    stages.write_sides(console, *sides(result))
    stages.write_parts(console, parts(result, verbose=verbose))
    console.print()
    console.print(_summary(result))
    if verbose:
        console.print()
        console.print(_table(result.pairs))


def sides(result: WeightsResult) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _side(result.target), _side(result.reference)


def _side(side: Checked) -> str:
    held = f"{side.tensors} tensors, {size(side.bytes)}"
    return f"{side.format}, {side.family} names: {held}, {printable(side.path)}"


def size(count: int) -> str:
    """Bytes as a person says them: MB, GB from a tenth of one on."""
    return f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"


def parts(result: WeightsResult, *, verbose: bool = False) -> Iterator[Lines]:
    """What is wrong, once for all layers, what is missing, and what is to be known besides."""
    few = None if verbose else _FEW
    if result.layer_shift is not None:
        step = result.layer_shift
        said = f"layer i of the target holds layer i {'+' if step > 0 else '-'} {abs(step)} of the reference"
        yield Lines("layers", (said,))
    wrong = (
        f"{one.what}{f' ({len(one.pairs)} parameters)' if len(one.pairs) > 1 else ''}: {one.said}"
        for one in told(result.mistakes)
    )
    yield Lines("wrong", tuple(wrong), few)
    yield Lines("missing in the target", result.missing, few)
    yield Lines("not in the reference", result.unknown, few)
    yield Lines("notes", result.notes, few)
    yield Lines("problems", tuple(map(str, result.problems)), few)


def _summary(result: WeightsResult) -> Text:
    counts = Counter(pair.relation for pair in result.pairs)
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return Text.assemble(("parameters  ", "bold"), f"{said}; {percent(result.coverage)} of the elements compared")


def _table(pairs: Sequence[Pair]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("parameter", "target", "reference", "relation", "error", "layout"):
        table.add_column(column, overflow="fold")
    for pair in pairs:
        said = pair.mistake.said if pair.mistake is not None else ", ".join(filter(None, (pair.layout, pair.rounding)))
        cells = (pair.path, pair.target, pair.reference, pair.relation, number(pair.error), said)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
