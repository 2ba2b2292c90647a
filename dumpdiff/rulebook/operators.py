"""Canonical kinds of operators, each in one class, from the names that frameworks give them.

A spelling is folded before it is looked up: case and underscores are ignored, and API prefixes
(``Functional.``, ``Torch.``), in-place endings (``add_``) and the underscores of dunder names are
removed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from .document import Entry, Place, collect_fields

GRADIENT = "grad:"  #: prefix of the kind of a gradient operator
LAYOUTS = ("identity", "selecting")
OTHER = "other"  #: class of a kind without a rule

_DUNDER = re.compile(
    r"__(?:[ir](?=(?:add|sub|mul|div|truediv|floordiv|matmul|mod|pow|and|or|xor|lshift|rshift)__))?"
    r"(\w+?)__"
)
_NODE_NUMBER = re.compile(r"\d+$")  # autograd nodes: MmBackward0


@dataclass(frozen=True)
class Kind:
    """A canonical operator kind."""

    name: str
    kind_class: str
    #: 'identity': all values are kept; 'selecting': some are kept or repeated; '': neither.
    layout: str
    place: Place


@dataclass(frozen=True)
class Member:
    """A framework's spelling of a kind, and the place of the rule."""

    text: str
    kind: str
    place: Place


class OperatorRules:
    """Kinds and their members; a member given again in a later source moves to the later kind."""

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
            source_members: dict[str, Member] = {}
            for section in fields["kinds"]:
                for name, body in section.read_pairs().items():
                    self._read_kind(name, body, classes, source_members)
            self.members.update(source_members)
        for affixes in self._spelling.values():
            affixes.sort(key=len, reverse=True)

    def find_kind(self, name: str) -> tuple[str, Member | None]:
        """Return the kind of an operator and the member that matched.

        Without a member, the kind is the folded name.
        """
        api, leaf = self._split_api(name)
        member = self._find_member(api, leaf)
        if member is not None:
            return member.kind, member
        namespace, _, last = leaf.rpartition(".")
        folded = fold(leaf if self._is_namespace(namespace) else last)
        for text in (folded, _NODE_NUMBER.sub("", folded)):
            for ending in self._spelling["gradients"]:
                base = text.removesuffix(ending)
                if base and base != text:
                    member = self._find_member(api, base)
                    return GRADIENT + (member.kind if member else base), member
        return folded, None

    def find_rule(self, kind: str) -> Kind | None:
        """Return the rule of a canonical kind.

        For a gradient without a rule, that of its operator.
        """
        return self.kinds.get(kind) or self.kinds.get(kind.removeprefix(GRADIENT))

    def get_layout(self, kind: str) -> str:
        """Return 'identity', 'selecting' or ''.

        A gradient does not have the layout of its operator: the gradient of a selection scatters.
        """
        rule = self.kinds.get(kind)
        return rule.layout if rule else ""

    def _split_api(self, name: str) -> tuple[str, str]:
        """Return the API and the rest of a name: 'torch', 'linalg.norm' for Torch.linalg.norm."""
        parts = name.strip().split(".")
        api = parts[0].lower()
        if len(parts) == 1 or api not in self._apis:
            return "", name.strip()
        if api == "aten":  # Aten.add.Tensor: the last part is an overload
            return api, parts[1]
        return api, ".".join(parts[1:])

    def _is_namespace(self, text: str) -> bool:
        return text.lower() in self._spelling["namespaces"]

    def _find_member(self, api: str, leaf: str) -> Member | None:
        return self._get_first_member(self._iterate_spellings(api, leaf))

    def iterate_spellings(self, name: str) -> Iterator[str]:
        """Yield the folded spellings under which a rule may name an operator, the fullest first.

        A spelling with the API comes before the one without: ``torch.batchnorm``, ``batchnorm``.
        """
        yield from self._iterate_spellings(*self._split_api(name))

    def _iterate_spellings(self, api: str, leaf: str) -> Iterator[str]:
        namespace, _, last = leaf.rpartition(".")
        yield f"{api}.{fold(leaf)}"
        yield fold(leaf)
        if self._is_namespace(namespace):
            return
        yield f"{api}.{fold(last)}"
        yield fold(last)
        yield from self._list_shorter_spellings(fold(last))

    def fold_spelling(self, spelling: Entry) -> str:
        """Return a spelling as :meth:`iterate_spellings` yields it.

        Raises RuleError if nothing is left of it.
        """
        text = spelling.read_text()
        api, leaf = self._split_api(text)
        folded = fold(leaf)
        if not folded:
            raise spelling.make_error(f"'{text}' is not the name of an operator")
        return f"{api}.{folded}" if api else folded

    def _get_first_member(self, spellings: Iterable[str]) -> Member | None:
        for spelling in spellings:
            member = self.members.get(spelling)
            if member is not None:
                return member
        return None

    def _list_shorter_spellings(self, folded: str) -> Iterator[str]:
        """Yield a spelling without each of the known beginnings and variants."""
        for beginning in ("", *self._spelling["beginnings"]):
            stem = folded.removeprefix(beginning)
            lacks_beginning = bool(beginning) and stem == folded
            if lacks_beginning or not stem:
                continue
            yield stem
            for ending in self._spelling["variants"]:
                shorter = stem.removesuffix(ending)
                if shorter not in ("", stem):
                    yield shorter

    def _read_spelling(self, section: Entry) -> None:
        fields = section.read_fields(("apis", *self._spelling))
        for field, entry in fields.items():
            words = self._apis if field == "apis" else self._spelling[field]
            words.extend(word.read_text().lower() for word in entry.read_texts())

    def _read_kind(
        self,
        name: Entry,
        body: Entry,
        classes: Collection[str],
        source_members: dict[str, Member],
    ) -> None:
        kind = name.read_text()
        earlier_rule = self.kinds.get(kind)
        required = () if earlier_rule else ("class",)
        fields = body.read_fields(("class", "layout", "members"), required)
        kind_class = earlier_rule.kind_class if earlier_rule else ""
        layout = earlier_rule.layout if earlier_rule else ""
        if "class" in fields:
            kind_class = fields["class"].read_choice(classes, "class")
        if "layout" in fields:
            layout = fields["layout"].read_choice(LAYOUTS, "layout")
        self.kinds[kind] = Kind(kind, kind_class, layout, name.place)
        spellings: list[Entry] = []
        if earlier_rule is None and not kind.startswith(GRADIENT):
            spellings.append(name)
        if "members" in fields:
            spellings += fields["members"].read_texts()
        for spelling in spellings:
            self._add_member(spelling, kind, source_members)

    def _add_member(self, spelling: Entry, kind: str, source_members: dict[str, Member]) -> None:
        """Add a spelling. Raises RuleError if the same source gives it to another kind."""
        text = spelling.read_text()
        key = self.fold_spelling(spelling)
        other = source_members.get(key)
        if other is not None and other.kind != kind:
            raise spelling.make_error(
                f"'{text}' is already a member of '{other.kind}' ({other.place})"
            )
        source_members[key] = Member(text, kind, spelling.place)


@cache
def fold(leaf: str) -> str:
    """Return one spelling for all variants of an operator's name without its API.

    >>> fold("LayerNorm"), fold("layer_norm"), fold("__iadd__"), fold("add_"), fold("linalg.norm")
    ('layernorm', 'layernorm', 'add', 'add', 'linalg.norm')
    """
    text = leaf.lower()
    dunder = _DUNDER.fullmatch(text)
    if dunder is not None:
        text = dunder[1]
    return text.replace("_", "")
