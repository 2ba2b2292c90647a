"""Rules for one operator or parameter on one side that is several on the other side."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .document import Entry, Place, RuleError, collect_fields

Sequences = tuple[tuple[str, ...], ...]


class DecompositionRules:
    """Decompositions of operators and of parameters.

    ``operators`` maps a kind to sequences of kinds, ``parts`` a canonical path below a block to
    several paths.
    """

    def __init__(self, sources: Sequence[Sequence[Entry]], kinds: Collection[str]) -> None:
        operators: dict[str, Sequences] = {}
        parts: dict[str, Sequences] = {}
        places: dict[str, Place] = {}
        for source in sources:
            fields = collect_fields(source, ("operators", "parts"))
            for section in fields["operators"]:
                for name, body in section.read_pairs().items():
                    _check_kind(name, kinds)
                    places.pop(name.read_text(), None)  # so that later rules come last
                    places[name.read_text()] = name.place
                    operators[name.read_text()] = _read_kind_sequences(body, kinds)
            for section in fields["parts"]:
                for name, body in section.read_pairs().items():
                    parts[name.read_text()] = _read_sequences(body)
        self.operators: Mapping[str, Sequences] = operators
        self.parts: Mapping[str, Sequences] = parts
        self.places: Mapping[str, Place] = places
        _refuse_cycles(operators, places)

    def split_path(self, path: str) -> Sequences:
        """Return the canonical parameters or modules that ``path`` may consist of.

        () if none is known.

        ``layers.0.attention.qkv.weight`` gives q, k and v of layer 0 as one of its sequences. The
        first section of the path that has a rule is split, of several with the same start the
        longest.
        """
        segments = path.split(".")
        for start in range(len(segments)):
            for end in range(len(segments), start, -1):
                sequences = self.parts.get(".".join(segments[start:end]))
                if sequences is not None:
                    prefix, suffix = segments[:start], segments[end:]
                    return tuple(_complete_paths(prefix, parts, suffix) for parts in sequences)
        return ()


def _complete_paths(
    prefix: Sequence[str], parts: Sequence[str], suffix: Sequence[str]
) -> tuple[str, ...]:
    return tuple(".".join([*prefix, part, *suffix]) for part in parts)


def _read_kind_sequences(body: Entry, kinds: Collection[str]) -> Sequences:
    rows = body.read_rows()
    for row in rows:
        for kind in row:
            _check_kind(kind, kinds)
    return tuple(_read_row(row) for row in rows)


def _read_sequences(body: Entry) -> Sequences:
    return tuple(_read_row(row) for row in body.read_rows())


def _read_row(row: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(entry.read_text() for entry in row)


def _check_kind(entry: Entry, kinds: Collection[str]) -> None:
    """Raise RuleError if the entry is neither a known kind nor the gradient of one."""
    if entry.read_text().removeprefix("grad:") not in kinds:
        entry.read_choice(kinds, "operator kind")


def _refuse_cycles(operators: Mapping[str, Sequences], places: Mapping[str, Place]) -> None:
    """Raise RuleError if a kind decomposes into itself, at the last rule of the cycle."""
    checked_kinds: set[str] = set()

    def visit(kind: str, ancestors: tuple[str, ...]) -> None:
        if kind in ancestors:
            cycle = ancestors[ancestors.index(kind) :]
            last_kind = max(cycle, key=list(places).index)
            path = " -> ".join((*cycle, kind))
            raise RuleError(places[last_kind], f"cyclic decomposition: {path}")
        if kind in checked_kinds or kind not in operators:
            return
        for sequence in operators[kind]:
            for part in dict.fromkeys(sequence):
                visit(part, (*ancestors, kind))
        checked_kinds.add(kind)

    for kind in operators:
        visit(kind, ())
