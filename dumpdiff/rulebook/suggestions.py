"""Rules that a comparison suggests: what its agreeing part shows and no rule says yet, as the text of a rule file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from ..model.result import Result
from . import Rules
from .scope_suggestions import Line, infer_scope_lines

_CONTAINERS = (
    "Module.",
    "Cell.",
)  # calls that contain others: what they are made of is no decomposition
_PSEUDO = "parameters_grad"  # a record of weight gradients, which no operator made

_HEAD = """\
# What two dumps of one model taught, where they agree. Read it, keep what holds for more than this pair, and give it
# with --rules. `dumpdiff rules check FILE` validates it.
# target    {target}
# reference {reference}
"""
_NOTHING = "# Nothing to suggest: where the two agree, the rules know every operator and parameter that can be told.\n"


@dataclass
class _Operators:
    """What is suggested about operators, most often seen first."""

    kinds: dict[str, str] = field(default_factory=dict)  #: a kind that no rule has -> why
    members: dict[str, dict[str, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )  #: kind -> spelling -> seen
    parts: dict[str, dict[tuple[str, ...], int]] = field(default_factory=lambda: defaultdict(dict))


def infer_rule_file(result: Result, rules: Rules) -> str:
    """The text of a rule file, or of a comment alone if there is nothing to suggest.

    Operators (spellings of a known kind, decompositions) come from ``result.learned``, scopes (patterns that give both
    names of a parameter one canonical name) from ``result.parameters``. ``rules`` are those the result was made with.
    """
    operators = _operators(result, rules)
    wanted = Counter(line for names in result.parameters for line in infer_scope_lines(*names, rules))
    lines = [*format_scope_section(wanted), *_kind_lines(operators), *_part_lines(operators, rules)]
    head = _HEAD.format(
        target=escape_comment(result.target.source.path),
        reference=escape_comment(result.reference.source.path),
    )
    return head + ("\n" + "\n".join(lines) + "\n" if lines else _NOTHING)


def _operators(result: Result, rules: Rules) -> _Operators:
    found = _Operators()
    for same in result.learned:
        spelled = (*same.target, *same.reference)
        if any(kind.startswith(_CONTAINERS) or kind.startswith(_PSEUDO) for kind in spelled):
            continue
        ours, theirs = _kinds(same.target, rules), _kinds(same.reference, rules)
        if len(same.target) == len(same.reference) == 1 and not (
            rules.has_kind(ours[0]) and rules.has_kind(theirs[0])
        ):
            _add_member(found, same.target[0], same.reference[0], same.count, rules)
        elif len(theirs) == 1 and ours != theirs:
            _add_parts(found, theirs[0], ours, same.count, rules)
        elif len(ours) == 1 and ours != theirs:
            _add_parts(found, ours[0], theirs, same.count, rules)
    return found


def _kinds(spelled: Sequence[str], rules: Rules) -> tuple[str, ...]:
    """Canonical kinds, without layout operators, which may stand anywhere; never empty."""
    kinds = tuple(rules.resolve_kind(kind) for kind in spelled)
    return tuple(kind for kind in kinds if rules.get_layout(kind) != "identity") or kinds


def _add_member(found: _Operators, target: str, reference: str, count: int, rules: Rules) -> None:
    """One operator against one, of which no rule knows one or both: another spelling."""
    ours, theirs = rules.resolve_kind(target), rules.resolve_kind(reference)
    if any(kind.startswith("grad:") for kind in (ours, theirs)):
        return  # a gradient operator is a spelling of its forward operator's
    kind, spellings = (ours, [reference]) if rules.has_kind(ours) else (theirs, [target])
    if not rules.has_kind(kind):
        found.kinds.setdefault(
            kind, "no rule knows either side; give it a class of rules/tolerances.yaml"
        )
    for spelling in spellings:
        name = spelling.rpartition(".")[2]
        if all(name not in members for members in found.members.values()):
            found.members[kind][name] = count


def _add_parts(
    found: _Operators, whole: str, parts: tuple[str, ...], count: int, rules: Rules
) -> None:
    """One operator against several, or against one of another kind, unless rules make the one of the other."""
    known = {**rules.decompositions, **{kind: tuple(rows) for kind, rows in found.parts.items()}}
    if _made(whole, parts, known) or (len(parts) == 1 and _made(parts[0], (whole,), known)):
        return
    if any(_reaches(part, whole, known) for part in parts):
        return  # a circle, which no rule file may have
    for kind in (whole, *parts):
        if not rules.has_kind(kind):
            found.kinds.setdefault(kind.removeprefix("grad:"), "no rule knows it; give it a class")
    found.parts[whole][parts] = count


def _made(
    whole: str, parts: tuple[str, ...], known: Mapping[str, Iterable[tuple[str, ...]]]
) -> bool:
    """Whether ``whole`` decomposes into ``parts``, in steps if need be."""
    return (whole,) == parts or any(_spells(row, parts, known) for row in known.get(whole, ()))


def _spells(
    row: tuple[str, ...], parts: tuple[str, ...], known: Mapping[str, Iterable[tuple[str, ...]]]
) -> bool:
    if not row or not parts:
        return not row and not parts
    return any(
        _made(row[0], parts[:taken], known) and _spells(row[1:], parts[taken:], known)
        for taken in range(1, len(parts) - len(row) + 2)
    )


def _reaches(start: str, goal: str, known: Mapping[str, Iterable[tuple[str, ...]]]) -> bool:
    if start == goal:
        return True
    return any(_reaches(part, goal, known) for row in known.get(start, ()) for part in row)


def format_scope_section(wanted: Counter[Line]) -> Iterator[str]:
    """The section ``scopes``: each pattern once, for the canonical path that most parameters want."""
    tables: dict[tuple[str, ...], dict[str, dict[str, int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    taken = set()
    for (section, path, pattern), count in wanted.most_common():
        if (section, pattern) not in taken:
            taken.add((section, pattern))
            tables[section][path][pattern] = count
    if not tables:
        return
    yield "scopes:"
    open_sections: list[str] = []
    for section in sorted(tables, key=_SECTIONS.index):
        for depth, name in enumerate(section):
            if open_sections[: depth + 1] != list(section[: depth + 1]):
                yield f"{'  ' * (depth + 1)}{name}:"
        open_sections = list(section)
        for path, patterns in tables[section].items():
            indent = "  " * (len(section) + 1)
            yield f"{indent}{path}: [{', '.join(map(_quoted, patterns))}]  # {_seen(patterns.values(), 'parameter')}"


_SECTIONS = [("leaves",), ("layers",), ("block", "modules"), ("model", "modules")]


def _kind_lines(found: _Operators) -> Iterator[str]:
    if not found.kinds and not found.members:
        return
    yield "operators:"
    yield "  kinds:"
    for kind, why in found.kinds.items():
        members = found.members.get(kind, {})
        listed = f", members: [{', '.join(map(_quoted, members))}]" if members else ""
        yield f"    {_quoted(kind)}: {{class: other{listed}}}  # {why}"
    for kind, members in found.members.items():
        if kind not in found.kinds:
            listed = ", ".join(map(_quoted, members))
            yield f"    {_quoted(kind)}: {{members: [{listed}]}}  # {_seen(members.values())}"


def _part_lines(found: _Operators, rules: Rules) -> Iterator[str]:
    """The section ``decompositions``; a kind given again replaces its rows, so those known come along."""
    if not found.parts:
        return
    yield "decompositions:"
    yield "  operators:"
    for kind, rows in found.parts.items():
        yield f"    {_quoted(kind)}:"
        for row in rules.decompositions.get(kind, ()):
            yield f"      - [{', '.join(map(_quoted, row))}]  # known"
        for row, count in rows.items():
            yield f"      - [{', '.join(map(_quoted, row))}]  # {_seen([count])}"


def _seen(counts: Iterable[int], what: str = "time") -> str:
    said = ", ".join(map(str, counts))
    return f"seen {'in ' * (what != 'time')}{said} {what}{'s' * (said != '1')}"


def _quoted(text: str) -> str:
    """As a YAML value inside a flow list."""
    plain = text.replace("_", "").replace(".", "").isalnum()
    return (
        text
        if plain and yaml.safe_load(text) == text
        else yaml.dump(text, default_style='"').strip()
    )


def escape_comment(path: str) -> str:
    """In a comment, whatever characters a path has."""
    return path.encode("unicode_escape").decode()
