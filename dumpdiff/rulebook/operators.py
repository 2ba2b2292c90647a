"""What frameworks call their operators, onto canonical kinds, each of one class.

Spelling is folded before a member is looked up: case and underscores do not count, API prefixes
(``Functional.``, ``Torch.``), in-place endings (``add_``) and the underscores of dunder names fall away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from .document import Entry, Place, collect_fields

GRADIENT = "grad:"  #: prefix of the kind of a gradient operator
LAYOUTS = ("identity", "selecting")
OTHER = "other"  #: class of a kind that no rule knows

_DUNDER = re.compile(
    r"__(?:[ir](?=(?:add|sub|mul|div|truediv|floordiv|matmul|mod|pow|and|or|xor|lshift|rshift)__))?(\w+?)__"
)
_NODE_NUMBER = re.compile(r"\d+$")  # autograd nodes: MmBackward0


@dataclass(frozen=True)
class Kind:
    """A canonical operator kind."""

    name: str
    kind_class: str
    layout: str  #: 'identity': the values are all kept; 'selecting': some are kept or repeated; '': neither
    place: Place


@dataclass(frozen=True)
class Member:
    """A framework's spelling of a kind, and where a rule says so."""

    text: str
    kind: str
    place: Place


class OperatorRules:
    """Kinds and their members; a member given again in a later source moves there."""

    def __init__(self, sources: Sequence[Sequence[Entry]], classes: Collection[str]) -> None:
        self.kinds: dict[str, Kind] = {}
        self.members: dict[str, Member] = {}
        self._apis: list[str] = []
        self._spelling: dict[str, list[str]] = {
            "beginnings": [],
            "variants": [],
            "gradients": [],
            "namespaces": [],
        }
        for source in sources:
            fields = collect_fields(source, ("spelling", "kinds"))
            for section in fields["spelling"]:
                self._read_spelling(section)
            taken: dict[str, Member] = {}
            for section in fields["kinds"]:
                for name, body in section.read_pairs().items():
                    self._read_kind(name, body, classes, taken)
            self.members.update(taken)
        for endings in self._spelling.values():
            endings.sort(key=len, reverse=True)

    def find_kind(self, name: str) -> tuple[str, Member | None]:
        """The kind of an operator and the member that said so; without one, the folded leaf in lower case."""
        api, leaf = self._split(name)
        if (member := self._member(api, leaf)) is not None:
            return member.kind, member
        namespace, _, last = leaf.rpartition(".")
        folded = fold(leaf if namespace.lower() in self._spelling["namespaces"] else last)
        for text in (folded, _NODE_NUMBER.sub("", folded)):
            for ending in self._spelling["gradients"]:
                base = text.removesuffix(ending)
                if base and base != text:
                    member = self._member(api, base)
                    return (GRADIENT + (member.kind if member else base)), member
        return folded, None

    def find_rule(self, kind: str) -> Kind | None:
        """The rule of a canonical kind; a gradient kind has that of the operator it differentiates."""
        return self.kinds.get(kind) or self.kinds.get(kind.removeprefix(GRADIENT))

    def get_layout(self, kind: str) -> str:
        """'identity', 'selecting' or ''. The gradient of a selection scatters, so gradients have none of their own."""
        rule = self.kinds.get(kind)
        return rule.layout if rule else ""

    def _split(self, name: str) -> tuple[str, str]:
        """('torch', 'linalg.norm') of ``Torch.linalg.norm``."""
        parts = name.strip().split(".")
        if len(parts) > 1 and parts[0].lower() in self._apis:
            if parts[0].lower() == "aten":  # Aten.add.Tensor: the last part is an overload
                return "aten", parts[1]
            return parts[0].lower(), ".".join(parts[1:])
        return "", name.strip()

    def _member(self, api: str, leaf: str) -> Member | None:
        namespace, _, last = leaf.rpartition(".")
        if namespace.lower() in self._spelling["namespaces"]:
            return self.members.get(f"{api}.{fold(leaf)}") or self.members.get(fold(leaf))
        for candidate in (f"{api}.{fold(leaf)}", fold(leaf), f"{api}.{fold(last)}", fold(last)):
            if (member := self.members.get(candidate)) is not None:
                return member
        folded = fold(last)
        for beginning in ("", *self._spelling["beginnings"]):
            stem = folded.removeprefix(beginning)
            if not stem or (beginning and stem == folded):
                continue
            for ending in ("", *self._spelling["variants"]):
                shorter = stem.removesuffix(ending)
                if (
                    shorter
                    and (shorter != stem or not ending)
                    and (member := self.members.get(shorter)) is not None
                ):
                    return member
        return None

    def _read_spelling(self, section: Entry) -> None:
        fields = section.read_fields(("apis", *self._spelling))
        for field, entry in fields.items():
            words = self._apis if field == "apis" else self._spelling[field]
            words.extend(word.read_text().lower() for word in entry.read_texts())

    def _read_kind(
        self, name: Entry, body: Entry, classes: Collection[str], taken: dict[str, Member]
    ) -> None:
        kind = name.read_text()
        fields = body.read_fields(
            ("class", "layout", "members"), () if kind in self.kinds else ("class",)
        )
        old = self.kinds.get(kind)
        kind_class = (
            fields["class"].read_choice(classes, "class")
            if "class" in fields
            else old.kind_class
            if old
            else ""
        )
        layout = (
            fields["layout"].read_choice(LAYOUTS, "layout")
            if "layout" in fields
            else old.layout
            if old
            else ""
        )
        self.kinds[kind] = Kind(kind, kind_class, layout, name.place)
        spellings = [name] if old is None and not kind.startswith(GRADIENT) else []
        for entry in [*spellings, *(fields["members"].read_texts() if "members" in fields else ())]:
            api, leaf = self._split(entry.read_text())
            key = f"{api}.{fold(leaf)}" if api else fold(leaf)
            if not fold(leaf):
                raise entry.make_error(f"'{entry.read_text()}' names no operator")
            if key in taken and taken[key].kind != kind:
                other = taken[key]
                raise entry.make_error(
                    f"'{entry.read_text()}' is already a member of '{other.kind}' ({other.place})"
                )
            taken[key] = Member(entry.read_text(), kind, entry.place)


@cache
def fold(leaf: str) -> str:
    """One spelling of an operator's own name.

    >>> fold("LayerNorm"), fold("layer_norm"), fold("__iadd__"), fold("add_"), fold("linalg.norm")
    ('layernorm', 'layernorm', 'add', 'add', 'linalg.norm')
    """
    text = leaf.lower()
    if (dunder := _DUNDER.fullmatch(text)) is not None:
        text = dunder[1]
    return text.replace("_", "")
