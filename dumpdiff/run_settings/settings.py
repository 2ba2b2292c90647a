"""What was set for one training run, as written: names to values, each with the place where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Framework = Literal["megatron", "swift", "mindformers"]

#: As a person calls them.
SPOKEN: Mapping[str, str] = {
    "megatron": "Megatron-LM",
    "swift": "Megatron-SWIFT",
    "mindformers": "MindSpore Transformers",
}


@dataclass(frozen=True)
class Given:
    """One value that was set."""

    value: Any  #: a text of a script as it stands; of YAML and JSON a plain value
    place: str  #: file:line
    doubt: str = ""  #: why the value is not known although something was set; '' if it is


@dataclass(frozen=True)
class Settings:
    """One run's settings.

    ``values`` of the Megatron family are named as its parsed arguments are (``add_bias_linear``, underscores);
    those of MindSpore Transformers by their dotted path in the YAML (``model.model_config.num_layers``).
    """

    path: str
    framework: Framework
    source: str  #: launch script, arguments in a log, YAML, JSON
    values: Mapping[str, Given]
    environment: Mapping[str, Given] = field(default_factory=dict)
    version: str = ""  #: '0.12'; '' if nothing says so
    effective: bool = (
        False  #: all arguments are listed with the value that was used, so that none is silent
    )
    model: str = ""  #: the config.json that the structure is taken from, '' if none was given
    notes: tuple[str, ...] = ()  #: what was not read, or is easily misread
