"""Infer rules from a comparison: equivalences in the agreeing region that no rule has yet."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from ..model.result import Equivalence, Result
from . import Rules
from .names import split_segments

#: Calls that contain other calls; their content is not a decomposition.
_CONTAINERS = ("Module.", "Cell.")
#: A record of weight gradients, which no operator produced.
_PSEUDO_OPERATOR = "parameters_grad"

_HEAD = """\
# Rules inferred from two dumps of one model, where they agree. Keep the rules that are true for
# more than this pair, and give the file with --rules. `dumpdiff rules check FILE` validates it.
# target    {target}
# reference {reference}
"""
_NOTHING = (
    "# Nothing to suggest: the rules know every operator and parameter that could be matched.\n"
)

#: One line of the section ``scopes``: (section, canonical path, pattern).
#: The section is, for example, ('block', 'modules') or ('leaves',).
ScopeLine = tuple[tuple[str, ...], str, str]

#: Sections of ``scopes`` in the order of the text.
_SECTIONS = [("leaves",), ("layers",), ("block", "modules"), ("model", "modules")]
_LEAVES = ("weight", "bias")  # as most frameworks spell them
_BLOCK = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass
class _OperatorRules:
    """The inferred rules for operators, those seen most often first."""

    kinds: dict[str, str] = field(default_factory=dict)  #: new kind -> reason
    #: kind -> spelling -> count
    members: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    #: kind -> sequence of kinds -> count
    sequences: dict[str, dict[tuple[str, ...], int]] = field(
        default_factory=lambda: defaultdict(dict)
    )


def infer_rule_text(result: Result, rules: Rules) -> str:
    """Return the text of a rule file; it is only a comment if there is nothing to suggest.

    Operators (spellings of a known kind, decompositions) come from ``result.learned``. Scopes
    (patterns that give both names of a parameter one canonical name) come from
    ``result.parameters``. ``rules`` are the rules that the result was made with.
    """
    operator_rules = _infer_operator_rules(result.learned, rules)
    scope_lines: Counter[ScopeLine] = Counter()
    for target_name, reference_name in result.parameters:
        scope_lines.update(infer_scope_lines(target_name, reference_name, rules))
    lines = [
        *format_scope_section(scope_lines),
        *_format_kind_section(operator_rules),
        *_format_decomposition_section(operator_rules, rules),
    ]
    head = _HEAD.format(
        target=escape_comment(result.target.source.path),
        reference=escape_comment(result.reference.source.path),
    )
    body = "\n" + "\n".join(lines) + "\n" if lines else _NOTHING
    return head + body


def _infer_operator_rules(learned: Iterable[Equivalence], rules: Rules) -> _OperatorRules:
    inferred = _OperatorRules()
    for equivalence in learned:
        spellings = (*equivalence.target, *equivalence.reference)
        if any(spelling.startswith((*_CONTAINERS, _PSEUDO_OPERATOR)) for spelling in spellings):
            continue
        target_kinds = _resolve_kinds(equivalence.target, rules)
        reference_kinds = _resolve_kinds(equivalence.reference, rules)
        if _has_new_spelling(equivalence, rules):
            _add_member(inferred, equivalence, rules)
        elif target_kinds == reference_kinds:
            continue
        elif len(reference_kinds) == 1:
            _add_sequence(inferred, reference_kinds[0], target_kinds, equivalence.count, rules)
        elif len(target_kinds) == 1:
            _add_sequence(inferred, target_kinds[0], reference_kinds, equivalence.count, rules)
    return inferred


def _has_new_spelling(equivalence: Equivalence, rules: Rules) -> bool:
    """Whether it is one operator against one, and no rule knows one of them or both."""
    if len(equivalence.target) != 1 or len(equivalence.reference) != 1:
        return False
    (target_kind,) = _resolve_kinds(equivalence.target, rules)
    (reference_kind,) = _resolve_kinds(equivalence.reference, rules)
    return not rules.has_kind(target_kind) or not rules.has_kind(reference_kind)


def _resolve_kinds(spellings: Sequence[str], rules: Rules) -> tuple[str, ...]:
    """Return canonical kinds without layout operators, which may occur anywhere; never empty."""
    kinds = tuple(rules.resolve_kind(spelling) for spelling in spellings)
    return tuple(kind for kind in kinds if rules.get_layout(kind) != "identity") or kinds


def _add_member(inferred: _OperatorRules, equivalence: Equivalence, rules: Rules) -> None:
    """Add a spelling of the kind that rules know.

    If they know neither, a new kind with one spelling.
    """
    (target,), (reference,) = equivalence.target, equivalence.reference
    target_kind, reference_kind = rules.resolve_kind(target), rules.resolve_kind(reference)
    if target_kind.startswith("grad:") or reference_kind.startswith("grad:"):
        return  # the spelling of a gradient operator follows from that of its forward operator
    kind, spelling = reference_kind, target
    if rules.has_kind(target_kind):
        kind, spelling = target_kind, reference
    if not rules.has_kind(kind):
        reason = "no rule knows either side; give it a class of rules/tolerances.yaml"
        inferred.kinds.setdefault(kind, reason)
    name = spelling.rpartition(".")[2]
    if all(name not in members for members in inferred.members.values()):
        inferred.members[kind][name] = equivalence.count


def _add_sequence(
    inferred: _OperatorRules, kind: str, sequence: tuple[str, ...], count: int, rules: Rules
) -> None:
    """Add a decomposition, or an operator of another kind, unless it follows from known rules."""
    inferred_sequences = {name: tuple(rows) for name, rows in inferred.sequences.items()}
    sequences = {**rules.decompositions, **inferred_sequences}
    if _decomposes(kind, sequence, sequences):
        return
    if len(sequence) == 1 and _decomposes(sequence[0], (kind,), sequences):
        return
    if any(_reaches(part, kind, sequences) for part in sequence):
        return  # a rule file must not have a cycle
    for unknown_kind in (kind, *sequence):
        if not rules.has_kind(unknown_kind):
            name = unknown_kind.removeprefix("grad:")
            inferred.kinds.setdefault(name, "no rule knows it; give it a class")
    inferred.sequences[kind][sequence] = count


_Sequences = Mapping[str, Iterable[tuple[str, ...]]]


def _decomposes(kind: str, parts: tuple[str, ...], sequences: _Sequences) -> bool:
    """Whether ``kind`` decomposes into ``parts``, in one or more steps."""
    if parts == (kind,):
        return True
    return any(_spells(sequence, parts, sequences) for sequence in sequences.get(kind, ()))


def _spells(sequence: tuple[str, ...], parts: tuple[str, ...], sequences: _Sequences) -> bool:
    """Whether the kinds of a sequence decompose into ``parts``, in order."""
    if not sequence or not parts:
        return not sequence and not parts
    first_kind, later_kinds = sequence[0], sequence[1:]
    for length in range(1, len(parts) - len(later_kinds) + 1):
        if not _decomposes(first_kind, parts[:length], sequences):
            continue
        if _spells(later_kinds, parts[length:], sequences):
            return True
    return False


def _reaches(start: str, goal: str, sequences: _Sequences) -> bool:
    """Whether ``goal`` is ``start`` or occurs in one of its decompositions."""
    if start == goal:
        return True
    for sequence in sequences.get(start, ()):
        if any(_reaches(part, goal, sequences) for part in sequence):
            return True
    return False


def infer_scope_lines(target: str, reference: str, rules: Rules) -> tuple[ScopeLine, ...]:
    """Return the scope lines that give both names of a parameter one canonical name.

    () if they have one already, or if no line can be inferred. The name that more rules know keeps
    its canonical name; if both are known equally well, the reference's name.
    """
    known_name, unknown_name = reference, target
    if _count_name_rules(target, rules) > _count_name_rules(reference, rules):
        known_name, unknown_name = target, reference
    known_path = rules.resolve_parameter(known_name)
    unknown_path = rules.resolve_parameter(unknown_name)
    module, _, leaf = known_path.rpartition(".")
    segments = split_segments(unknown_name)
    if known_path == unknown_path or not module or len(segments) < 2:
        return ()
    leaf_lines = _infer_leaf_lines(leaf, segments[-1], rules)
    if unknown_path.rpartition(".")[0] == module:
        return leaf_lines
    starts_block = not _BLOCK.fullmatch(unknown_path)
    module_lines = _infer_module_lines(module, segments[:-1], starts_block)
    return (*module_lines, *leaf_lines) if module_lines else ()


def _count_name_rules(name: str, rules: Rules) -> int:
    """Return the number of rules applied to a parameter's name, plus 1 for a usual last segment."""
    explanations = {explanation.reading: explanation for explanation in rules.explain_name(name)}
    n_rules = len(explanations["parameter"].rules)
    return n_rules + (rules.resolve_parameter(name).rpartition(".")[2] in _LEAVES)


def _infer_leaf_lines(leaf: str, name: str, rules: Rules) -> tuple[ScopeLine, ...]:
    """Return the line that makes the last segment ``name`` the canonical ``leaf``, if needed."""
    if rules.resolve_parameter(f"layers.0.mlp.{name}") == f"layers.0.mlp.{leaf}":
        return ()
    return ((("leaves",), leaf, name),)


def _infer_module_lines(
    module: str, segments: tuple[str, ...], starts_block: bool
) -> tuple[ScopeLine, ...]:
    """Return the lines that make the path ``segments`` the canonical ``module``.

    () if they are unclear.
    """
    block = _BLOCK.fullmatch(module)
    if block is not None:
        return _infer_block_lines(segments, block[1], block[2], starts_block)
    if any(segment.isdecimal() for segment in module.split(".")):
        return ()
    return ((("model", "modules"), module, ".".join(segments)),)


def _infer_block_lines(
    segments: tuple[str, ...], number: str, path: str, starts_block: bool
) -> tuple[ScopeLine, ...]:
    """Return the lines that make a module of block ``number`` the canonical ``path``.

    With ``starts_block`` a line for the path of the block itself is included.
    """
    if number not in segments[1:-1]:
        return ()
    block_index = segments.index(number, 1)
    module_segments = segments[block_index + 1 :]
    path_segments = path.split(".")
    experts = [segment for segment in path_segments if segment.isdecimal()]
    module_experts = [segment for segment in module_segments if segment.isdecimal()]
    if experts != module_experts or len(experts) > 1:
        return ()
    lines: list[ScopeLine] = []
    if starts_block:
        pattern = f"{segments[block_index - 1]}.{{layer}}"
        lines.append((("layers",), "layers.{layer}", pattern))
    lines.append(
        (("block", "modules"), _capture_expert(path_segments), _capture_expert(module_segments))
    )
    return tuple(lines)


def _capture_expert(segments: Iterable[str]) -> str:
    return ".".join("{expert}" if segment.isdecimal() else segment for segment in segments)


def format_scope_section(line_counts: Counter[ScopeLine]) -> Iterator[str]:
    """Yield the lines of the section ``scopes``.

    A pattern that is counted for several canonical paths is given to the path with the highest
    count.
    """
    tables: dict[tuple[str, ...], dict[str, dict[str, int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    used_patterns = set()
    for (section, path, pattern), count in line_counts.most_common():
        if (section, pattern) not in used_patterns:
            used_patterns.add((section, pattern))
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
        indent = "  " * (len(section) + 1)
        for path, patterns in tables[section].items():
            comment = _format_parameter_counts(patterns.values())
            yield f"{indent}{path}: [{_format_list(patterns)}]  # {comment}"


def _format_kind_section(inferred: _OperatorRules) -> Iterator[str]:
    """Yield the lines of the section ``operators``."""
    if not inferred.kinds and not inferred.members:
        return
    yield "operators:"
    yield "  kinds:"
    for kind, reason in inferred.kinds.items():
        members = inferred.members.get(kind, {})
        member_field = f", members: [{_format_list(members)}]" if members else ""
        yield f"    {_quote(kind)}: {{class: other{member_field}}}  # {reason}"
    for kind, members in inferred.members.items():
        if kind not in inferred.kinds:
            comment = _format_counts(members.values())
            yield f"    {_quote(kind)}: {{members: [{_format_list(members)}]}}  # {comment}"


def _format_decomposition_section(inferred: _OperatorRules, rules: Rules) -> Iterator[str]:
    """Yield the lines of the section ``decompositions``.

    A kind given again replaces its sequences, so the known sequences are repeated.
    """
    if not inferred.sequences:
        return
    yield "decompositions:"
    yield "  operators:"
    for kind, sequences in inferred.sequences.items():
        yield f"    {_quote(kind)}:"
        for sequence in rules.decompositions.get(kind, ()):
            yield f"      - [{_format_list(sequence)}]  # known"
        for sequence, count in sequences.items():
            yield f"      - [{_format_list(sequence)}]  # {_format_counts([count])}"


def _format_counts(counts: Iterable[int]) -> str:
    numbers = ", ".join(str(count) for count in counts)
    return f"seen {numbers} time{'' if numbers == '1' else 's'}"


def _format_parameter_counts(counts: Iterable[int]) -> str:
    numbers = ", ".join(str(count) for count in counts)
    return f"seen in {numbers} parameter{'' if numbers == '1' else 's'}"


def _format_list(names: Iterable[str]) -> str:
    return ", ".join(_quote(name) for name in names)


def _quote(text: str) -> str:
    """Return the text as a YAML value inside a flow list."""
    is_alphanumeric = text.replace("_", "").replace(".", "").isalnum()
    if is_alphanumeric and yaml.safe_load(text) == text:
        return text
    return yaml.dump(text, default_style='"').strip()


def escape_comment(path: str) -> str:
    """Return a path as one line of a comment, whatever characters it has."""
    return path.encode("unicode_escape").decode()
