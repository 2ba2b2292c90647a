"""``rules/settings.yaml`` as data: which setting of one framework is which of another, and what silence means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import yaml

from ..rulebook.files import shipped_root
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

    def names(self, framework: Framework) -> tuple[str, ...]:
        """How one framework calls it; () if it does not have it."""
        return self.mindformers if framework == "mindformers" else self.megatron


@dataclass(frozen=True)
class Default:
    """What a silent option means."""

    value: Any
    changed: str = ""  #: why it cannot be told: it changed with the version; '' if it can


@dataclass(frozen=True)
class Table:
    """The whole correspondence."""

    rows: tuple[Row, ...]
    flags: Mapping[str, Mapping[str, Any]]
    switches: frozenset[str]
    places: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Mapping[str, Any]]
    from_model: frozenset[str]
    config_json: Mapping[str, str]
    shown: Mapping[str, Mapping[str, str]]

    def shows(self, setting: str, section: str) -> str:
        """Where another value shows first in a training: data, weights, forward, backward, optimizer or schedule."""
        return self.shown["settings"].get(setting, self.shown["sections"][section])

    @cached_property
    def options(self) -> frozenset[str]:
        """All options of Megatron-LM that the table knows, as they are written."""
        return frozenset(
            {name for row in self.rows for name in row.megatron} | set(self.flags) | self.switches
        )

    def option(self, name: str) -> str:
        """The option meant by ``name``: argparse takes any beginning that only one option has."""
        if name in self.options:
            return name
        longer = [option for option in self.options if option.startswith(name)]
        return longer[0] if len(longer) == 1 else name

    def means(self, option: str, value: Any) -> dict[str, Any]:
        """What an option sets: ``disable-bias-linear`` sets add_bias_linear to false, unless it is given 'false'."""
        if option not in self.flags:
            return {option.replace("-", "_"): value}
        off = isinstance(value, str) and value.lower() == "false"
        return {
            name: value
            if sets == "value"
            else (not sets if isinstance(sets, bool) else None)
            if off
            else sets
            for name, sets in self.flags[option].items()
        }

    def candidates(self, name: str, framework: Framework) -> tuple[str, ...]:
        """Under which keys of :attr:`Settings.values` a name of a row may be found, the first that is there counts."""
        if framework != "mindformers":
            sets = self.flags.get(name, {}).items()
            means = (key for key, value in sets if isinstance(value, bool) or value == "value")
            return (name.replace("-", "_"), *means)
        place, _, key = name.rpartition(".")
        return tuple(f"{root}.{key}".lstrip(".") for root in self.places[place])

    def default(self, name: str, settings: Settings) -> Default | None:
        """What the silence of ``settings`` about a name of a row means, None if the table does not know."""
        for key, layer in self._layers(name, settings):
            if key in layer:
                return _of_version(layer[key], settings.version)
        return None

    def _layers(self, name: str, settings: Settings) -> list[tuple[str, Mapping[str, Any]]]:
        if settings.framework == "mindformers":
            layer = (
                "legacy"
                if name.startswith(("model.", "moe.", "mla.")) and _legacy(settings)
                else "mindformers"
            )
            return (
                [(name, self.defaults[layer])]
                if layer == "mindformers" or _of_llama(settings)
                else []
            )
        layers = ["swift", "megatron"] if settings.framework == "swift" else ["megatron"]
        return [
            (key, self.defaults[layer])
            for layer in layers
            for key in self.candidates(name, settings.framework)
        ]


def _legacy(settings: Settings) -> bool:
    given = settings.values.get("use_legacy")
    return given is None or str(given.value).lower() != "false"


def _of_llama(settings: Settings) -> bool:
    """Legacy models have a configuration class each; the defaults that are known are those of LlamaConfig."""
    given = settings.values.get("model.model_config.type")
    return given is None or "llama" in str(given.value).lower()


def _of_version(value: Any, version: str) -> Default:
    """The default in force: a mapping's keys are the versions from which each value holds."""
    if not isinstance(value, dict):
        return Default(value)
    said = ", ".join(f"{default} from {since}" for since, default in value.items())
    if not version:
        return Default(None, f"the default changed ({said}) and the version is not known")
    reached = [default for since, default in value.items() if _ordered(since) <= _ordered(version)]
    return (
        Default(reached[-1])
        if reached
        else Default(None, f"the default before the first known version ({said})")
    )


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@cache
def load_table() -> Table:
    """The shipped table, read once."""
    with (shipped_root() / "settings.yaml").open(encoding="utf-8") as stream:
        data = yaml.load(stream, Loader=_LOADER)
    rows = [
        Row(name, **{key: _tuples(value) for key, value in row.items()})
        for name, row in data["settings"].items()
    ]
    switches = {name for row in rows if row.type == "boolean" for name in row.megatron}
    # What sets something else takes no value either, unless it hands its value on.
    switches |= {flag for flag, sets in data["flags"].items() if "value" not in sets.values()}
    return Table(
        rows=tuple(rows),
        flags=data["flags"],
        switches=frozenset(switches | set(data["switches"])),
        places={name: tuple(roots) for name, roots in data["places"].items()},
        defaults=data["defaults"],
        from_model=frozenset(data["from_model"]),
        config_json=data["config_json"],
        shown=data["shows"],
    )


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
