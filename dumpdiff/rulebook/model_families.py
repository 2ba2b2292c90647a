"""Families of models: how transformers names and arranges the weights of each ``model_type``.

A family's names have priority over those of ``rules/scopes``, because one name means different
things in different models: ``post_attention_layernorm`` is the norm before the MLP in Llama, and
the norm of attention's output in Gemma 2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .document import Entry, Place

#: Frameworks that weights are converted to.
FRAMEWORKS = ("huggingface", "megatron", "mindspore")
#: How the rows of the parts alternate in a fused weight: part after part, by query group (or head),
#: row by row.
Arrangement = Literal["concatenated", "grouped", "interleaved"]
_ARRANGEMENTS: Mapping[str, Arrangement] = {
    "concatenated": "concatenated",
    "grouped": "grouped",
    "interleaved": "interleaved",
}
NORMS = ("RMSNorm", "LayerNorm")
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]+$")
Value = str | bool | float
_FIELDS = (
    "extends", "model_types", "converts_to", "reason", "norm", "norms_minus_one", "rows",
    "transposed", "recognized_by", "scopes", "config", "values", "megatron",
)  # fmt: skip


@dataclass(frozen=True)
class ModelFamily:
    """Models of one architecture. Modules have canonical names."""

    name: str
    place: Place
    classes: Mapping[str, str] = field(default_factory=dict)  #: model_type -> class of transformers
    targets: frozenset[str] = frozenset()  #: frameworks that it is converted to
    #: framework that it is not converted to -> why
    reasons: Mapping[str, str] = field(default_factory=dict)
    norm: str = ""  #: one of :data:`NORMS`
    norms_minus_one: bool = False  #: norm weights are stored minus one
    rows: Mapping[str, Arrangement] = field(default_factory=dict)  #: fused module -> of its parts
    transposed: frozenset[str] = frozenset()  #: modules that are stored as [in, out]
    #: endings of canonical parameters, or parts of stored names, that together show the family
    parameters: tuple[str, ...] = ()
    name_parts: tuple[str, ...] = ()
    layer: str = ""  #: prefix of the names in a layer, with ``{layer}``
    block: Mapping[str, str] = field(default_factory=dict)  #: canonical module -> name in a layer
    model: Mapping[str, str] = field(default_factory=dict)  #: the same outside of layers
    config: Mapping[str, str] = field(default_factory=dict)  #: fact -> its name in config.json
    values: Mapping[str, Value] = field(default_factory=dict)  #: what config.json always has
    #: arguments of Megatron that follow from the family alone
    megatron: Mapping[str, Value] = field(default_factory=dict)
    scopes: tuple[Entry, ...] = ()  #: names as rules, those of the extended family first


class FamilyRules:
    """All model families; later sources override earlier ones of the same name."""

    def __init__(self, sources: Sequence[Sequence[Entry]]) -> None:
        bodies: dict[str, tuple[Entry, Entry]] = {}
        for source in sources:
            for section in source:
                for name, body in section.read_pairs().items():
                    bodies[name.read_text()] = name, body
        self._families: dict[str, ModelFamily] = {}
        for family_name in bodies:
            self._read_family(family_name, bodies, ())
        self._by_type: dict[str, ModelFamily] = {}
        for family in self._families.values():
            for model_type in family.classes:
                self._by_type[model_type] = family

    def find(self, model_type: str) -> ModelFamily | None:
        """Return the family of a ``model_type`` of config.json; None if no rule knows it."""
        return self._by_type.get(model_type)

    def list_model_types(self, framework: str) -> list[str]:
        """Return the model types that are converted to a framework, sorted."""
        return sorted(
            model_type
            for model_type, family in self._by_type.items()
            if framework in family.targets
        )

    def recognize_names(self, names: Collection[str]) -> ModelFamily | None:
        """Return the family that stored names belong to; None if none is certain."""
        text = "\n".join(names)
        return _find_most_specific(
            (family, family.name_parts)
            for family in self._families.values()
            if all(part in text for part in family.name_parts)
        )

    def recognize_parameters(self, paths: Collection[str]) -> ModelFamily | None:
        """Return the family that canonical parameters belong to; None if none is certain."""
        return _find_most_specific(
            (family, family.parameters)
            for family in self._families.values()
            if all(any(path.endswith(end) for path in paths) for end in family.parameters)
        )

    def _read_family(
        self, name: str, bodies: Mapping[str, tuple[Entry, Entry]], ancestors: tuple[str, ...]
    ) -> ModelFamily:
        if name in self._families:
            return self._families[name]
        key, body = bodies[name]
        fields = body.read_fields(_FIELDS)
        base = ModelFamily("", key.place)
        if "extends" in fields:
            base_name = fields["extends"].read_choice(list(bodies), "family")
            if base_name in (name, *ancestors):
                raise fields["extends"].make_error(f"'{name}' extends itself")
            base = self._read_family(base_name, bodies, (*ancestors, name))
        self._families[name] = _build_family(name, key.place, fields, base)
        return self._families[name]


def _find_most_specific(
    candidates: Iterable[tuple[ModelFamily, tuple[str, ...]]],
) -> ModelFamily | None:
    """Return the family with most signs; None if two have as many."""
    families: list[ModelFamily] = []
    n_signs = 1
    for family, signs in candidates:
        if len(signs) > n_signs:
            families, n_signs = [family], len(signs)
        elif len(signs) == n_signs:
            families.append(family)
    return families[0] if len(families) == 1 else None


def _build_family(
    name: str, place: Place, fields: Mapping[str, Entry], base: ModelFamily
) -> ModelFamily:
    """Return a family from its fields; names are added to those of ``base``."""
    targets: set[str] = set()
    if "converts_to" in fields:
        for entry in fields["converts_to"].read_texts():
            targets.add(entry.read_choice(FRAMEWORKS, "framework"))
    signs = {"parameters": (), "names": ()} | _read_signs(fields)
    layer, block, model = base.layer, dict(base.block), dict(base.model)
    scopes = base.scopes
    if "scopes" in fields:
        sections = fields["scopes"].read_fields(("layers", "block", "model"))
        scopes = (*scopes, fields["scopes"])
        if "layers" in sections:
            layer = next(iter(_read_names(sections["layers"]).values()))
        block |= _read_module_names(sections.get("block"))
        model |= _read_module_names(sections.get("model"))
    return ModelFamily(
        name,
        place,
        classes=_read_words(fields.get("model_types")),
        targets=frozenset(targets),
        reasons=_read_reasons(fields.get("reason")),
        norm=fields["norm"].read_choice(NORMS, "norm") if "norm" in fields else base.norm,
        norms_minus_one=_read_flag(fields.get("norms_minus_one")),
        rows={**base.rows, **_read_rows(fields.get("rows"))},
        transposed=base.transposed | _read_set(fields.get("transposed")),
        parameters=signs["parameters"],
        name_parts=signs["names"],
        layer=layer,
        block=block,
        model=model,
        config={**base.config, **_read_words(fields.get("config"))},
        values={**base.values, **_read_values(fields.get("values"))},
        megatron=_read_values(fields.get("megatron")),
        scopes=scopes,
    )


def _read_reasons(entry: Entry | None) -> dict[str, str]:
    """Return framework -> reason; a single text is the reason for every framework."""
    if entry is None:
        return {}
    if entry.is_text:
        return dict.fromkeys(FRAMEWORKS, entry.read_text())
    return {name: value.read_text() for name, value in entry.read_fields(FRAMEWORKS).items()}


def _read_signs(fields: Mapping[str, Entry]) -> dict[str, tuple[str, ...]]:
    if "recognized_by" not in fields:
        return {}
    signs = fields["recognized_by"].read_fields(("parameters", "names"))
    return {
        key: tuple(entry.read_text() for entry in value.read_texts())
        for key, value in signs.items()
    }


def _read_rows(entry: Entry | None) -> dict[str, Arrangement]:
    if entry is None:
        return {}
    return {
        key.read_text(): _ARRANGEMENTS[value.read_choice(_ARRANGEMENTS, "arrangement of rows")]
        for key, value in entry.read_pairs().items()
    }


def _read_words(entry: Entry | None) -> dict[str, str]:
    if entry is None:
        return {}
    return {key.read_text(): value.read_text() for key, value in entry.read_pairs().items()}


def _read_values(entry: Entry | None) -> dict[str, Value]:
    """Return texts; flags as truth values, and numbers with a decimal point as numbers."""
    flags: Mapping[str, Value] = {"true": True, "false": False}
    values: dict[str, Value] = {}
    for key, text in _read_words(entry).items():
        is_number = _NUMBER.match(text) is not None
        values[key] = float(text) if is_number else flags.get(text, text)
    return values


def _read_set(entry: Entry | None) -> frozenset[str]:
    return frozenset() if entry is None else frozenset(e.read_text() for e in entry.read_texts())


def _read_flag(entry: Entry | None) -> bool:
    return entry is not None and entry.read_choice(("true", "false"), "value") == "true"


def _read_module_names(entry: Entry | None) -> dict[str, str]:
    """Return canonical name -> written name of the modules and parameters of a section."""
    names: dict[str, str] = {}
    if entry is not None:
        for section in entry.read_fields(("modules", "parameters")).values():
            names |= _read_names(section)
    return names


def _read_names(entry: Entry) -> dict[str, str]:
    """Return canonical name -> its first pattern, which is the name that is written."""
    return {
        key.read_text(): value.read_texts()[0].read_text()
        for key, value in entry.read_pairs().items()
    }
