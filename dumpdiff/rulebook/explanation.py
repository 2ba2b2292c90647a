"""Why a name became what it became: for people who write rules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .decompositions import DecompositionRules
from .names import split_segments
from .operators import GRADIENT, OTHER, OperatorRules
from .patterns import Rule
from .scopes import Reading, ScopeRules

_ALIKE = 0.6  # share of equal characters from which on a rule is worth showing
_CALL = re.compile(r"-op\d+.*|\.\d+\.(?:forward|backward)\b.*|\.(?:forward|backward)\.\d+.*")


@dataclass(frozen=True)
class Explanation:
    """One reading of a name."""

    reading: str  #: scope, parameter or operator
    result: str  #: canonical; '' if no rule fits
    rules: tuple[str, ...]  #: 'file:line: pattern -> canonical', in the order they fired
    notes: tuple[str, ...] = ()  #: class, layout, decompositions
    closest: tuple[str, ...] = ()  #: if none fired: the rules that look most alike


def explain_name(
    name: str, scopes: ScopeRules, operators: OperatorRules, decompositions: DecompositionRules
) -> tuple[Explanation, ...]:
    """All three readings: a name alone does not say which of them is meant."""
    return (
        _path("scope", name, scopes.resolve_scope(name), scopes),
        _path("parameter", name, scopes.resolve_parameter(name), scopes),
        _operator(name, operators, decompositions),
    )


def _path(reading: str, name: str, found: Reading, scopes: ScopeRules) -> Explanation:
    if found.path:
        return Explanation(reading, found.path, tuple(_line(rule) for rule in found.rules))
    return Explanation(reading, "", (), closest=_closest_rules(split_segments(name), scopes.rules))


def _operator(
    name: str, operators: OperatorRules, decompositions: DecompositionRules
) -> Explanation:
    leaf = _CALL.sub("", name.rpartition("/")[2])
    kind, member = operators.find_kind(leaf)
    if member is None:
        spellings = {m.text: m for m in operators.members.values()}
        own = leaf.rpartition(".")[2]
        near = difflib.get_close_matches(own, spellings, 3, 0.7)
        closest = tuple(
            f"{spellings[text].place}: {text} -> {spellings[text].kind}" for text in near
        )
        return Explanation("operator", kind, (), (f"class {OTHER}",), closest)
    rule = operators.kinds[member.kind]
    notes = [f"class {rule.kind_class}"]
    if operators.get_layout(kind):
        notes.append(f"layout {operators.get_layout(kind)}")
    if kind.startswith(GRADIENT):
        notes.append(f"gradient of {member.kind}")
    notes += [
        f"may be {', '.join(sequence)}" for sequence in decompositions.operators.get(kind, ())
    ]
    return Explanation(
        "operator", kind, (f"{member.place}: {member.text} -> {member.kind}",), tuple(notes)
    )


def _closest_rules(name: Sequence[str], rules: Iterable[Rule]) -> tuple[str, ...]:
    """The patterns most like the end of the name: over as many segments as they have, and in the last one."""
    alike: dict[str, tuple[float, Rule]] = {}
    for rule in rules:
        tail = ".".join(name[-rule.pattern.count(".") - 1 :])
        last = _likeness(name[-1], rule.pattern.rpartition(".")[2]) if name else 0.0
        alike[rule.pattern] = (_likeness(tail, rule.pattern) + last, rule)
    best = sorted(alike.values(), key=lambda found: -found[0])[:3]
    return tuple(_line(rule) for likeness, rule in best if likeness >= 2 * _ALIKE)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _line(rule: Rule) -> str:
    return f"{rule.place}: {rule.pattern} -> {rule.path}"
