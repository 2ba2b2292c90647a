"""Relations between ranks that a rule file decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import numpy as np

from ..model.arrays import Ints
from ..rulebook import LOCAL, REPLICATED, SUM, RelationRule, RuleError
from .kinds import describe_kinds
from .relation import Relation, add_parts, join_parts
from .sibling_tensors import Siblings
from .slices import Assembly

_MAX_SIMILAR_NAMES = 3  #: that an error about an unknown name suggests


def apply_relation_rules(
    rules: Mapping[str, RelationRule],
    siblings: Siblings,
    kinds: Ints,
    relations: Sequence[Relation | None],
) -> tuple[tuple[Relation | None, ...], dict[int, Assembly]]:
    """Return the relation of every row, and row -> how it is concatenated where a rule says it.

    A rule decides about all values of the kinds that have its name, in whatever slots they are
    read. Raises RuleError if its groups of ranks do not fit the run.
    """
    if not rules:
        return tuple(relations), {}
    words = describe_kinds(siblings, kinds)
    new_relations = list(relations)
    assemblies = {}
    for row in np.flatnonzero(~siblings.is_constant).tolist():
        rule = rules.get(words[kinds[row]])
        if rule is None:
            continue
        relation = _build_relation(rule, siblings, row)
        for equal_row in siblings.list_equal_rows(row).tolist():
            new_relations[equal_row] = relation
            if rule.axis is not None:
                _check_axis(rule, siblings, equal_row)
                assemblies[equal_row] = Assembly(rule.axis)
    return tuple(new_relations), assemblies


def _build_relation(rule: RelationRule, siblings: Siblings, row: int) -> Relation | None:
    """Return the relation of a row; None if the value means something on one rank only."""
    if rule.relation == LOCAL:
        return None
    ranks = np.arange(siblings.n_ranks)
    labels = tuple(siblings.labels[row].tolist())
    groups = _list_groups(rule, siblings)
    if rule.relation == SUM:
        # equal summands are added up, too, unless several groups may have the same ones
        own_ranks = tuple(np.where(siblings.is_present[row], ranks, -1).tolist())
        pattern = labels if len(set(groups)) > 1 else own_ranks
        return add_parts(pattern, groups, rule.factor) or join_parts(labels, rule.factor)
    if rule.relation == REPLICATED:
        groups = (0,) * siblings.n_ranks
    pattern = tuple(np.where(siblings.is_present[row], groups, -1).tolist())
    return join_parts(pattern, rule.factor)


def _list_groups(rule: RelationRule, siblings: Siblings) -> tuple[int, ...]:
    """Return (ranks,) the first rank of the group of each rank."""
    if not rule.groups:
        return (0,) * siblings.n_ranks if rule.relation == SUM else tuple(range(siblings.n_ranks))
    group_of = {name: number for number, group in enumerate(rule.groups) for name in group}
    missing_names = [name for name in siblings.names if name not in group_of]
    if missing_names:
        raise RuleError(
            rule.place,
            f"'{rule.name}' is on {missing_names[0]}, too, which is in none of the groups; "
            f"expected all of {', '.join(siblings.names)}",
        )
    numbers = [group_of[name] for name in siblings.names]
    return tuple(numbers.index(number) for number in numbers)


def _check_axis(rule: RelationRule, siblings: Siblings, row: int) -> None:
    """Raise RuleError if a shard has no such axis."""
    shape = siblings.collect_base("shape")[row]
    if shape is not None and rule.axis is not None and rule.axis >= len(shape):
        raise RuleError(
            rule.place, f"'{rule.name}' has {len(shape)} axes, the first is 0; found {rule.axis}"
        )


def refuse_unknown_names(
    rules: Mapping[str, RelationRule], side: str, known_names: Iterable[str]
) -> None:
    """Raise RuleError if a rule names no kind of values of the run."""
    names = set(known_names)
    for name, rule in rules.items():
        if name in names:
            continue
        if not names:
            reason = f"no ranks of the {side} make the same calls, so there is nothing to merge"
        else:
            similar_names = get_close_matches(name, sorted(names), _MAX_SIMILAR_NAMES)
            expectation = f"; similar: {', '.join(similar_names)}" if similar_names else ""
            reason = (
                f"the {side} has no values named '{name}' on several ranks{expectation}; the names"
                " are those of align -v and of details.layouts in the JSON"
            )
        raise RuleError(rule.place, reason)
