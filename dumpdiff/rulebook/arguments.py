"""What the positional arguments of an operator are: their names, and which give only a shape.

Frameworks order arguments differently: ``BatchNorm`` of MindSpore takes (epsilon, momentum),
``torch.batch_norm`` (momentum, eps). A record has positions, so the signature tells what is what.
"""

from __future__ import annotations

from collections.abc import Sequence

from .document import Entry, collect_fields
from .operators import OperatorRules

#: API of an operator whose name has none, as in a graph of MindSpore.
_PRIMITIVE = "primitive."


class ArgumentRules:
    """Signatures of operators by spelling; an entry of a later source replaces an earlier one."""

    def __init__(self, sources: Sequence[Sequence[Entry]], operators: OperatorRules) -> None:
        self._operators = operators
        self._signatures: dict[str, tuple[str, ...]] = {}
        self._shape_positions: dict[str, frozenset[int]] = {}
        self._canonical_names: dict[str, str] = {}
        for source in sources:
            fields = collect_fields(source, ("synonyms", "signatures", "shape_only"))
            for section in fields["synonyms"]:
                self._read_synonyms(section)
            for section in fields["signatures"]:
                self._read_signatures(section)
            for section in fields["shape_only"]:
                self._read_shape_positions(section)

    def get_name(self, operator: str, argument: str) -> str:
        """Return the name of an argument that is recorded as a position ('2') or as a name ('eps').

        Names of one meaning are one name. '' if the operator has no signature.
        """
        if not argument.isdecimal():
            return self._canonical_names.get(argument, argument)
        signature = self._find_signature(operator)
        position = int(argument)
        if position >= len(signature):
            return ""
        return self._canonical_names.get(signature[position], signature[position])

    def get_shape_positions(self, operator: str) -> frozenset[int]:
        """Return the positions of which the operator reads only shape or dtype, no numbers."""
        for spelling in self._operators.iterate_spellings(operator):
            if spelling in self._shape_positions:
                return self._shape_positions[spelling]
        return frozenset()

    def _find_signature(self, operator: str) -> tuple[str, ...]:
        """Return the names of the positional arguments of an operator, () if they are unknown.

        A signature belongs to one API: other APIs may order their arguments differently.
        """
        for spelling in self._operators.iterate_spellings(operator):
            key = f"{_PRIMITIVE}{spelling.lstrip('.')}" if spelling.startswith(".") else spelling
            if key in self._signatures:
                return self._signatures[key]
        return ()

    def _read_synonyms(self, section: Entry) -> None:
        for name, synonyms in section.read_pairs().items():
            for synonym in synonyms.read_texts():
                self._canonical_names[synonym.read_text()] = name.read_text()

    def _read_signatures(self, section: Entry) -> None:
        """Read API.operator -> names. Raises RuleError for an operator without an API."""
        for operator, names in section.read_pairs().items():
            key = self._operators.fold_spelling(operator)
            if "." not in key:
                raise operator.make_error(
                    f"'{operator.read_text()}' has no API; other APIs may order arguments otherwise"
                )
            self._signatures[key] = tuple(name.read_text() for name in names.read_texts())

    def _read_shape_positions(self, section: Entry) -> None:
        """Read position -> operators."""
        for position, members in section.read_pairs().items():
            number = int(position.read_number())
            for member in members.read_texts():
                key = self._operators.fold_spelling(member)
                positions = self._shape_positions.get(key, frozenset())
                self._shape_positions[key] = positions | {number}
