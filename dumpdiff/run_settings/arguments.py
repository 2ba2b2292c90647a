"""Arguments that a run of Megatron-LM or Megatron-SWIFT printed in a log, or saved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .settings import Framework, Settings, SettingValue
from .table import load_table

_BEGIN = re.compile(r"-{5,} arguments -{5,}\s*$")
_END = re.compile(r"-{5,} end of arguments -{5,}")
_LINE = re.compile(r"(?:\[?[\w.:-]+\]?: ?)?  (\w+) (?:\.+ ?| )(.*)$")
#: The repr of an object with arguments, and the framework that prints it so.
_OBJECTS: tuple[tuple[re.Pattern[str], Framework], ...] = (
    (re.compile(r"args: Megatron\w*Arg\w*\("), "swift"),
    (re.compile(r"args: (?:Train|Sft|Rlhf|RLHF|Pretrain)\w*Arg\w*\("), "msswift"),
    (re.compile(r"\b(?:(?:Seq2Seq)?TrainingArguments|(?:SFT|DPO)Config)\($"), "trainer"),
)
_OBJECT_LINE = re.compile(r"^\s*(\w+)=(.*?),?$")
_MICROSECONDS = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\] iteration ")


def has_arguments(text: str) -> bool:
    """Return whether a text is a log with a block of arguments."""
    lines = text.splitlines()
    if any(_BEGIN.search(line) for line in lines):
        return True
    return next(_find_objects(lines), None) is not None


def _find_objects(lines: Sequence[str]) -> Iterator[tuple[int, Framework]]:
    """Iterate over the lines that begin the repr of an object with arguments."""
    for number, line in enumerate(lines):
        for pattern, framework in _OBJECTS:
            if pattern.search(line):
                yield number, framework


def read_arguments(text: str, path: str, file: str) -> Settings:
    """Read the last block of arguments of a log; a restarted run prints one each time."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if _BEGIN.search(line)]
    if begins:
        return _read_megatron_block(lines, begins[-1], text, path, file)
    begin, framework = list(_find_objects(lines))[-1]
    values: dict[str, SettingValue] = {}
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        if line.strip() == ")":
            break
        if match := _OBJECT_LINE.match(line):
            values[match[1]] = SettingValue(_strip_quotes(match[2]), f"{file}:{number}")
    if framework == "swift":
        values = _expand_options(values)
    return Settings(path, framework, "arguments in the log", values, effective=True)


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


def read_argument_mapping(
    mapping: Mapping[str, Any], framework: Framework, path: str, file: str
) -> Settings:
    """Return arguments of the Megatron family as settings: args.json, or those of a checkpoint."""
    values: Mapping[str, SettingValue] = {
        str(name): SettingValue(value, file) for name, value in mapping.items()
    }
    if framework == "swift":
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
