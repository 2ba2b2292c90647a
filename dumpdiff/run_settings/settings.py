"""The settings of one training run as written: names with values, each with its file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: The rows of the first three are complete: an option that is not in the table does not exist.
#: The others have their own files in part, see ``rules/settings_frameworks.yaml``.
Framework = Literal[
    "megatron",
    "swift",
    "mindformers",
    "trainer",
    "llamafactory",
    "msswift",
    "accelerate",
    "deepspeed",
    "nemo",
    "torchtitan",
    "verl",
]

FRAMEWORK_NAMES: Mapping[str, str] = {
    "megatron": "Megatron-LM",
    "swift": "Megatron-SWIFT",
    "mindformers": "MindSpore Transformers",
    "trainer": "Hugging Face Trainer",
    "llamafactory": "LLaMA-Factory",
    "msswift": "ms-swift",
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed",
    "nemo": "NeMo",
    "torchtitan": "torchtitan",
    "verl": "verl",
}


@dataclass(frozen=True)
class SettingValue:
    """One value that was set."""

    value: Any  #: of a script its text; of YAML and JSON a plain value
    place: str  #: file:line
    doubt: str = ""  #: why the value is not known although something was set; '' if it is known


@dataclass(frozen=True)
class Settings:
    """The settings of one run.

    ``values`` of the Megatron family have the names of its parsed arguments (``add_bias_linear``,
    underscores). Those of the others have their dotted path in the YAML, JSON or TOML
    (``model.model_config.num_layers``).
    """

    path: str
    framework: Framework
    source: str  #: launch script, arguments in a log, YAML, JSON
    values: Mapping[str, SettingValue]
    environment: Mapping[str, SettingValue] = field(default_factory=dict)
    version: str = ""  #: '0.12'; '' if it is not known
    effective: bool = False  #: all arguments are listed with the value that was used, defaults too
    model: str = ""  #: the config.json with the structure of the model, '' if none was given
    notes: tuple[str, ...] = ()  #: what was not read, or is easily misread
