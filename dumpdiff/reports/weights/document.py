"""The report on two checkpoints: what its page says, in which order, and the table and the map that go with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...weight_comparison import CheckpointSummary, Pair, WeightsResult
from ...weight_comparison.summary import format_headline, group_mistakes
from ..alignment.html.heat_map import Cell, HeatMap, build_heat_map
from ..page.packed_tables import Table
from ..page.renderer import Page
from .text import format_size

RELATIONS: Mapping[str, str] = {
    "identical": "every bit, in one dtype",
    "equal": "every value, in two dtypes",
    "rounded": "one side is the other, rounded to nearest once",
    "noise": "off by less than one unit of the coarser dtype",
    "different": "none of these: a mistake is named",
}

_SCRIPTS = ("unpack.js", "elements.js", "hash.js", "frame.js", "table.js", "weights.js")
_SHOWN = 200  #: mistakes, names and problems that the page lists; the table has every parameter, the JSON everything
_EXAMPLES = 20  #: parameters of one mistake that stand below it

_EXPERT = re.compile(r"(?<=\bexperts\.)\d+")


def build_page(result: WeightsResult) -> Page:
    """The page of a result."""
    wrong, said = group_mistakes(result.mistakes), format_headline(result)
    row = {id(pair): row for row, pair in enumerate(result.pairs)}
    context = {
        "result": result,
        "headline": said if result.verdict == "agree" else said.partition(": ")[2],
        "facts": tuple(
            (name, say(result.target), say(result.reference)) for name, say in _FACTS.items()
        ),
        "relations": RELATIONS,
        "counts": Counter(map(get_state, result.pairs)),
        "wrong": tuple(
            (one, tuple((row[id(pair)], pair) for pair in one.pairs[:_EXAMPLES]))
            for one in wrong[:_SHOWN]
        ),
        "wrong_count": len(wrong),
        "lists": tuple(
            (id_, title, names[:_SHOWN], len(names))
            for id_, title, names in (
                ("missing", "Missing in the target", result.missing),
                ("unknown", "Not in the reference", result.unknown),
                ("problems", "Problems found while reading", tuple(map(str, result.problems))),
            )
            if names
        ),
        "grids": build_layer_maps(result.pairs),
    }
    return Page(
        title=f"{_TITLES[result.verdict]}: two checkpoints compared",
        template="weights.html",
        context=context,
        tables={"parameters": build_parameters_table(result.pairs)},
        styles=("page.css", "comparison.css", "weights.css"),
        scripts=_SCRIPTS,
    )


_TITLES = {"agree": "same weights", "differ": "different weights", "inconclusive": "inconclusive"}

_FACTS: Mapping[str, Callable[[CheckpointSummary], str]] = {
    "path": lambda side: side.path,
    "format": lambda side: side.format,
    "names": lambda side: side.family,
    "size": lambda side: f"{side.tensors:,} tensors, {format_size(side.bytes)}",
}


def get_state(pair: Pair) -> str:
    """The relation, where a mistake outweighs a relation that holds after it is undone."""
    return pair.relation if pair.mistake is None else "different"


def get_map_cell(pair: Pair) -> str:
    """The cell of the map that a parameter belongs to: all experts of a layer share one."""
    return _EXPERT.sub("*", pair.path)


def build_parameters_table(pairs: Sequence[Pair]) -> Table:
    """Every field of every pair as a column, in the order of the result."""
    texts = {
        "parameter": [pair.path for pair in pairs],
        "scope": [get_map_cell(pair) for pair in pairs],
        "state": [get_state(pair) for pair in pairs],
        "target": [pair.target for pair in pairs],
        "reference": [pair.reference for pair in pairs],
        "target_dtype": [pair.dtypes[0] for pair in pairs],
        "reference_dtype": [pair.dtypes[1] for pair in pairs],
        "shape": [" × ".join(map(str, pair.shape)) for pair in pairs],
        "part_of": [pair.whole for pair in pairs],
        "paired_by": [pair.evidence for pair in pairs],
        "layout": [pair.layout for pair in pairs],
        "rounding": [pair.rounding for pair in pairs],
        "wrong": [pair.mistake.said if pair.mistake else "" for pair in pairs],
        "kind": [pair.mistake.kind if pair.mistake else "" for pair in pairs],
        "holds": [pair.mistake.holds if pair.mistake else "" for pair in pairs],
    }
    # counts can pass the four bytes of an integer column; as float32 they keep the seven digits that are shown
    numbers: Table = {
        "error": [float(pair.error) for pair in pairs],
        "largest": [float(pair.largest) for pair in pairs],
        "unequal": [float(pair.unequal) for pair in pairs],
        "elements": [float(pair.elements) for pair in pairs],
    }
    # said to be objects, since of no pairs at all numpy would make numbers
    return {name: np.asarray(values, dtype=object) for name, values in texts.items()} | dict(
        numbers
    )


def build_layer_maps(pairs: Sequence[Pair]) -> tuple[HeatMap, ...]:
    """The map: the worst relation of every component of every layer; none if there is nothing to show."""
    cells: dict[str, list[Pair]] = {}
    for pair in pairs:
        cells.setdefault(get_map_cell(pair), []).append(pair)
    return (
        (build_heat_map("", {name: _cell(name, members) for name, members in cells.items()}),)
        if cells
        else ()
    )


def _cell(name: str, members: Sequence[Pair]) -> Cell:
    counts = Counter(map(get_state, members))
    said = ", ".join(f"{counts[relation]} {relation}" for relation in RELATIONS if counts[relation])
    worst = next(relation for relation in reversed(tuple(RELATIONS)) if counts[relation])
    return Cell(worst, False, f"{name}: {worst if len(members) == 1 else said}")
