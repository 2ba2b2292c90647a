"""Read a configuration file as MindSpore's JSON parser does, and check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ...model.errors import DumpError
from ...model.input_files import read_input_text
from . import validation
from .target import Target
from .violations import Rule, Violation

SUFFIX = Rule(
    "file-suffix",
    "error",
    "The file's name ends in .json.",
    framework="dump config file suffix only supports json!",
)
SYNTAX = Rule(
    "json-syntax",
    "error",
    "The file is JSON, without comments and without a comma before a closing bracket.",
    framework="Parse dump json failed, error:",
)
DUPLICATE_KEY = Rule(
    "json-twice", "ignored", "A key occurs once in its object; of two, the later one counts."
)
TRAILING_TEXT = Rule(
    "json-rest", "ignored", "The file ends with the closing brace; text after it is not read."
)

RULES = (SUFFIX, SYNTAX, DUPLICATE_KEY, TRAILING_TEXT, *validation.RULES)

_MAX_FILE_BYTES = 1 << 20  #: a configuration has a few hundred bytes


def check_file(
    path: str | Path,
    target: Target,
    *,
    run_is_local: bool = True,
    names: tuple[str, ...] | None = None,
) -> tuple[Violation, ...]:
    """Return the violations in a configuration file, worst first; see :func:`check`.

    Raises DumpError if the file cannot be read as text.
    """
    path = Path(path)
    text = _read_text(path)
    violations = check_file_name(path)
    config, text_violations = parse_config(text)
    violations += text_violations
    if not any(violation.rule == SYNTAX.id for violation in text_violations):
        violations += validation.check(config, target, run_is_local=run_is_local, names=names)
    return validation.sort_by_severity(violations)


def check_file_name(path: str | Path) -> list[Violation]:
    """Return the violation of a file name that MindSpore refuses, if it does."""
    path = Path(path)
    if path.suffix == ".json":
        return []
    message = (
        f"{path.name!r} must end in .json for MindSpore to read it; call it "
        f"{path.with_suffix('.json').name!r}"
    )
    return [SUFFIX.build_violation("", message)]


def read_config(path: Path) -> Any:
    """Return the content of a configuration file, unchecked. Raise DumpError if it is not JSON."""
    config, violations = parse_config(_read_text(path))
    if config is None and violations:
        raise DumpError(f"{path}: {violations[0].message}")
    return config


def parse_config(text: str) -> tuple[Any, list[Violation]]:
    """Return the content of a JSON text (None if it is invalid) and the violations in the text."""
    duplicate_keys: list[str] = []

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, value in pairs:
            if name in content:
                duplicate_keys.append(name)
            content[name] = value
        return content

    text = text.removeprefix("\ufeff")
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        config, end = json.JSONDecoder(
            object_pairs_hook=build_object, parse_constant=_refuse
        ).raw_decode(text, start)
    except json.JSONDecodeError as error:
        message = f"line {error.lineno}, column {error.colno}: {_suggest_fix(text, error)}"
        return None, [SYNTAX.build_violation("", message)]
    except (RecursionError, ValueError) as error:
        message = f"{error}; a configuration has sections with plain fields"
        return None, [SYNTAX.build_violation("", message)]
    return config, [*_find_text_violations(duplicate_keys, text[end:])]


def _read_text(path: Path) -> str:
    try:
        return read_input_text(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}; expected a JSON file") from error
    except UnicodeDecodeError as error:
        raise DumpError(
            f"{path}: cannot be read as text ({error}); expected a JSON file"
        ) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _find_text_violations(duplicate_keys: list[str], trailing_text: str) -> Iterator[Violation]:
    for name in dict.fromkeys(duplicate_keys):
        yield DUPLICATE_KEY.build_violation(
            name, "occurs twice, and only the later one counts; delete one"
        )
    if trailing_text.strip():
        yield TRAILING_TEXT.build_violation(
            "", f"{trailing_text.strip()[:30]!r} after the closing brace is not read; delete it"
        )


def _suggest_fix(text: str, error: json.JSONDecodeError) -> str:
    before = text[: error.pos].rstrip()
    after = text[error.pos :].lstrip()
    is_before_bracket = after.startswith(",") and after[1:].lstrip().startswith(("}", "]"))
    if not text.strip():
        return "the file is empty"
    if after.startswith(("//", "/*", "#")):
        return "JSON has no comments; delete it"
    if before.endswith(",") or is_before_bracket:
        return "there is a comma before a closing bracket; delete it"
    if after.startswith("'"):
        return "strings need double quotes"
    return error.msg
