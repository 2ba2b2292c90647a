"""``rules/settings.yaml`` as data: corresponding options of the frameworks, and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import yaml

from ..rulebook.files import find_shipped_root
from .settings import Framework, Settings

Effect = Literal["numbers", "precision", "rounding", "none"]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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

    def get_names(self, framework: Framework) -> tuple[str, ...]:
        """Return the names of the row in one framework; () if it does not have it."""
        return self.mindformers if framework == "mindformers" else self.megatron


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
        if framework != "mindformers":
            keys = [name.replace("-", "_")]
            for key, effect in self.flags.get(name, {}).items():
                if isinstance(effect, bool) or effect == "value":
                    keys.append(key)
            return tuple(keys)
        place, _, key = name.rpartition(".")
        return tuple(f"{root}.{key}".lstrip(".") for root in self.places[place])

    def find_default(self, name: str, settings: Settings) -> Default | None:
        """Return the default of a name of a row in ``settings``, None if the table has none."""
        for key, defaults in self._list_defaults(name, settings):
            if key in defaults:
                return _select_default(defaults[key], settings.version)
        return None

    def _list_mindformers_defaults(
        self, name: str, settings: Settings
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the key with its defaults; those of a legacy model are known for Llama only."""
        belongs_to_model = name.startswith(("model.", "moe.", "mla."))
        if not belongs_to_model or not _is_legacy(settings):
            return [(name, self.defaults["mindformers"])]
        if _is_llama(settings):
            return [(name, self.defaults["legacy"])]
        return []

    def _list_defaults(self, name: str, settings: Settings) -> list[tuple[str, Mapping[str, Any]]]:
        """Return keys, each with the defaults in which to look it up."""
        if settings.framework == "mindformers":
            return self._list_mindformers_defaults(name, settings)
        layers = ["swift", "megatron"] if settings.framework == "swift" else ["megatron"]
        keys = self.list_keys(name, settings.framework)
        return [(key, self.defaults[layer]) for layer in layers for key in keys]


def _is_legacy(settings: Settings) -> bool:
    setting = settings.values.get("use_legacy")
    return setting is None or str(setting.value).lower() != "false"


def _is_llama(settings: Settings) -> bool:
    """Return whether the configuration class of a legacy model is LlamaConfig.

    The defaults of the other classes are not known.
    """
    setting = settings.values.get("model.model_config.type")
    return setting is None or "llama" in str(setting.value).lower()


def _select_default(value: Any, version: str) -> Default:
    """Return the default of a version.

    The keys of a mapping are the versions from which each value holds.
    """
    if not isinstance(value, dict):
        return Default(value)
    history = ", ".join(f"{default} from {since}" for since, default in value.items())
    if not version:
        return Default(None, f"the default changed ({history}) and the version is not known")
    numbers = _parse_version(version)
    reached = [default for since, default in value.items() if _parse_version(since) <= numbers]
    if not reached:
        return Default(None, f"the default before the first known version ({history})")
    return Default(reached[-1])


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@cache
def load_table() -> Table:
    """Read the shipped table once."""
    with (find_shipped_root() / "settings.yaml").open(encoding="utf-8") as stream:
        data = yaml.load(stream, Loader=_LOADER)
    rows = tuple(_build_row(name, fields) for name, fields in data["settings"].items())
    switches = set(data["switches"])
    for row in rows:
        if row.type == "boolean":
            switches.update(row.megatron)
    # A flag that sets something else has no value either, unless it passes its value on.
    for flag, effects in data["flags"].items():
        if "value" not in effects.values():
            switches.add(flag)
    return Table(
        rows=rows,
        flags=data["flags"],
        switches=frozenset(switches),
        places={name: tuple(roots) for name, roots in data["places"].items()},
        defaults=data["defaults"],
        from_model=frozenset(data["from_model"]),
        config_json=data["config_json"],
        first_effects=data["shows"],
    )


def _build_row(name: str, fields: Mapping[str, Any]) -> Row:
    values: dict[str, Any] = {}
    for key, value in fields.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    return Row(name, **values)
