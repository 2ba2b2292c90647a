"""Build msprobe's config.json from options, and check every rule before it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...model.errors import DumpError
from .fields import BY_NAME, PYTORCH
from .version import LATEST, Version, format_version

_MAX_NUMBER = 1_000_000  #: largest step or rank that msprobe accepts
_PATH = re.compile(r"[A-Za-z0-9_.:/-]+")
_API = re.compile(
    r"(Distributed|Functional|Torch|Tensor|Mint|MintFunctional|MintDistributed|Primitive|Aten|VF|NPU|Jit)\..+"
    r"\.\d+\.(forward|backward)"
)
_MODULE = re.compile(r"(Cell|Module)\..+\.(forward|backward)\.\d+")
_FIRST_WITH_XOR: Version = (26, 2)  #: the first version whose source was read that has it
_NUMBERS = re.compile(r"\d+(-\d+)?")


@dataclass(frozen=True)
class Options:
    """What to record."""

    path: str  #: folder of the dump
    framework: str = PYTORCH
    version: Version = LATEST
    task: str = "statistics"  #: statistics or tensor
    level: str = "mix"
    steps: tuple[str, ...] = ("0",)  #: '0', '5-8'; empty: all
    ranks: tuple[str, ...] = ()  #: empty: all
    names: tuple[str, ...] = ()  #: only calls whose names contain any of these
    scope: tuple[str, ...] = ()  #: empty, or the full names of the first and the last call
    data_mode: tuple[str, ...] = ("all",)
    summary_mode: str = "statistics"  #: statistics, md5 or xor
    tensor_list: tuple[str, ...] = ()  #: whole tensors of these, in addition to all statistics
    precision: str = ""  #: low or high; '' leaves it to msprobe
    risk_level: str = ""  #: CORE, FOCUS or ALL; '' leaves it to msprobe
    async_dump: bool = False  #: write at the end of the step


def build_configuration(options: Options) -> dict[str, Any]:
    """Return the content of config.json.

    Raises DumpError with the broken rule for options that msprobe would refuse or ignore.
    """
    for reason in _find_violations(options):
        raise DumpError(f"msprobe {format_version(options.version)}: {reason}")
    section: dict[str, Any] = {
        "scope": list(options.scope),
        "list": list(options.names),
        "data_mode": list(options.data_mode),
    }
    if options.task == "statistics":
        section["summary_mode"] = options.summary_mode
        if options.tensor_list:
            section["tensor_list"] = list(options.tensor_list)
    config: dict[str, Any] = {
        "task": options.task,
        "dump_path": options.path,
        "rank": [_parse_number(text) for text in options.ranks],
        "step": [_parse_number(text) for text in options.steps],
        "level": options.level,
    }
    if options.async_dump:
        config["async_dump"] = True
    if options.precision:
        config["precision"] = options.precision
    if options.risk_level:
        config["risk_level"] = options.risk_level
    return {**config, options.task: section}


def format_configuration(config: dict[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(config, indent=2) + "\n"


def _parse_number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _find_violations(options: Options) -> Iterator[str]:
    """Yield the broken rules, as text; only the first is reported."""
    if not _PATH.fullmatch(options.path):
        yield f"dump_path {options.path!r} may have only letters, digits and _ . : / -"
    yield from _check_numbers("step", options.steps)
    yield from _check_numbers("rank", options.ranks)
    yield from _find_ignored_fields(options)
    yield from _check_scope(options)
    if options.level == "L2" and options.framework == PYTORCH and not options.names:
        yield "level L2 of PyTorch needs list: one API whose kernels to record, on an NPU"
    if "all" in options.data_mode and len(options.data_mode) > 1:
        yield "data_mode all cannot be combined with another mode"
    yield from _check_summary_mode(options)
    if options.async_dump and options.task == "tensor" and not options.names:
        yield "async_dump with task tensor needs list: the memory for everything is not there"


def _check_summary_mode(options: Options) -> Iterator[str]:
    mode = options.summary_mode
    if mode == "statistics":
        return
    if options.task != "statistics":
        yield f"summary_mode {mode} needs task statistics"
    if mode == "md5" and options.async_dump:
        yield "summary_mode md5 cannot be combined with async_dump; use xor or statistics"
    if mode == "xor" and options.framework != PYTORCH:
        yield f"summary_mode xor has no effect in {options.framework}"
    if mode == "xor" and options.version < _FIRST_WITH_XOR:
        yield f"summary_mode xor exists since {format_version(_FIRST_WITH_XOR)}"


def _check_numbers(name: str, texts: tuple[str, ...]) -> Iterator[str]:
    for text in texts:
        if not _is_number_or_range(text):
            expected = f"a number such as 0, or a range such as 5-8, up to {_MAX_NUMBER}"
            yield f"{name} {text!r}: expected {expected}"


def _is_number_or_range(text: str) -> bool:
    if not _NUMBERS.fullmatch(text):
        return False
    first, _, last = text.partition("-")
    return int(first) <= int(last or first) <= _MAX_NUMBER


def _find_ignored_fields(options: Options) -> Iterator[str]:
    """Yield a message for each field that is set but would be ignored."""
    for name in ("tensor_list", "precision", "risk_level", "async_dump"):
        field = BY_NAME[name]
        if not getattr(options, name):
            continue
        if options.version < field.since:
            yield f"{name} exists since {format_version(field.since)}; older versions ignore it"
        if options.framework not in field.frameworks:
            yield f"{name} has no effect in {options.framework}"
        if options.task not in field.tasks or options.level not in field.levels:
            tasks, levels = " or ".join(field.tasks), ", ".join(field.levels)
            yield f"{name} needs task {tasks} and level {levels}"


def _check_scope(options: Options) -> Iterator[str]:
    """Yield the broken rules of the scope, which is two full names."""
    if not options.scope:
        return
    if options.level == "L2":
        yield "level L2 takes list, not scope"
    elif len(options.scope) != 2:
        yield f"scope takes two names, the first and the last call; {len(options.scope)} given"
    for name in options.scope:
        if not _is_full_name(name, options.level):
            example = _EXAMPLES[options.level]
            yield f"scope {name!r} is not a full name of level {options.level}, such as {example}"


_EXAMPLES = {
    "L0": "Module.model.norm.LayerNorm.forward.0",
    "L1": "Functional.linear.0.forward",
    "mix": "Functional.linear.0.forward or Module.model.norm.LayerNorm.forward.0",
    "L2": "",
}


def _is_full_name(name: str, level: str) -> bool:
    patterns = {"L0": (_MODULE,), "L1": (_API,), "mix": (_API, _MODULE)}.get(level, ())
    return any(pattern.fullmatch(name) is not None for pattern in patterns)
