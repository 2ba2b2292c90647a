"""The tables of settings as data: corresponding options of the frameworks, and defaults.

``rules/settings.yaml`` has Megatron-LM, Megatron-SWIFT and MindSpore Transformers,
``rules/settings_frameworks.yaml`` the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

import yaml

from ..rulebook.files import find_shipped_root
from .settings import Framework, Settings

Effect = Literal["numbers", "precision", "rounding", "none"]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MEGATRON_FAMILY: tuple[Framework, ...] = ("megatron", "swift")
#: Frameworks of which the table has every option. Of the others a row without names says nothing.
COMPLETE_FRAMEWORKS: tuple[Framework, ...] = (*MEGATRON_FAMILY, "mindformers")
#: What a default of the table is replaced by if it is not one value for all.
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """One thing that can be set; the fields are explained at the head of the file."""

    name: str
    section: str
    type: str
    effect: Effect
    megatron: tuple[str, ...]
    mindformers: tuple[str, ...]
    derive: str = ""
    needs: str = ""
    item: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    #: names in the frameworks of ``rules/settings_frameworks.yaml``
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def get_names(self, framework: Framework) -> tuple[str, ...]:
        """Return the names of the row in one framework; () if it does not have it."""
        if framework == "mindformers":
            return self.mindformers
        if framework in MEGATRON_FAMILY:
            return self.megatron
        return self.further.get(framework, ())


@dataclass(frozen=True)
class Default:
    """The value of an option that is not set."""

    value: Any
    changed: str = ""  #: why it is not known: it changed with the version; '' if it is known


@dataclass(frozen=True)
class Table:
    """The whole file."""

    rows: tuple[Row, ...]
    flags: Mapping[str, Mapping[str, Any]]
    switches: frozenset[str]
    places: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Mapping[str, Any]]
    from_model: frozenset[str]
    config_json: Mapping[str, str]
    first_effects: Mapping[str, Mapping[str, str]]
    #: defaults of a configuration class of MindSpore Transformers' core models, by its model_type
    model_classes: Mapping[str, Mapping[str, Any]]
    #: what the model classes of Hugging Face compute, by model_type and row
    architectures: Mapping[str, Mapping[str, Any]]

    def get_first_effect(self, setting: str, section: str) -> str:
        """Return where another value shows first.

        That is data, weights, forward, backward, optimizer or schedule.
        """
        of_section = self.first_effects["sections"][section]
        return self.first_effects["settings"].get(setting, of_section)

    @cached_property
    def options(self) -> frozenset[str]:
        """All options of Megatron-LM in the table, as they are written."""
        of_rows = {name for row in self.rows for name in row.megatron}
        return frozenset(of_rows | set(self.flags) | self.switches)

    def resolve_option(self, name: str) -> str:
        """Return the option meant by ``name``: argparse accepts any unambiguous beginning."""
        if name in self.options:
            return name
        longer = [option for option in self.options if option.startswith(name)]
        return longer[0] if len(longer) == 1 else name

    def expand_option(self, option: str, value: Any) -> dict[str, Any]:
        """Return the arguments that an option sets.

        ``disable-bias-linear`` sets add_bias_linear to false, unless its value is 'false'.
        """
        if option not in self.flags:
            return {option.replace("-", "_"): value}
        is_off = isinstance(value, str) and value.lower() == "false"
        arguments: dict[str, Any] = {}
        for name, effect in self.flags[option].items():
            if effect == "value":
                arguments[name] = value
            elif not is_off:
                arguments[name] = effect
            else:
                arguments[name] = not effect if isinstance(effect, bool) else None
        return arguments

    def list_keys(self, name: str, framework: Framework) -> tuple[str, ...]:
        """Return the keys of :attr:`Settings.values` that a name of a row may have, best first."""
        if framework in MEGATRON_FAMILY:
            keys = [name.replace("-", "_")]
            for key, effect in self.flags.get(name, {}).items():
                if isinstance(effect, bool) or effect == "value":
                    keys.append(key)
            return tuple(keys)
        if framework != "mindformers":
            return (name,)
        place, _, key = name.rpartition(".")
        return tuple(f"{root}.{key}".lstrip(".") for root in self.places[place])

    def find_default(self, name: str, settings: Settings) -> Default | None:
        """Return the default of a name of a row in ``settings``, None if the table has none."""
        for key, defaults in self._list_defaults(name, settings):
            if key in defaults:
                return _select_default(defaults[key], settings.version)
        return None

    def _list_defaults(self, name: str, settings: Settings) -> list[tuple[str, Mapping[str, Any]]]:
        """Return keys, each with the defaults in which to look it up."""
        if settings.framework == "mindformers":
            return self._list_mindformers_defaults(name, settings)
        layers: tuple[str, ...] = (settings.framework,)
        if settings.framework == "swift":
            layers = ("swift", "megatron")
        keys = self.list_keys(name, settings.framework)
        return [(key, self.defaults[layer]) for layer in layers for key in keys]

    def _list_mindformers_defaults(
        self, name: str, settings: Settings
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the key with its defaults.

        Those of a model are the defaults of its configuration class. They are known for LlamaConfig
        (legacy models) and for the classes of ``model_classes``. What differs between these classes
        is not known for any other class.
        """
        if not name.startswith(("model.", "moe.", "mla.")):
            return [(name, self.defaults["mindformers"])]
        if _is_legacy(settings):
            return [(name, self.defaults["legacy"])] if _is_llama(settings) else []
        class_defaults = self.model_classes.get(find_model_class(settings))
        if class_defaults is not None:
            return [(name, class_defaults), (name, self.defaults["mindformers"])]
        if any(name in other_defaults for other_defaults in self.model_classes.values()):
            return []
        return [(name, self.defaults["mindformers"])]


def _is_legacy(settings: Settings) -> bool:
    setting = settings.values.get("use_legacy")
    return setting is None or str(setting.value).lower() != "false"


def _is_llama(settings: Settings) -> bool:
    """Return whether the configuration class of a legacy model is LlamaConfig.

    The defaults of the other classes are not known.
    """
    setting = settings.values.get("model.model_config.type")
    return setting is None or "llama" in str(setting.value).lower()


def find_model_class(settings: Settings) -> str:
    """Return what names the configuration class of a model of MindSpore Transformers, or ''.

    That is the model_type of a core model, the type of a legacy one.
    """
    for name in ("model.model_config.model_type", "model.model_config.type"):
        if name in settings.values:
            return str(settings.values[name].value).lower()
    return ""


def _select_default(value: Any, version: str) -> Default:
    """Return the default of a version.

    The keys of a mapping are the versions from which each value holds, or 'unknown' with the
    reason.
    """
    if not isinstance(value, dict):
        return Default(value)
    if _UNKNOWN in value:
        return Default(None, f"not set: {value[_UNKNOWN]}")
    history = ", ".join(f"{default} from {since}" for since, default in value.items())
    if not version:
        return Default(None, f"the default changed ({history}) and the version is not known")
    numbers = _parse_version(version)
    reached = [default for since, default in value.items() if _parse_version(since) <= numbers]
    if not reached:
        return Default(None, f"the default before the first known version ({history})")
    return Default(reached[-1])


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


@cache
def load_table() -> Table:
    """Read the shipped tables once."""
    data = _load_yaml("settings.yaml")
    further = _load_yaml("settings_frameworks.yaml")
    frameworks: dict[str, Any] = further["frameworks"]
    rows = []
    for name, fields in {**data["settings"], **further["settings"]}.items():
        row = _build_row(name, fields)
        rows.append(replace(row, further=_collect_names(name, frameworks)))
    switches = set(data["switches"])
    for row in rows:
        if row.type == "boolean":
            switches.update(row.megatron)
    # A flag that sets something else has no value either, unless it passes its value on.
    for flag, effects in data["flags"].items():
        if "value" not in effects.values():
            switches.add(flag)
    further_defaults = {
        name: _collect_defaults(framework, frameworks) for name, framework in frameworks.items()
    }
    return Table(
        rows=tuple(rows),
        flags=data["flags"],
        switches=frozenset(switches),
        places={name: tuple(roots) for name, roots in data["places"].items()},
        defaults={**data["defaults"], **further_defaults},
        from_model=frozenset(data["from_model"]),
        config_json=data["config_json"],
        first_effects=data["shows"],
        model_classes=data["model_classes"],
        architectures=further["architectures"],
    )


def _load_yaml(name: str) -> dict[str, Any]:
    with (find_shipped_root() / name).open(encoding="utf-8") as stream:
        data: dict[str, Any] = yaml.load(stream, Loader=_LOADER)
    return data


def _collect_names(row: str, frameworks: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of a row in each framework, its own before those of its base."""
    names: dict[str, tuple[str, ...]] = {}
    for name, framework in frameworks.items():
        base = frameworks.get(framework.get("base", ""), {"rows": {}})
        keys = framework["rows"].get(row, base["rows"].get(row))
        if keys is not None:
            names[name] = tuple(keys)
    return names


def _collect_defaults(
    framework: Mapping[str, Any], frameworks: Mapping[str, Any]
) -> dict[str, Any]:
    base = frameworks.get(framework.get("base", ""), {"defaults": {}})
    return {**base["defaults"], **framework["defaults"]}


def _build_row(name: str, fields: Mapping[str, Any]) -> Row:
    values: dict[str, Any] = {"megatron": (), "mindformers": ()}
    for key, value in fields.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    return Row(name, **values)
