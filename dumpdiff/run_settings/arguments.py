"""Arguments that a run of Megatron-LM or Megatron-SWIFT printed in a log, or saved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .settings import Framework, Settings, SettingValue
from .table import load_table

_BEGIN = re.compile(r"-{5,} arguments -{5,}\s*$")
_END = re.compile(r"-{5,} end of arguments -{5,}")
_LINE = re.compile(r"(?:\[?[\w.:-]+\]?: ?)?  (\w+) (?:\.+ ?| )(.*)$")
_SWIFT = re.compile(r"args: (?:Megatron|Train|Rlhf|RLHF)\w*Arg\w*\(")
_SWIFT_LINE = re.compile(r"^(\w+)=(.*?),?$")
_MICROSECONDS = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\] iteration ")
#: Arguments that only Megatron-SWIFT has.
_SWIFT_ONLY = {
    "model_type",
    "template",
    "torch_dtype",
    "train_type",
    "tuner_type",
    "split_dataset_ratio",
}


def has_arguments(text: str) -> bool:
    """Return whether a text is a log with a block of arguments."""
    if any(_BEGIN.search(line) for line in text.splitlines()):
        return True
    return _SWIFT.search(text) is not None


def read_arguments(text: str, path: str, file: str) -> Settings:
    """Read the last block of arguments of a log; a restarted run prints one each time."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if _BEGIN.search(line)]
    if begins:
        return _read_megatron_block(lines, begins[-1], text, path, file)
    begins = [number for number, line in enumerate(lines) if _SWIFT.search(line)]
    values: dict[str, SettingValue] = {}
    for number, line in enumerate(lines[begins[-1] + 1 :], begins[-1] + 2):
        if line.strip() == ")":
            break
        if match := _SWIFT_LINE.match(line):
            values[match[1]] = SettingValue(_strip_quotes(match[2]), f"{file}:{number}")
    expanded_values = _expand_options(values)
    return Settings(path, "swift", "arguments in the log", expanded_values, effective=True)


def _read_megatron_block(lines: list[str], begin: int, text: str, path: str, file: str) -> Settings:
    values: dict[str, SettingValue] = {}
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        if _END.search(line):
            break
        if match := _LINE.match(line):
            values[match[1]] = SettingValue(match[2].strip(), f"{file}:{number}")
    # Megatron-LM prints microseconds since 0.16. Earlier versions cannot be told apart.
    version = "0.17" if _MICROSECONDS.search(text) else ""
    return Settings(
        path, "megatron", "arguments in the log", values, version=version, effective=True
    )


def read_argument_mapping(mapping: Mapping[str, Any], path: str, file: str) -> Settings:
    """Return arguments in a mapping as settings: args.json, or the ``args`` of a checkpoint."""
    values: Mapping[str, SettingValue] = {
        str(name): SettingValue(value, file) for name, value in mapping.items()
    }
    framework: Framework = "megatron"
    if _SWIFT_ONLY & values.keys():
        framework = "swift"
        values = _expand_options(values)
    return Settings(path, framework, "saved arguments", values, effective=True)


def convert_swift_options(settings: Settings) -> Settings:
    """Return a YAML of Megatron-SWIFT's options as if they were given on the command line."""
    return replace(settings, framework="swift", values=_expand_options(settings.values))


def _expand_options(options: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Replace the options of Megatron-SWIFT (``no_rope_fusion``) by the arguments that they set."""
    table = load_table()
    values: dict[str, SettingValue] = {}
    for name, option in options.items():
        arguments = table.expand_option(name.replace("_", "-"), _format_boolean(option.value))
        for key, value in arguments.items():
            if value is not None or key == name:
                values[key] = SettingValue(value, option.place)
    return values


def _format_boolean(value: Any) -> Any:
    """Return a boolean as the text of a command line, anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _strip_quotes(text: str) -> str:
    if len(text) > 1 and text[0] in "'\"" and text[0] == text[-1]:
        return text[1:-1]
    return text
