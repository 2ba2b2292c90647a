"""The settings of two runs, compared row by row of ``rules/settings.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..model.dtypes import get_unit_roundoff
from ..model.stage import Stage
from ..model.verdict import Verdict
from . import values
from .derivation import BOTH_SIDES, CONDITIONS, find_derivation
from .model_config import MODEL_CONFIG
from .row_value import RowValue, SettingsLookup, UnknownValueError, ValueOrigin
from .settings import FRAMEWORK_NAMES, Settings
from .table import COMPLETE_FRAMEWORKS, Effect, Row, Table, find_model_class, load_table

#: unsupported: set on one side, and the other framework has no such option. unused: has no effect
#: in these runs.
State = Literal[Verdict, "unsupported", "unused"]

#: Keys that belong to no row and are not reported as unread: set by launchers, or the name of a
#: class.
_IGNORED_KEYS = frozenset({"world_size", "rank", "local_rank", "type"})

#: Names of files, of what is printed and of when: nothing is computed with them.
_HARMLESS_NAME = re.compile(
    r"(?:^|[._])(?:path|dir|folder|file|url|profil\w*|log\w*|wandb|tensorboard|swanlab|report_to|run"
    r"|project\w*|experiment\w*|output\w*|save\w*|hub|description|monitor|metrics|timeout|plot"
    r"|workers|overwrite\w*|trust_remote_code|port|addr|exp_name)(?:[._]|$)"
)

#: The row that stands for the structure of the model: a training without layers has none.
_STRUCTURE_ROW = "layers"

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
    #: of two runs of one framework, what differs in the unread names
    unread_differences: tuple[str, ...] = ()

    def select_rows(self, *states: State, matters: bool | None = None) -> list[ComparedSetting]:
        """Return the rows in these states; ``matters`` selects by whether their effect does."""
        rows = [row for row in self.rows if row.state in states]
        if matters is None:
            return rows
        return [row for row in rows if row.matters == matters]

    @property
    def verdict(self) -> Verdict:
        """differ if a setting that matters does, inconclusive if one is, else agree.

        A setting that is in no row of the table may matter.
        """
        if self.select_rows("differ", "unsupported", matters=True):
            return "differ"
        is_undecided = self.unread_differences or self.select_rows("inconclusive", matters=True)
        return "inconclusive" if is_undecided else "agree"

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

    def _summarize_equal_rows(self) -> str:
        """Return how many settings are equal; those that neither file sets are counted apart."""
        equal_rows = self.select_rows("agree")
        written_rows = [
            row for row in equal_rows if row.target.is_written or row.reference.is_written
        ]
        text = f"{len(written_rows)} settings are equal"
        n_defaults = len(equal_rows) - len(written_rows)
        return f"{text}, {n_defaults} more by default on both sides" if n_defaults else text

    def to_stage(self) -> Stage:
        """Return the comparison as one stage of a triage."""
        differing_rows = self.select_rows("differ", "unsupported", matters=True)
        differences = tuple(row.reason for row in differing_rows)
        undecided_rows = self.select_rows("inconclusive", matters=True)
        undecided = (*(row.reason for row in undecided_rows), *self.unread_differences)
        if differences:
            headline = _summarize_reasons(differences)
        elif undecided:
            headline = f"{_summarize_reasons(undecided)}; {self._summarize_equal_rows()}"
        else:
            n_rounding = len(self.select_rows("differ", matters=False))
            headline = f"{self._summarize_equal_rows()}, {n_rounding} differ that at most round"
        return Stage(
            name="settings",
            verdict=self.verdict,
            headline=headline,
            evidence=differences,
            missing=undecided,
        )


def _summarize_reasons(reasons: Sequence[str]) -> str:
    return f"{reasons[0]}{format_remainder(len(reasons) - 1)}"


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
    differences: tuple[str, ...] = ()
    if target.framework == reference.framework:
        names = dict.fromkeys((*unread["target"], *unread["reference"]))
        differences = tuple(_compare_unread_names(names, target, reference))
    return SettingsComparison(target, reference, rows, unread, differences)


def _compare_unread_names(
    names: Iterable[str], target: Settings, reference: Settings
) -> Iterator[str]:
    """Yield what differs in names that belong to no row, unless their name says it is no matter."""
    for name in names:
        sides = [settings.values.get(name) for settings in (target, reference)]
        raw_values = [None if setting is None else setting.value for setting in sides]
        is_equal = values.parse_text(raw_values[0]) == values.parse_text(raw_values[1])
        if is_equal or _HARMLESS_NAME.search(name):
            continue
        texts = []
        for setting in sides:
            if setting is None:
                texts.append("not set")
            else:
                texts.append(f"{values.format_value(setting.value)} ({setting.place})")
        yield f"{name}: {', '.join(texts)} (in no row of the table: its effect is not known)"


def _find_row_value(row: Row, settings: Settings, table: Table) -> RowValue:
    """Return the value of one side in the form in which both sides are compared."""
    names = row.get_names(settings.framework)
    lookup = SettingsLookup(settings, table)
    derive = find_derivation(row, settings.framework)
    if not _is_stated(row, settings, names, has_derivation=derive is not None):
        return RowValue(None, "unstated")
    if not names and derive is None:
        family = "mindformers" if settings.framework == "mindformers" else "megatron"
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


def _is_stated(
    row: Row, settings: Settings, names: tuple[str, ...], *, has_derivation: bool
) -> bool:
    """Return whether files of this kind say something about a row.

    The table has every option of the complete frameworks, but not what only others have.
    """
    if settings.framework in COMPLETE_FRAMEWORKS:
        return bool(row.megatron or row.mindformers or row.derive)
    if not names and not has_derivation:
        return False
    is_of_model = all(name.startswith(MODEL_CONFIG) for name in names)
    return bool(settings.model) or not is_of_model


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
    if row.needs and not _has_effect(row.name, row.needs, target_values, reference_values):
        return "unused", f"means nothing here ({row.needs.replace('_', ' ')})"
    target_value, reference_value = target_values[row.name], reference_values[row.name]
    origins = (target_value.origin, reference_value.origin)
    if "unstated" in origins:
        return _judge_unstated(row, target, reference, target_value, reference_value)
    if "absent" in origins:
        return _judge_unsupported(row, target, reference, target_value, reference_value)
    if "unknown" in origins:
        return _judge_unknown(row, target, reference, target_value, reference_value)
    if row.type == "path":
        is_equal = (target_value.value is None) == (reference_value.value is None)
    else:
        is_equal = values.are_equal(target_value.value, reference_value.value)
    sides = ", ".join(
        (_format_row_value(target, target_value), _format_row_value(reference, reference_value))
    )
    return "agree" if is_equal else "differ", f"{_format_row_name(row)}: {sides}"


def _judge_unknown(
    row: Row,
    target: Settings,
    reference: Settings,
    target_value: RowValue,
    reference_value: RowValue,
) -> tuple[State, str]:
    """Judge a row of which the value of one side is not known, or of both.

    It does not count if neither side sets it and another value changes no number, or if both sides
    have the same default, whatever that is.
    """
    state: State = "inconclusive"
    is_written = target_value.is_written or reference_value.is_written
    has_one_default = _has_one_default(target, reference) and row.name != _STRUCTURE_ROW
    if not is_written and (row.effect != "numbers" or has_one_default):
        state = "unused"
    sides = "; ".join(
        (_explain_value(target, target_value), _explain_value(reference, reference_value))
    )
    return state, f"{_format_row_name(row)}: {sides}"


def _has_one_default(target: Settings, reference: Settings) -> bool:
    """Return whether an option that neither side sets is the same on both, whatever it is."""
    sides = [
        (settings.framework, settings.version, settings.model, find_model_class(settings))
        for settings in (target, reference)
    ]
    return sides[0] == sides[1]


def _judge_unstated(
    row: Row,
    target: Settings,
    reference: Settings,
    target_value: RowValue,
    reference_value: RowValue,
) -> tuple[State, str]:
    """Judge a row that the file of one side cannot say, or that of both.

    It is inconclusive if the other side sets it. Without the structure of the model nothing agrees.
    """
    name = _format_row_name(row)
    if target_value.is_written or reference_value.is_written:
        sides = []
        for settings, row_value in ((target, target_value), (reference, reference_value)):
            sides.append(_explain_value(settings, row_value))
        return "inconclusive", f"{name}: {'; '.join(sides)}"
    if row.name == _STRUCTURE_ROW:
        return "inconclusive", (
            f"{name}: the structure of the model is not in these files;"
            " give its config.json (--target-config, --reference-config)"
        )
    return "unused", "set in neither file"


def _has_effect(
    row: str,
    condition: str,
    target_values: Mapping[str, RowValue],
    reference_values: Mapping[str, RowValue],
) -> bool:
    """Return whether a row has an effect.

    Where the condition is unknown on both sides, its own row is inconclusive, once; what both
    sides write down is compared nevertheless.
    """
    answers = [CONDITIONS[condition](side) for side in (target_values, reference_values)]
    if condition in BOTH_SIDES:
        return answers == [True, True]
    if answers == [None, None]:
        return target_values[row].is_written and reference_values[row].is_written
    return True in answers


def _judge_unsupported(
    row: Row,
    target: Settings,
    reference: Settings,
    target_value: RowValue,
    reference_value: RowValue,
) -> tuple[State, str]:
    """Judge a row that one framework does not have, or neither.

    It is unsupported if the other side sets it to something other than the default or nothing.
    """
    if target_value.origin == reference_value.origin:
        return "unused", "neither framework has it"
    settings, row_value, other = target, target_value, reference
    if target_value.origin == "absent":
        settings, row_value, other = reference, reference_value, target
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
    if row_value.origin == "unstated":
        return f"{FRAMEWORK_NAMES[settings.framework]}: not in this kind of file"
    if row_value.origin == "absent":
        return f"{FRAMEWORK_NAMES[settings.framework]}: no such option"
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
