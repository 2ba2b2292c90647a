"""The comparison of two checkpoints as one self-contained HTML file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from ...weight_comparison import CheckpointSummary, Mistake, Pair, WeightsResult
from ...weight_comparison.summary import MistakeGroup, format_headline, group_mistakes
from ..alignment.html.heat_map import Cell, HeatMap, build_heat_map
from ..language import translate, use_chosen_language
from ..page.packed_tables import Table
from ..page.renderer import Page, render
from ..sentences import translate_sentence
from .text import format_size

#: From best to worst: relation -> what it means.
RELATIONS: Mapping[str, str] = {
    "identical": "every bit, in one dtype",
    "equal": "every value, in two dtypes",
    "rounded": "one side is the other, rounded to nearest once",
    "noise": "computed; less than one unit of the coarser dtype",
    "different": "none of these: a mistake is named",
}

#: Fields of the sheet of a parameter, as ``weights.js`` names them.
SHEET_FIELDS = (
    *("wrong", "kind", "actual_parameter", "layout", "rounding", "shape", "fused_parameter"),
    *("paired_by", "target", "reference", "its_dtype", "error", "max_absolute"),
    *("differing_elements", "elements"),
)

#: Titles of the lists of names.
LIST_TITLES = ("Missing in the target", "Not in the reference", "Problems found while reading")

_TITLES = {"agree": "same weights", "differ": "different weights", "inconclusive": "inconclusive"}
_SCRIPTS = ("unpack.js", "elements.js", "hash.js", "frame.js", "table.js", "weights.js")
#: Mistakes, names and problems that the page lists; its table has every parameter, the JSON has
#: everything.
_MAX_ITEMS = 200
_MAX_EXAMPLES = 20  #: parameters that are listed for one mistake

_EXPERT = re.compile(r"(?<=\bexperts\.)\d+")
_NO_MISTAKE = Mistake(kind="", summary="")  #: fills the table cells of correct parameters


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write the page; equal results give equal bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    with use_chosen_language():
        stream.write(render(build_page(result)))


def build_page(result: WeightsResult) -> Page:
    """Return the page of a result."""
    headline = translate_sentence(format_headline(result))
    colon = translate(": ")
    mistakes = group_mistakes(result.mistakes)
    context = {
        "result": result,
        "headline": headline if result.verdict == "agree" else headline.partition(colon)[2],
        "facts": tuple(_list_facts(result)),
        "relations": RELATIONS,
        "counts": Counter(map(get_state, result.pairs)),
        "mistakes": _list_examples(mistakes[:_MAX_ITEMS], result.pairs),
        "mistake_count": len(mistakes),
        "lists": tuple(_list_names(result)),
        "heat_maps": build_layer_maps(result.pairs),
    }
    answer = translate_sentence(_TITLES[result.verdict])
    return Page(
        title=translate("{answer}: two checkpoints compared", answer=answer),
        template="weights.html",
        context=context,
        tables={"parameters": build_parameters_table(result.pairs)},
        styles=("page.css", "comparison.css", "weights.css"),
        scripts=_SCRIPTS,
        words=(*RELATIONS, *(name.replace("_", " ") for name in SHEET_FIELDS)),
    )


def _list_facts(result: WeightsResult) -> Iterator[tuple[str, str, str]]:
    """Yield (name, of the target, of the reference) of every fact about the checkpoints."""
    target_facts = _describe_checkpoint(result.target)
    reference_facts = _describe_checkpoint(result.reference)
    for name, target_value in target_facts.items():
        yield translate(name), target_value, reference_facts[name]


def _describe_checkpoint(side: CheckpointSummary) -> dict[str, str]:
    return {
        "path": side.path,
        "format": side.format,
        "names": side.family,
        "size": translate(
            "{count} tensors, {size}", count=f"{side.tensors:,}", size=format_size(side.bytes)
        ),
    }


def _list_examples(
    mistakes: Sequence[MistakeGroup], pairs: Sequence[Pair]
) -> tuple[tuple[MistakeGroup, tuple[tuple[int, Pair], ...]], ...]:
    """Return each mistake with its first parameters and their rows in the table."""
    row_of_pair = {id(pair): row for row, pair in enumerate(pairs)}
    listed = []
    for group in mistakes:
        examples = tuple((row_of_pair[id(pair)], pair) for pair in group.pairs[:_MAX_EXAMPLES])
        listed.append((group, examples))
    return tuple(listed)


def _list_names(result: WeightsResult) -> Iterator[tuple[str, str, tuple[str, ...], int]]:
    """Yield (id, title, first names, number of names) of each list that is not empty."""
    problems = tuple(map(str, result.problems))
    lists = (("missing", result.missing), ("unknown", result.unknown), ("problems", problems))
    for (section_id, names), title in zip(lists, LIST_TITLES, strict=True):
        if names:
            yield section_id, title, names[:_MAX_ITEMS], len(names)


def get_state(pair: Pair) -> str:
    """Return the relation, or 'different' for a mistake, even if a relation holds without it."""
    return pair.relation if pair.mistake is None else "different"


def get_map_cell(pair: Pair) -> str:
    """Return the cell of the map that a parameter belongs to: all experts of a layer share one."""
    return _EXPERT.sub("*", pair.path)


def build_parameters_table(pairs: Sequence[Pair]) -> Table:
    """Return every field of every pair as a column, in the order of the result."""
    mistakes = [pair.mistake or _NO_MISTAKE for pair in pairs]
    text_columns = {
        "parameter": [pair.path for pair in pairs],
        "scope": [get_map_cell(pair) for pair in pairs],
        "state": [get_state(pair) for pair in pairs],
        "target": [pair.target for pair in pairs],
        "reference": [pair.reference for pair in pairs],
        "target_dtype": [pair.dtypes[0] for pair in pairs],
        "reference_dtype": [pair.dtypes[1] for pair in pairs],
        "shape": [" × ".join(map(str, pair.shape)) for pair in pairs],
        "fused_parameter": [pair.fused_parameter for pair in pairs],
        "paired_by": [pair.evidence for pair in pairs],
        "layout": [translate_sentence(pair.layout) for pair in pairs],
        "rounding": [translate_sentence(pair.rounding) for pair in pairs],
        "wrong": [translate_sentence(mistake.summary) for mistake in mistakes],
        "kind": [mistake.kind for mistake in mistakes],
        "actual_parameter": [mistake.actual_parameter for mistake in mistakes],
    }
    # Counts can exceed the four bytes of an integer column. As float32 they keep seven digits,
    # which is all that is shown.
    number_columns = {
        "error": [float(pair.error) for pair in pairs],
        "max_absolute": [float(pair.max_absolute) for pair in pairs],
        "differing_elements": [float(pair.differing_elements) for pair in pairs],
        "elements": [float(pair.elements) for pair in pairs],
    }
    # Without a dtype, an empty column would become numbers.
    table: dict[str, Any] = {}
    for name, texts in text_columns.items():
        table[name] = np.asarray(texts, dtype=object)
    return table | number_columns


def build_layer_maps(pairs: Sequence[Pair]) -> tuple[HeatMap, ...]:
    """Return a map of the worst relation of every component of every layer; none for no pairs."""
    pairs_of_cell: dict[str, list[Pair]] = {}
    for pair in pairs:
        pairs_of_cell.setdefault(get_map_cell(pair), []).append(pair)
    if not pairs_of_cell:
        return ()
    cells = {name: _build_cell(name, cell_pairs) for name, cell_pairs in pairs_of_cell.items()}
    return (build_heat_map("", cells),)


def _build_cell(name: str, pairs: Sequence[Pair]) -> Cell:
    counts = Counter(map(get_state, pairs))
    relations = [relation for relation in RELATIONS if counts[relation]]
    worst = relations[-1]
    words = [f"{counts[relation]} {translate(relation)}" for relation in relations]
    summary = translate(worst) if len(pairs) == 1 else translate(", ").join(words)
    tooltip = f"{name}{translate(': ')}{summary}"
    return Cell(worst, begins_divergence=False, tooltip=tooltip)
