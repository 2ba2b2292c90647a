"""The settings of two runs, compared row by row of ``rules/settings.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..model.dtypes import get_unit_roundoff
from ..model.stage import Stage
from ..model.verdict import Verdict
from . import values
from .derivation import BOTH_SIDES, CONDITIONS, find_derivation
from .row_value import RowValue, SettingsLookup, UnknownValueError, ValueOrigin
from .settings import FRAMEWORK_NAMES, Settings
from .table import Effect, Row, Table, load_table

#: unsupported: set on one side, and the other framework has no such option. unused: has no effect
#: in these runs.
State = Literal[Verdict, "unsupported", "unused"]

#: Keys that belong to no row and are not reported as unread: set by launchers, or the name of a
#: class.
_IGNORED_KEYS = frozenset({"world_size", "rank", "local_rank", "type"})

#: Effects that make the runs compute something else. The others only round differently, or change
#: no number.
RESULT_EFFECTS: frozenset[Effect] = frozenset({"numbers", "precision"})


@dataclass(frozen=True)
class ComparedSetting:
    """One row of the table for two runs."""

    setting: str
    section: str
    effect: Effect
    state: State
    target: RowValue
    reference: RowValue
    reason: str
    item: str = ""  #: the item of the checklist that it answers, '' if none

    @property
    def matters(self) -> bool:
        """Whether another value changes what is computed."""
        return self.effect in RESULT_EFFECTS


@dataclass(frozen=True)
class SettingsComparison:
    """All rows, in the order of the table."""

    target: Settings
    reference: Settings
    rows: tuple[ComparedSetting, ...]
    unread: Mapping[str, tuple[str, ...]]  #: side -> names that are set there and belong to no row

    def select_rows(self, *states: State, matters: bool | None = None) -> list[ComparedSetting]:
        """Return the rows in these states; ``matters`` selects by whether their effect does."""
        rows = [row for row in self.rows if row.state in states]
        if matters is None:
            return rows
        return [row for row in rows if row.matters == matters]

    @property
    def verdict(self) -> Verdict:
        """differ if a setting that matters does, inconclusive if one is, else agree."""
        if self.select_rows("differ", "unsupported", matters=True):
            return "differ"
        return "inconclusive" if self.select_rows("inconclusive", matters=True) else "agree"

    @property
    def compute_dtype(self) -> str:
        """The compute dtype of both runs, '' if one is unknown; if they differ, the coarser one."""
        for row in self.rows:
            if row.setting == "compute_dtype":
                target, reference = row.target.value, row.reference.value
                if target is None or reference is None:
                    return ""
                return max(str(target), str(reference), key=get_unit_roundoff)
        return ""

    def to_stage(self) -> Stage:
        """Return the comparison as one stage of a triage."""
        differing_rows = self.select_rows("differ", "unsupported", matters=True)
        undecided_rows = self.select_rows("inconclusive", matters=True)
        n_equal = len(self.select_rows("agree"))
        if differing_rows:
            headline = _summarize_reasons(differing_rows)
        elif undecided_rows:
            headline = f"{_summarize_reasons(undecided_rows)}; {n_equal} settings are equal"
        else:
            n_rounding = len(self.select_rows("differ", matters=False))
            headline = f"{n_equal} settings are equal, {n_rounding} differ that at most round"
        return Stage(
            name="settings",
            verdict=self.verdict,
            headline=headline,
            evidence=tuple(row.reason for row in differing_rows),
            missing=tuple(row.reason for row in undecided_rows),
        )


def _summarize_reasons(rows: list[ComparedSetting]) -> str:
    return f"{rows[0].reason}{format_remainder(len(rows) - 1)}"


def format_remainder(count: int) -> str:
    """Return ', and 3 more', '' for 0."""
    return f", and {count} more" if count else ""


def compare(target: Settings, reference: Settings) -> SettingsComparison:
    """Compare two runs of any of the known frameworks in every row of ``rules/settings.yaml``."""
    table = load_table()
    target_values = {row.name: _find_row_value(row, target, table) for row in table.rows}
    reference_values = {row.name: _find_row_value(row, reference, table) for row in table.rows}
    rows = tuple(
        _compare_row(row, target, reference, target_values, reference_values) for row in table.rows
    )
    unread = {
        "target": _find_unread_names(target, table),
        "reference": _find_unread_names(reference, table),
    }
    return SettingsComparison(target, reference, rows, unread)


def _find_row_value(row: Row, settings: Settings, table: Table) -> RowValue:
    """Return the value of one side in the form in which both sides are compared."""
    names = row.get_names(settings.framework)
    family = "mindformers" if settings.framework == "mindformers" else "megatron"
    lookup = SettingsLookup(settings, table)
    derive = find_derivation(row.derive, settings.framework)
    if not names and derive is None:
        if family in row.fixed:
            return RowValue(row.fixed[family], "fixed")
        return RowValue(None, "absent")
    try:
        value = derive(lookup) if derive is not None else _read_option(row, lookup, names)
    except UnknownValueError as error:
        return RowValue(None, "unknown", tuple(lookup.used), _list_places(lookup), str(error))
    if isinstance(value, str):
        value = row.words.get(value, value)
    origin = _find_origin(row, lookup, names)
    return RowValue(value, origin, tuple(lookup.used), _list_places(lookup))


def _find_origin(row: Row, lookup: SettingsLookup, names: tuple[str, ...]) -> ValueOrigin:
    """Return 'set' if an option of the row itself is set, 'derived' if only others are."""
    if not lookup.used:
        return "default" if names else "fixed"
    framework = lookup.settings.framework
    for name in names:
        if not lookup.used.keys().isdisjoint(lookup.table.list_keys(name, framework)):
            return "set"
    return "derived"


def _read_option(row: Row, lookup: SettingsLookup, names: tuple[str, ...]) -> object:
    try:
        raw_value = lookup.get_raw(*names)
    except UnknownValueError:
        if row.type == "path" and lookup.used:
            # Paths differ between machines; only whether there is one is compared.
            return next(iter(lookup.used.values())).value
        raise
    if raw_value is None:
        return None
    try:
        return values.PARSERS[row.type](raw_value)
    except (TypeError, ValueError, OverflowError):
        raise UnknownValueError(f"it is {raw_value!r}, which is no {row.type}") from None


def _list_places(lookup: SettingsLookup) -> tuple[str, ...]:
    return tuple(dict.fromkeys(setting.place for setting in lookup.used.values()))


def _compare_row(
    row: Row,
    target: Settings,
    reference: Settings,
    target_values: Mapping[str, RowValue],
    reference_values: Mapping[str, RowValue],
) -> ComparedSetting:
    target_value, reference_value = target_values[row.name], reference_values[row.name]
    state, reason = _judge_row(row, target, reference, target_values, reference_values)
    return ComparedSetting(
        row.name, row.section, row.effect, state, target_value, reference_value, reason, row.item
    )


def _judge_row(
    row: Row,
    target: Settings,
    reference: Settings,
    target_values: Mapping[str, RowValue],
    reference_values: Mapping[str, RowValue],
) -> tuple[State, str]:
    """Return the state of a row and the reason for it."""
    if row.needs and not _has_effect(row.needs, target_values, reference_values):
        return "unused", f"means nothing here ({row.needs.replace('_', ' ')})"
    target_value, reference_value = target_values[row.name], reference_values[row.name]
    if target_value.origin == "absent" and reference_value.origin == "absent":
        return "unused", "neither framework has it"
    if target_value.origin == "absent":
        return _judge_unsupported(row, reference, reference_value, target)
    if reference_value.origin == "absent":
        return _judge_unsupported(row, target, target_value, reference)
    if "unknown" in (target_value.origin, reference_value.origin):
        state: State = "inconclusive"
        if row.effect != "numbers" and not (
            _is_written(target_value) or _is_written(reference_value)
        ):
            state = "unused"
        sides = "; ".join(
            (_explain_value(target, target_value), _explain_value(reference, reference_value))
        )
        return state, f"{_format_row_name(row)}: {sides}"
    if row.type == "path":
        is_equal = (target_value.value is None) == (reference_value.value is None)
    else:
        is_equal = values.are_equal(target_value.value, reference_value.value)
    sides = ", ".join(
        (_format_row_value(target, target_value), _format_row_value(reference, reference_value))
    )
    return "agree" if is_equal else "differ", f"{_format_row_name(row)}: {sides}"


def _is_written(row_value: RowValue) -> bool:
    """Return whether a file sets the value, or an option from which it follows."""
    return row_value.origin not in ("unknown", "default") or bool(row_value.names)


def _has_effect(
    condition: str,
    target_values: Mapping[str, RowValue],
    reference_values: Mapping[str, RowValue],
) -> bool:
    """Return whether a row has an effect.

    It has none if the condition is unknown: then the condition's own row is inconclusive, once.
    """
    in_target = CONDITIONS[condition](target_values) is True
    in_reference = CONDITIONS[condition](reference_values) is True
    if condition in BOTH_SIDES:
        return in_target and in_reference
    return in_target or in_reference


def _judge_unsupported(
    row: Row, settings: Settings, row_value: RowValue, other: Settings
) -> tuple[State, str]:
    """Judge a row that the framework of ``other`` does not have.

    It is unsupported if ``settings`` sets it to something other than the default or nothing.
    """
    name = _format_row_name(row)
    if row_value.origin == "unknown":
        return "inconclusive" if row_value.names else "unused", f"{name}: {row_value.reason}"
    value = _format_row_value(settings, row_value)
    reason = f"{name}: {value}; {FRAMEWORK_NAMES[other.framework]} has no such option"
    if row_value.origin not in ("set", "derived") or row_value.value in (None, False, ""):
        return "unused", reason
    if _equals_default(row, settings, row_value):
        return "unused", reason
    return "unsupported", reason


def _equals_default(row: Row, settings: Settings, row_value: RowValue) -> bool:
    default_value = None
    for name in row.get_names(settings.framework):
        default = load_table().find_default(name, settings)
        if default is not None:
            default_value = default.value
            break
    if default_value is None:
        return False
    try:
        return values.are_equal(row_value.value, values.PARSERS[row.type](default_value))
    except (TypeError, ValueError):
        return False


def _explain_value(settings: Settings, row_value: RowValue) -> str:
    if row_value.origin == "unknown":
        return f"{FRAMEWORK_NAMES[settings.framework]}: {row_value.reason}"
    return _format_row_value(settings, row_value)


def format_places(places: tuple[str, ...]) -> str:
    """Return places as a person writes them.

    >>> format_places(("run.sh:4", "run.sh:9", "more.sh:1"))
    'run.sh:4, 9, more.sh:1'
    """
    lines_of_file: dict[str, list[str]] = {}
    for place in places:
        file, _, line = place.rpartition(":")
        lines_of_file.setdefault(file, []).append(line)
    texts = []
    for file, lines in lines_of_file.items():
        text = ", ".join(lines)
        texts.append(f"{file}:{text}" if file else text)
    return ", ".join(texts)


def _format_row_value(settings: Settings, row_value: RowValue) -> str:
    """Return ``32 (run.sh:29)``, or ``32 by default`` with the framework."""
    value = values.format_value(row_value.value)
    framework = FRAMEWORK_NAMES[settings.framework]
    if row_value.origin == "default":
        return f"{value} by default of {framework}"
    if row_value.origin == "fixed":
        return f"always {value} in {framework}"
    return f"{value} ({format_places(row_value.places)})"


def _format_row_name(row: Row) -> str:
    return row.name.replace("_", " ")


def _find_unread_names(settings: Settings, table: Table) -> tuple[str, ...]:
    """Return the names that are set and belong to no row."""
    row_keys: set[str] = set()
    for row in table.rows:
        for name in row.get_names(settings.framework):
            row_keys.update(table.list_keys(name, settings.framework))
    return tuple(
        name
        for name in settings.values
        if not (name in row_keys or name.rpartition(".")[2] in _IGNORED_KEYS)
    )
