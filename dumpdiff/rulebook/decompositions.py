"""One operator or parameter on one side that is several on the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .document import Entry, Place, RuleError, collect_fields

Sequences = tuple[tuple[str, ...], ...]


class DecompositionRules:
    """``operators``: a kind as sequences of kinds; ``parts``: a canonical path below a block as several paths."""

    def __init__(self, sources: Sequence[Sequence[Entry]], kinds: Collection[str]) -> None:
        operators: dict[str, Sequences] = {}
        parts: dict[str, Sequences] = {}
        places: dict[str, Place] = {}
        for source in sources:
            fields = collect_fields(source, ("operators", "parts"))
            for section in fields["operators"]:
                for name, body in section.read_pairs().items():
                    _known(name, kinds)
                    places.pop(name.read_text(), None)  # later rules last
                    places[name.read_text()] = name.place
                    operators[name.read_text()] = _sequences(body, kinds)
            for section in fields["parts"]:
                for name, body in section.read_pairs().items():
                    parts[name.read_text()] = _sequences(body, None)
        self.operators: Mapping[str, Sequences] = operators
        self.parts: Mapping[str, Sequences] = parts
        self.places: Mapping[str, Place] = places
        _refuse_cycles(operators, places)

    def split_path(self, path: str) -> Sequences:
        """The canonical parameters or modules that ``path`` may be made of; () if none is known.

        ``layers.0.attention.qkv.weight`` gives q, k and v of layer 0, as one of its readings.
        """
        segments = path.split(".")
        for start in range(len(segments)):
            for end in range(len(segments), start, -1):
                if (found := self.parts.get(".".join(segments[start:end]))) is not None:
                    front, back = segments[:start], segments[end:]
                    return tuple(
                        tuple(".".join([*front, part, *back]) for part in parts) for parts in found
                    )
        return ()


def _sequences(body: Entry, kinds: Collection[str] | None) -> Sequences:
    rows = body.read_rows()
    for entry in (entry for row in rows for entry in row) if kinds is not None else ():
        _known(entry, kinds or ())
    return tuple(tuple(entry.read_text() for entry in row) for row in rows)


def _known(entry: Entry, kinds: Collection[str]) -> None:
    if entry.read_text().removeprefix("grad:") not in kinds:
        entry.read_choice(kinds, "operator kind")


def _refuse_cycles(operators: Mapping[str, Sequences], places: Mapping[str, Place]) -> None:
    done: set[str] = set()

    def visit(kind: str, above: tuple[str, ...]) -> None:
        if kind in above:
            circle = above[above.index(kind) :]
            latest = max(circle, key=list(places).index)
            raise RuleError(places[latest], f"cyclic decomposition: {' -> '.join((*circle, kind))}")
        if kind in done or kind not in operators:
            return
        for sequence in operators[kind]:
            for part in dict.fromkeys(sequence):
                visit(part, (*above, kind))
        done.add(kind)

    for kind in operators:
        visit(kind, ())
