"""Explain which rules gave a name its canonical name, for people who write rules."""

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

#: Share of equal characters from which a scope rule is shown as similar: mean of the whole and last
#: segment.
_MIN_SCOPE_SIMILARITY = 0.6
#: The same for spellings of operators, which are short.
_MIN_OPERATOR_SIMILARITY = 0.7
_MAX_CLOSEST_RULES = 3  #: similar rules that are shown
_CALL = re.compile(r"-op\d+.*|\.\d+\.(?:forward|backward)\b.*|\.(?:forward|backward)\.\d+.*")


@dataclass(frozen=True)
class Explanation:
    """One reading of a name."""

    reading: str  #: scope, parameter or operator
    result: str  #: canonical name; '' if no rule matches
    rules: tuple[str, ...]  #: 'file:line: pattern -> canonical', in the order they were applied
    notes: tuple[str, ...] = ()  #: class, layout, decompositions
    closest: tuple[str, ...] = ()  #: if no rule matches: the most similar rules


def explain_name(
    name: str, scopes: ScopeRules, operators: OperatorRules, decompositions: DecompositionRules
) -> tuple[Explanation, ...]:
    """Return all three readings, because the name does not show which of them applies."""
    return (
        _explain_path("scope", name, scopes.resolve_scope(name), scopes),
        _explain_path("parameter", name, scopes.resolve_parameter(name), scopes),
        _explain_operator(name, operators, decompositions),
    )


def _explain_path(reading: str, name: str, result: Reading, scopes: ScopeRules) -> Explanation:
    if result.path:
        return Explanation(reading, result.path, tuple(_format_rule(rule) for rule in result.rules))
    closest = _find_closest_rules(split_segments(name), scopes.rules)
    return Explanation(reading, "", (), closest=closest)


def _explain_operator(
    name: str, operators: OperatorRules, decompositions: DecompositionRules
) -> Explanation:
    leaf = _CALL.sub("", name.rpartition("/")[2])
    kind, member = operators.find_kind(leaf)
    if member is None:
        closest = _find_closest_members(leaf.rpartition(".")[2], operators)
        return Explanation("operator", kind, (), (f"class {OTHER}",), closest)
    notes = [f"class {operators.kinds[member.kind].kind_class}"]
    if operators.get_layout(kind):
        notes.append(f"layout {operators.get_layout(kind)}")
    if kind.startswith(GRADIENT):
        notes.append(f"gradient of {member.kind}")
    sequences = decompositions.operators.get(kind, ())
    notes += [f"may be {', '.join(sequence)}" for sequence in sequences]
    rule = f"{member.place}: {member.text} -> {member.kind}"
    return Explanation("operator", kind, (rule,), tuple(notes))


def _find_closest_members(spelling: str, operators: OperatorRules) -> tuple[str, ...]:
    members = {member.text: member for member in operators.members.values()}
    similar_spellings = difflib.get_close_matches(
        spelling, members, _MAX_CLOSEST_RULES, _MIN_OPERATOR_SIMILARITY
    )
    closest_members = [members[text] for text in similar_spellings]
    return tuple(f"{member.place}: {member.text} -> {member.kind}" for member in closest_members)


def _find_closest_rules(name: Sequence[str], rules: Iterable[Rule]) -> tuple[str, ...]:
    """Return the rules whose patterns are most similar to the end of the name.

    The score adds the similarity of as many segments as the pattern has, and that of the last
    segment.
    """
    scored_rules: dict[str, tuple[float, Rule]] = {}
    for rule in rules:
        ending = ".".join(name[-rule.pattern.count(".") - 1 :])
        score = _compute_similarity(ending, rule.pattern)
        if name:
            score += _compute_similarity(name[-1], rule.pattern.rpartition(".")[2])
        scored_rules[rule.pattern] = (score, rule)
    best_rules = sorted(scored_rules.values(), key=lambda scored: -scored[0])[:_MAX_CLOSEST_RULES]
    min_score = 2 * _MIN_SCOPE_SIMILARITY
    return tuple(_format_rule(rule) for score, rule in best_rules if score >= min_score)


def _compute_similarity(text: str, other: str) -> float:
    """Return the share of equal characters, from 0 to 1."""
    return difflib.SequenceMatcher(None, text, other).ratio()


def _format_rule(rule: Rule) -> str:
    return f"{rule.place}: {rule.pattern} -> {rule.path}"
