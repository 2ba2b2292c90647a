"""How kinds of values are spread over the ranks of a run, where the user says it.

Dumps nearly always show it (see ``docs/parallel.md``); a rule decides where they show something
else, such as a layout in which every layer has the same fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .document import Entry, Place, collect_fields

REPLICATED, CONCATENATED, SUM, LOCAL = "replicated", "concatenated", "sum", "local"
_RELATIONS = (REPLICATED, CONCATENATED, SUM, LOCAL)
_SIDES = ("target", "reference")
_MAX_DIGITS = 10  #: of the number of a rank


@dataclass(frozen=True)
class RelationRule:
    """How the values of one kind are spread over the ranks of one run."""

    place: Place
    name: str  #: of the kind, as ``align -v`` prints it: ``layers.#.mlp.fc1.weight``
    relation: str  #: replicated, concatenated, sum or local
    #: names of ranks: of a concatenation those that hold the same shard, of a sum those whose
    #: values are added up; (): every rank holds another shard, or all ranks are added up
    groups: tuple[tuple[str, ...], ...] = ()
    axis: int | None = None  #: of the concatenation; None if dumps show it
    factor: float = 1.0  #: the combined value is multiplied by it


def read_relation_rules(
    sources: Sequence[Sequence[Entry]],
) -> dict[str, dict[str, RelationRule]]:
    """Return side -> name of the kind -> rule; an entry of a later source replaces an earlier one.

    Raises RuleError at the first rule that cannot be used.
    """
    rules: dict[str, dict[str, RelationRule]] = {side: {} for side in _SIDES}
    for source in sources:
        for side, sections in collect_fields(source, _SIDES).items():
            for section in sections:
                for name, value in section.read_pairs().items():
                    rules[side][name.read_text()] = _read_rule(name, value)
    return rules


def _read_rule(name: Entry, value: Entry) -> RelationRule:
    """Read ``replicated``, or ``{relation: concatenated, ranks: [[0], [1]], axis: 0}``."""
    text = name.read_text()
    if value.is_text:
        return RelationRule(name.place, text, value.read_choice(_RELATIONS, "relation"))
    fields = value.read_fields(("relation", "ranks", "axis", "factor"), ("relation",))
    relation = fields["relation"].read_choice(_RELATIONS, "relation")
    groups: tuple[tuple[str, ...], ...] = ()
    if "ranks" in fields:
        if relation not in (CONCATENATED, SUM):
            raise fields["ranks"].make_error(f"'{relation}' has no groups of ranks")
        groups = _read_groups(fields["ranks"])
    axis = None
    if "axis" in fields:
        if relation != CONCATENATED:
            raise fields["axis"].make_error(f"'{relation}' has no axis, only '{CONCATENATED}' has")
        number = fields["axis"].read_number()
        if number != int(number):
            raise fields["axis"].make_error("expected the number of an axis, 0 is the first")
        axis = int(number)
    factor = 1.0
    if "factor" in fields:
        factor = fields["factor"].read_number()
        if relation == LOCAL or not factor:
            raise fields["factor"].make_error("expected a factor above 0 of a combined value")
    return RelationRule(name.place, text, relation, groups, axis, factor)


def _read_groups(entry: Entry) -> tuple[tuple[str, ...], ...]:
    """Return names of ranks; 3 stands for 'rank 3'. Raises RuleError if one is named twice."""
    groups = []
    known_names = set()
    for row in entry.read_rows():
        names = []
        for rank in row:
            name = rank.read_text()
            name = f"rank {int(name)}" if name.isdecimal() and len(name) < _MAX_DIGITS else name
            if name in known_names:
                raise rank.make_error(f"'{name}' is in two groups")
            known_names.add(name)
            names.append(name)
        groups.append(tuple(names))
    return tuple(groups)
