"""Check each field by itself: its name, presence, type and value. Valid fields become Settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from .fields import ASYNC, BY_PLACE, COMMON, E2E, FIELDS, SECTIONS, TYPES, Field, is_required
from .settings import Settings
from .target import Target
from .violations import Rule, Violation

NO_SECTION = Rule(
    "section-missing",
    "error",
    f"The file is an object with a section {COMMON}.",
    framework=f"Check dump json failed, {COMMON} not found",
)
ODD_SECTION = Rule(
    "section-type", "ignored", f"{E2E} is an object; anything else counts as an empty one."
)
UNKNOWN_SECTION = Rule(
    "section-unknown", "ignored", "A section that MindSpore does not know is ignored."
)
UNKNOWN_FIELD = Rule("field-unknown", "ignored", "A field that MindSpore does not know is ignored.")
OTHER_VERSION = Rule(
    "field-version", "ignored", "A field that was added later or removed earlier is ignored."
)
UNREAD_FIELD = Rule(
    "field-unread", "ignored", "Some fields are read only for certain values of other fields."
)
MISSING_FIELD = Rule(
    "field-missing",
    "error",
    "Every required field is present.",
    framework="Check dump json failed,",
)
TYPE = Rule("field-type", "error", "A value has the type of its field.", framework="should be")
VALUE = Rule("field-value", "error", "A value is one of the allowed values.")
WRAPPED = Rule(
    "field-bits",
    "ignored",
    "A whole number has at most 32 bits; of a larger one, up to 64 bits, only the last 32 count.",
)
RULES = (
    NO_SECTION,
    ODD_SECTION,
    UNKNOWN_SECTION,
    UNKNOWN_FIELD,
    OTHER_VERSION,
    UNREAD_FIELD,
    MISSING_FIELD,
    TYPE,
    VALUE,
    WRAPPED,
)


_NUMBER_LIMIT = 1 << 32  #: MindSpore keeps a number in 32 bits
_INTEGER_LIMIT = 1 << 64  #: its JSON parser reads a larger one as a floating number

_MAX_VALUE_LENGTH = 60  #: characters of a value in a message; a longer one is cut


def build_settings(
    config: object, target: Target, run_is_local: bool, names: tuple[str, ...] | None
) -> tuple[Settings | None, list[Violation]]:
    """Return the valid part of a configuration (None without a common section) and violations."""
    common = config.get(COMMON) if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(common, Mapping):
        problem = "is missing" if common is None else "is not an object in { }"
        return None, [
            NO_SECTION.build_violation(
                COMMON, f"{problem}; it contains all fields except those of {E2E}"
            )
        ]
    violations = [*_check_sections(config, target)]
    e2e = config.get(E2E)
    if E2E in config and not isinstance(e2e, Mapping):
        violations.append(
            ODD_SECTION.build_violation(
                E2E, "is not an object in { } and counts as empty; write { }"
            )
        )
        e2e = {}
    violations += [*_find_wrapped_numbers(COMMON, common), *_find_wrapped_numbers(E2E, e2e or {})]
    common = _wrap_numbers(common)
    e2e = None if e2e is None else _wrap_numbers(e2e)
    file_settings = Settings(target, common, e2e, run_is_local)
    valid_values: dict[str, dict[str, Any]] = {COMMON: {}, E2E: {}}
    invalid_names: list[str] = []
    for section, values in ((COMMON, common), (E2E, e2e or {})):
        for name, value in values.items():
            field_violations = _check_field(section, name, value, file_settings)
            violations += field_violations
            if field_violations:
                invalid_names.append(name)
            else:
                valid_values[section][name] = value
    violations += _find_missing_fields(file_settings)
    settings = Settings(
        target,
        valid_values[COMMON],
        None if e2e is None else valid_values[E2E],
        run_is_local,
        frozenset(invalid_names),
        names,
    )
    return settings, violations


def _is_wrapped(value: Any) -> bool:
    return _is_integer(value) and _NUMBER_LIMIT <= value < _INTEGER_LIMIT


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _find_wrapped_numbers(section: str, values: Mapping[str, Any]) -> Iterator[Violation]:
    for name, value in values.items():
        if _is_wrapped(value):
            yield WRAPPED.build_violation(
                f"{section}.{name}",
                f"{value} has more than 32 bits, and MindSpore reads it as "
                f"{value % _NUMBER_LIMIT}; write that",
            )


def _wrap_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with large numbers as MindSpore reads them."""
    return {
        name: value % _NUMBER_LIMIT if _is_wrapped(value) else value
        for name, value in values.items()
    }


def _check_sections(config: Mapping[str, object], target: Target) -> Iterator[Violation]:
    for section in config:
        if section == ASYNC:
            yield OTHER_VERSION.build_violation(
                ASYNC,
                f"is read only up to 1.2, not by {target.version}; "
                f"without {E2E} a dump is asynchronous",
            )
        elif section not in SECTIONS:
            close_names = get_close_matches(section, SECTIONS, n=1)
            yield UNKNOWN_SECTION.build_violation(
                section, f"is not known; {_suggest_name(close_names)}"
            )


def _check_field(section: str, name: str, value: object, settings: Settings) -> list[Violation]:
    place, field = f"{section}.{name}", BY_PLACE.get((section, name))
    if field is None:
        other_sections = [
            row.section for row in FIELDS if row.name == name and row.section in (COMMON, E2E)
        ]
        close_names = get_close_matches(
            name, [row.name for row in FIELDS if row.section == section], n=1
        )
        hint = _suggest_name(close_names)
        if other_sections:
            hint = f"it belongs to {other_sections[0]}"
        return [UNKNOWN_FIELD.build_violation(place, f"is not known; {hint}")]
    if not field.is_known_to(settings.target.version):
        return [
            OTHER_VERSION.build_violation(
                place, f"was added in {field.since}; {settings.target.version} ignores it"
            )
        ]
    reason = _explain_unread_field(name, settings)
    if reason:
        return [UNREAD_FIELD.build_violation(place, reason)]
    if not _has_type(field.type, value):
        return [
            TYPE.build_violation(
                place, f"{_format_value(value)} is not {TYPES[field.type]}{_format_allowed(field)}"
            )
        ]
    allowed = field.list_values(settings.target.version)
    if allowed and value not in allowed:
        choice = ", ".join(str(item) for item in allowed)
        return [
            VALUE.build_violation(
                place,
                f"{_format_value(value)} is not a value that {settings.target.version} accepts: "
                f"{choice}",
            )
        ]
    return []


def _explain_unread_field(name: str, settings: Settings) -> str:
    """Return why MindSpore does not read the field; '' if it does."""
    e2e = settings.e2e or {}
    if name == "file_format" and settings.is_synchronous:
        return (
            "is only for an asynchronous dump, and this one is synchronous and writes npy; "
            "leave it out"
        )
    if (
        name == "op_debug_mode"
        and settings.is_synchronous
        and settings.target.version < (2, 3)
        and settings.common[name] != 0
    ):
        return "before 2.3 it is only for an asynchronous dump; write 0"
    if name == "statistic_category" and settings.common.get("saved_data", "tensor") == "tensor":
        return "is read only if saved_data is statistic or full; leave it out, or save statistics"
    if name == "sample_num" and e2e.get("sample_mode") != 1:
        return "is read only with sample_mode 1; leave it out, or write sample_mode 1"
    return ""


def _find_missing_fields(settings: Settings) -> Iterator[Violation]:
    sections = {COMMON: settings.common, E2E: settings.e2e}
    for field in FIELDS:
        section = sections.get(field.section)
        if section is None or field.name in section:
            continue
        if not is_required(field, settings.target, not settings.is_synchronous):
            continue
        yield MISSING_FIELD.build_violation(
            f"{field.section}.{field.name}",
            f"is missing; it is {field.purpose}{_format_allowed(field)}",
        )


def _has_type(kind: str, value: Any) -> bool:
    """Return whether a value has the type ``kind``; items of an array are not looked at."""
    if kind == "uint":
        return _is_integer(value) and 0 <= value < _INTEGER_LIMIT
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    return isinstance(value, list)


def _format_allowed(field: Field) -> str:
    form = field.form or ", ".join(str(value) for value in field.allowed)
    return f" ({form})" if form else ""


def _suggest_name(close_names: list[str]) -> str:
    return f"did you mean {close_names[0]}?" if close_names else "leave it out"


def _format_value(value: object) -> str:
    text = repr(value)
    if len(text) <= _MAX_VALUE_LENGTH:
        return text
    return f"{text[: _MAX_VALUE_LENGTH - 3]}..."
