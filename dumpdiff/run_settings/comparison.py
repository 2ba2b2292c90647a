"""Two runs' settings against each other: row by row equal, different, or not to be told, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..model.dtypes import unit_roundoff
from ..model.stage import Stage
from ..model.verdict import Verdict
from . import values
from .derivation import CONDITIONS, OF_BOTH, find_derivation
from .row_value import ValueOrigin, SettingsLookup, RowValue, UnknownValueError
from .settings import FRAMEWORK_NAMES, Settings
from .table import Effect, Row, Table, load_table

#: unsupported: set on one side, and the other framework has no such option. unused: means nothing in these runs.
State = Literal[Verdict, "unsupported", "unused"]

#: Set by launchers, or the name of a class: they are in no row, and nobody misses them.
_ASIDE = frozenset({"world_size", "rank", "local_rank", "type"})

#: Effects that make the runs compute something else; the others only round, or show.
RESULT_EFFECTS: frozenset[Effect] = frozenset({"numbers", "precision"})


@dataclass(frozen=True)
class ComparedSetting:
    """One row of the table, for these two runs."""

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
    outcomes: tuple[ComparedSetting, ...]
    unread: Mapping[str, tuple[str, ...]]  #: side -> what is set there and stands in no row

    def select_settings(self, *states: State, matters: bool | None = None) -> list[ComparedSetting]:
        """The outcomes in these states, all or those whose effect matters (or does not)."""
        return [o for o in self.outcomes if o.state in states and matters in (None, o.matters)]

    @property
    def verdict(self) -> Verdict:
        """differ if a setting that matters does; inconclusive if one that matters cannot be told; else agree."""
        if self.select_settings("differ", "unsupported", matters=True):
            return "differ"
        return "inconclusive" if self.select_settings("inconclusive", matters=True) else "agree"

    @property
    def compute_dtype(self) -> str:
        """The dtype that both runs compute in, of two the one that rounds more; '' if it is not known of both."""
        row = next(outcome for outcome in self.outcomes if outcome.setting == "compute_dtype")
        if row.target.value is None or row.reference.value is None:
            return ""
        return max((str(row.target.value), str(row.reference.value)), key=unit_roundoff)

    def to_stage(self) -> Stage:
        """The comparison as one stage of a triage."""
        parted, rounding = (
            self.select_settings("differ", "unsupported", matters=True),
            self.select_settings("differ", matters=False),
        )
        undecided, equal = (
            self.select_settings("inconclusive", matters=True),
            self.select_settings("agree"),
        )
        said = {
            "differ": f"{parted[0].reason}{_more(len(parted) - 1)}" if parted else "",
            "inconclusive": f"{undecided[0].reason}{_more(len(undecided) - 1)}; {len(equal)} settings are equal"
            if undecided
            else "",
            "agree": f"{len(equal)} settings are equal, {len(rounding)} differ that at most round",
        }[self.verdict]
        return Stage(
            name="settings",
            verdict=self.verdict,
            headline=said,
            evidence=tuple(outcome.reason for outcome in parted),
            missing=tuple(outcome.reason for outcome in undecided),
        )


def compare(target: Settings, reference: Settings) -> SettingsComparison:
    """Every row of ``rules/settings.yaml``, judged for two runs of any of the known frameworks."""
    table = load_table()
    sides = [
        {row.name: _seen(row, settings, table) for row in table.rows}
        for settings in (target, reference)
    ]
    outcomes = tuple(_judge(row, target, reference, *sides) for row in table.rows)
    unread = {"target": _unread(target, table), "reference": _unread(reference, table)}
    return SettingsComparison(target, reference, outcomes, unread)


def _seen(row: Row, settings: Settings, table: Table) -> RowValue:
    """One side's value, in the form that both sides are compared in."""
    names = row.get_names(settings.framework)
    family = "mindformers" if settings.framework == "mindformers" else "megatron"
    reading = SettingsLookup(settings, table)
    derive = find_derivation(row.derive, settings.framework)
    if not names and derive is None:
        return (
            RowValue(row.fixed[family], "fixed")
            if family in row.fixed
            else RowValue(None, "absent")
        )
    try:
        value = derive(reading) if derive is not None else _plain(row, reading, names)
    except UnknownValueError as why:
        return RowValue(None, "unknown", *_evidence(reading), why=str(why))
    if isinstance(value, str):
        value = row.words.get(value, value)
    return RowValue(value, _how(row, names, reading), *_evidence(reading))


def _how(row: Row, names: tuple[str, ...], reading: SettingsLookup) -> ValueOrigin:
    """A value is set if an option of the row itself was; derived if only others were."""
    if not reading.used:
        return "default" if names else "fixed"
    own = {
        key for name in names for key in reading.table.list_keys(name, reading.settings.framework)
    }
    return "set" if own & reading.used.keys() else "derived"


def _plain(row: Row, reading: SettingsLookup, names: tuple[str, ...]) -> object:
    try:
        raw = reading.get_raw(*names)
    except UnknownValueError:
        if (
            row.type == "path" and reading.used
        ):  # what matters is that there is one; places differ anyway
            return next(iter(reading.used.values())).value
        raise
    if raw is None:
        return None
    try:
        return values.TYPES[row.type](raw)
    except (TypeError, ValueError, OverflowError):
        raise UnknownValueError(f"it is {raw!r}, which is no {row.type}") from None


def _evidence(reading: SettingsLookup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(reading.used), tuple(dict.fromkeys(given.place for given in reading.used.values()))


def _judge(
    row: Row,
    target: Settings,
    reference: Settings,
    ours: Mapping[str, RowValue],
    theirs: Mapping[str, RowValue],
) -> ComparedSetting:
    first, second = ours[row.name], theirs[row.name]

    def outcome(state: State, reason: str) -> ComparedSetting:
        return ComparedSetting(
            row.name, row.section, row.effect, state, first, second, reason, row.item
        )

    if row.needs and not _needed(row.needs, ours, theirs):
        return outcome("unused", f"means nothing here ({row.needs.replace('_', ' ')})")
    if "absent" in (first.how, second.how):
        return _one_sided(row, outcome, (target, first), (reference, second))
    if "unknown" in (first.how, second.how):
        silent = all(
            seen.how in ("unknown", "default") and not seen.names for seen in (first, second)
        )
        state: State = "unused" if silent and row.effect != "numbers" else "inconclusive"
        return outcome(state, _explain_undecided(row, (target, first), (reference, second)))
    if row.type == "path":
        state = "agree" if (first.value is None) == (second.value is None) else "differ"
    else:
        state = "agree" if values.are_equal(first.value, second.value) else "differ"
    return outcome(state, f"{_named(row)}: {_told(target, first)}, {_told(reference, second)}")


def _needed(condition: str, ours: Mapping[str, RowValue], theirs: Mapping[str, RowValue]) -> bool:
    """Whether a row means something; where the condition cannot be told, its own row says so, once."""
    answers = [CONDITIONS[condition](side) is True for side in (ours, theirs)]
    return all(answers) if condition in OF_BOTH else any(answers)


def _one_sided(
    row: Row, tell: Callable[[State, str], ComparedSetting], *sides: tuple[Settings, RowValue]
) -> ComparedSetting:
    """The framework of one side has no such option: then only a value that asks for something is of interest."""
    having = [(settings, seen) for settings, seen in sides if seen.how != "absent"]
    lacking = [settings for settings, seen in sides if seen.how == "absent"]
    if not having:
        return tell("unused", "neither framework has it")
    settings, seen = having[0]
    if seen.how == "unknown":
        return tell("inconclusive" if seen.names else "unused", f"{_named(row)}: {seen.why}")
    reason = f"{_named(row)}: {_told(settings, seen)}; {FRAMEWORK_NAMES[lacking[0].framework]} has no such option"
    defaults = (
        load_table().find_default(name, settings) for name in row.get_names(settings.framework)
    )
    usual = next((default.value for default in defaults if default is not None), None)
    asks = (
        seen.how in ("set", "derived")
        and seen.value not in (None, False, "")
        and not _same_as(row, seen, usual)
    )
    return tell("unsupported" if asks else "unused", reason)


def _same_as(row: Row, seen: RowValue, usual: object) -> bool:
    if usual is None:
        return False
    try:
        return values.are_equal(seen.value, values.TYPES[row.type](usual))
    except (TypeError, ValueError):
        return False


def _explain_undecided(row: Row, *sides: tuple[Settings, RowValue]) -> str:
    said = [
        f"{FRAMEWORK_NAMES[settings.framework]}: {seen.why}"
        if seen.how == "unknown"
        else _told(settings, seen)
        for settings, seen in sides
    ]
    return f"{_named(row)}: {'; '.join(said)}"


def format_places(places: tuple[str, ...]) -> str:
    """Places as a person writes them.

    >>> spoken_places(("run.sh:4", "run.sh:9", "more.sh:1"))
    'run.sh:4, 9, more.sh:1'
    """
    files: dict[str, list[str]] = {}
    for place in places:
        file, _, line = place.rpartition(":")
        files.setdefault(file, []).append(line)
    return ", ".join(
        f"{file}:{', '.join(lines)}" if file else ", ".join(lines) for file, lines in files.items()
    )


def _told(settings: Settings, seen: RowValue) -> str:
    """``num_layers 32 (run.sh:29)``, or ``32 by default`` with who says so."""
    value = values.format_value(seen.value)
    if seen.how == "default":
        return f"{value} by default of {FRAMEWORK_NAMES[settings.framework]}"
    if seen.how == "fixed":
        return f"always {value} in {FRAMEWORK_NAMES[settings.framework]}"
    return f"{value} ({format_places(seen.places)})"


def _named(row: Row) -> str:
    return row.name.replace("_", " ")


def _unread(settings: Settings, table: Table) -> tuple[str, ...]:
    """What is set and stands in no row: nobody looked at it."""
    known = {
        key
        for row in table.rows
        for name in row.get_names(settings.framework)
        for key in table.list_keys(name, settings.framework)
    }
    return tuple(
        name
        for name in settings.values
        if name not in known and name.rpartition(".")[2] not in _ASIDE
    )


def _more(count: int) -> str:
    return f", and {count} more" if count else ""
