"""A comparison of two checkpoints in words: the answer in one line, and what is wrong, once for all layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.formatting import percent
from .result import Pair, WeightsResult

_MOVES = 4  #: exchanges that are listed
_SAME = {
    "identical": "bit for bit",
    "equal": "in value, held in other dtypes",
    "rounded": "after rounding",
    "noise": "within noise",
    "different": "",
}


@dataclass(frozen=True)
class MistakeGroup:
    """One mistake, of all parameters that share it."""

    parameter: str  #: canonical name, with * for numbers that differ
    message: str
    pairs: tuple[Pair, ...]


def format_headline(result: WeightsResult) -> str:
    """The answer in one line."""
    count = len(result.pairs)
    if result.verdict == "agree":
        how = _SAME[result.relation]
        if result.relation == "rounded":
            used = sorted({pair.rounding for pair in result.pairs if pair.rounding})
            how = f"after rounding ({'; '.join(used)})"
        return (
            f"same weights, {how}: {count} parameters, {percent(result.coverage)} of the elements"
        )
    if result.verdict == "inconclusive":
        return f"inconclusive: only {percent(result.coverage)} of the elements could be paired"
    parts = []
    if result.layer_shift is not None:
        parts.append(f"the layers are off by {abs(result.layer_shift)}")
    if result.mistakes:
        first = group_mistakes(result.mistakes)[0]
        one = f": {first.parameter}: {first.message}" if not parts else ""
        parts.append(f"{len(result.mistakes)} of {count} parameters are wrong{one}")
    for names, what in ((result.missing, "missing"), (result.unknown, "not in the reference")):
        if names:
            parts.append(f"{len(names)} {what} ({names[0]}{', ...' if len(names) > 1 else ''})")
    return "different weights: " + "; ".join(parts)


def group_mistakes(mistakes: Sequence[Pair]) -> list[MistakeGroup]:
    """Mistakes that are the same but for the layer or the expert, together; most parameters first."""
    groups: dict[tuple[str, str, str], list[Pair]] = {}
    for pair in mistakes:
        assert pair.mistake is not None
        kind, name = (
            pair.mistake.kind,
            pair.whole if pair.whole and pair.mistake.kind.endswith("-order") else pair.path,
        )
        key = (
            kind,
            "" if kind == "rounding" else _masked(name),
            _masked(pair.mistake.holds or pair.mistake.said),
        )
        groups.setdefault(key, []).append(pair)
    found = []
    for (_, what, _), pairs in groups.items():
        named = (
            pairs[0].path
            if len(pairs) == 1
            else what or "all"
            if len(pairs) == len(mistakes)
            else what or "some"
        )
        found.append(MistakeGroup(named, _said(pairs), tuple(pairs)))
    return sorted(found, key=lambda one: -len(one.pairs))


def _said(pairs: Sequence[Pair]) -> str:
    """What is wrong with all of them, or with one for all."""
    told = [pair.mistake for pair in pairs if pair.mistake is not None]
    if len({mistake.said for mistake in told}) == 1:
        return told[0].said
    if all(mistake.holds for mistake in told):
        moves = dict.fromkeys(
            ", ".join(
                f"{a} for {b}"
                for a, b in zip(_numbers(mistake.holds), _numbers(pair.path), strict=False)
                if a != b
            )
            for pair, mistake in zip(pairs, told, strict=True)
        )
        listed = [move for move in moves if move]
        more = (
            f" ({'; '.join(listed[:_MOVES])}{'; ...' if len(listed) > _MOVES else ''})"
            if listed
            else ""
        )
        return f"the reference's {_masked(told[0].holds)}{more}"
    return f"{told[0].said} (and the like)"


def _numbers(text: str) -> list[str]:
    return re.findall(r"(?<=\.)\d+(?=\.)", text)


def _masked(text: str) -> str:
    """Without what differs between layers."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "*", text)
