"""Summarize a comparison of weights: a headline, and mistakes grouped over all layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.formatting import format_percent
from .result import MIN_COVERAGE, Mistake, Pair, WeightsResult

_MAX_EXCHANGES = 4  #: exchanges of layers or experts that a message lists
_RELATION_TEXTS = {
    "identical": "bit for bit",
    "equal": "in value, held in other dtypes",
    "rounded": "after rounding",
    "noise": "where they had to be computed, within rounding",
    "different": "",
}


@dataclass(frozen=True)
class MistakeGroup:
    """One mistake, with all parameters that share it."""

    parameter: str  #: canonical name, with * for numbers that differ
    message: str
    pairs: tuple[Pair, ...]


def format_headline(result: WeightsResult) -> str:
    """Return the result in one line."""
    n_pairs = len(result.pairs)
    coverage = format_percent(result.coverage)
    if result.verdict == "agree":
        relation = _RELATION_TEXTS[result.relation]
        if result.relation == "rounded":
            roundings = sorted({pair.rounding for pair in result.pairs if pair.rounding})
            relation = f"after rounding ({'; '.join(roundings)})"
        return f"same weights, {relation}: {n_pairs} parameters, {coverage} of the elements"
    if result.verdict == "inconclusive":
        if result.coverage >= MIN_COVERAGE and result.notes:
            return f"inconclusive: {result.notes[0]}"
        return f"inconclusive: only {coverage} of the elements could be paired"
    reasons = []
    if result.layer_shift is not None:
        reasons.append(f"the layers are off by {abs(result.layer_shift)}")
    if result.mistakes:
        reason = f"{len(result.mistakes)} of {n_pairs} parameters are wrong"
        if not reasons:
            first_group = group_mistakes(result.mistakes)[0]
            reason += f": {first_group.parameter}: {first_group.message}"
        reasons.append(reason)
    for names, state in ((result.missing, "missing"), (result.unknown, "not in the reference")):
        if names:
            ellipsis = ", ..." if len(names) > 1 else ""
            reasons.append(f"{len(names)} {state} ({names[0]}{ellipsis})")
    return "different weights: " + "; ".join(reasons)


def group_mistakes(pairs: Sequence[Pair]) -> list[MistakeGroup]:
    """Group pairs whose mistakes differ only in layer or expert; the largest groups first."""
    pairs_of_key: dict[tuple[str, str, str], list[Pair]] = {}
    for pair in pairs:
        assert pair.mistake is not None
        pairs_of_key.setdefault(_compute_group_key(pair, pair.mistake), []).append(pair)
    groups = []
    for (_, masked_path, _), grouped_pairs in pairs_of_key.items():
        parameter = masked_path or ("all" if len(grouped_pairs) == len(pairs) else "some")
        if len(grouped_pairs) == 1:
            parameter = grouped_pairs[0].path
        message = _summarize_mistakes(grouped_pairs)
        groups.append(MistakeGroup(parameter, message, tuple(grouped_pairs)))
    return sorted(groups, key=lambda group: -len(group.pairs))


def _compute_group_key(pair: Pair, mistake: Mistake) -> tuple[str, str, str]:
    """Return kind, parameter and contents of a mistake, without numbers."""
    path = pair.path
    if pair.fused_parameter and mistake.kind.endswith("-order"):
        path = pair.fused_parameter
    if mistake.kind == "rounding":
        path = ""  # wrong roundings usually affect all parameters
    contents = mistake.actual_parameter or mistake.summary
    return mistake.kind, _mask_numbers(path), _mask_numbers(contents)


def _summarize_mistakes(pairs: Sequence[Pair]) -> str:
    """Return what is wrong with all of the pairs, or with one as an example."""
    mistakes = [pair.mistake for pair in pairs if pair.mistake is not None]
    if len({mistake.summary for mistake in mistakes}) == 1:
        return mistakes[0].summary
    if not all(mistake.actual_parameter for mistake in mistakes):
        return f"{mistakes[0].summary} (and the like)"
    exchanges: dict[str, None] = {}
    for pair, mistake in zip(pairs, mistakes, strict=True):
        exchange = _format_exchange(mistake.actual_parameter, pair.path)
        if exchange:
            exchanges[exchange] = None
    summary = f"the reference's {_mask_numbers(mistakes[0].actual_parameter)}"
    if exchanges:
        listed_exchanges = list(exchanges)[:_MAX_EXCHANGES]
        ellipsis = "; ..." if len(exchanges) > _MAX_EXCHANGES else ""
        summary += f" ({'; '.join(listed_exchanges)}{ellipsis})"
    return summary


def _format_exchange(held_path: str, path: str) -> str:
    """Return which numbers of layers or experts were exchanged: '2 for 0'."""
    exchanges = []
    for held_number, number in zip(_find_numbers(held_path), _find_numbers(path), strict=False):
        if held_number != number:
            exchanges.append(f"{held_number} for {number}")
    return ", ".join(exchanges)


def _find_numbers(path: str) -> list[str]:
    return re.findall(r"(?<=\.)\d+(?=\.)", path)


def _mask_numbers(text: str) -> str:
    """Replace numbers by *, which removes what differs between layers."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "*", text)
