"""Arguments that a run printed or saved: the block of a Megatron-LM log, Megatron-SWIFT's, or a mapping of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .settings import Framework, Given, Settings

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


def holds_arguments(text: str) -> bool:
    """Whether a text is a log with a block of arguments."""
    return any(_BEGIN.search(line) for line in text.splitlines()) or _SWIFT.search(text) is not None


def read_arguments(text: str, path: str, file: str) -> Settings:
    """The last block of arguments of a log: a restarted run prints one each time."""
    lines = text.splitlines()
    begins = [i for i, line in enumerate(lines) if _BEGIN.search(line)]
    if begins:
        return _megatron(lines, begins[-1], text, path, file)
    begins = [i for i, line in enumerate(lines) if _SWIFT.search(line)]
    found: dict[str, Given] = {}
    for number, line in enumerate(lines[begins[-1] + 1 :], begins[-1] + 2):
        if line.strip() == ")":
            break
        if match := _SWIFT_LINE.match(line):
            found[match[1]] = Given(_unquoted(match[2]), f"{file}:{number}")
    return Settings(path, "swift", "arguments in the log", _renamed(found), effective=True)


def _megatron(lines: list[str], begin: int, text: str, path: str, file: str) -> Settings:
    found: dict[str, Given] = {}
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        if _END.search(line):
            break
        if match := _LINE.match(line):
            found[match[1]] = Given(match[2].strip(), f"{file}:{number}")
    # Microseconds in the time of a line came with 0.16; nothing tells the versions before apart.
    version = "0.17" if _MICROSECONDS.search(text) else ""
    return Settings(
        path, "megatron", "arguments in the log", found, version=version, effective=True
    )


def from_mapping(mapping: Mapping[str, Any], path: str, file: str) -> Settings:
    """Arguments as a mapping of names to values: args.json, or the ``args`` of a checkpoint."""
    found = {str(name): Given(value, file) for name, value in mapping.items()}
    framework: Framework = "swift" if _SWIFT_ONLY & found.keys() else "megatron"
    values = _renamed(found) if framework == "swift" else found
    return Settings(path, framework, "saved arguments", values, effective=True)


def of_swift(settings: Settings) -> Settings:
    """A YAML of options in place of options on the command line."""
    return replace(settings, framework="swift", values=_renamed(settings.values))


def _renamed(found: Mapping[str, Given]) -> dict[str, Given]:
    """Megatron-SWIFT keeps names of options (``no_rope_fusion``); what they set is what counts."""
    from .table import load_table

    table = load_table()
    values: dict[str, Given] = {}
    for name, given in found.items():
        for key, value in table.means(name.replace("_", "-"), _switched(given.value)).items():
            if value is not None or key == name:
                values[key] = Given(value, given.place)
    return values


def _switched(value: Any) -> Any:
    return {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
