"""The checklists of the precision guides.

Settings, environment and logs answer what they can; the rest is left to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import yaml

from ..model.stage import Stage
from ..model.verdict import Verdict
from ..rulebook.files import find_shipped_root
from ..training_logs import LogComparison
from . import ComparedSetting, Settings, SettingsComparison
from .comparison import format_remainder
from .row_value import RowValue
from .settings import FRAMEWORK_NAMES
from .values import are_equal, format_value

#: holds: checked, and as it should be; fails: the runs differ, or a value is wrong; advice: equal,
#: but not as recommended while aligning; open: for a person to check; unused: not in these models.
State = Literal["holds", "fails", "inconclusive", "advice", "open", "unused"]

#: From worst to best: the worst of several answers is that of the item.
_WORST_FIRST: tuple[State, ...] = ("fails", "inconclusive", "advice", "holds", "open")

#: Rows that every description of a model has.
_STRUCTURE = ("layers", "hidden_size")

#: Answer to "both runs are equal in this" by the state of a setting or a criterion of the logs.
_ANSWERS: Mapping[str, State] = {
    "agree": "holds",
    "differ": "fails",
    "unsupported": "fails",
    "inconclusive": "inconclusive",
}


@dataclass(frozen=True)
class Item:
    """One line to tick off; the fields are explained at the head of ``rules/checklist.yaml``."""

    name: str
    section: str
    requirement: str
    settings: bool = False
    advise: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    logs: Sequence[str] = ()
    dump: bool = False


@dataclass(frozen=True)
class Answer:
    """The state of one item, and what it rests on."""

    item: Item
    state: State
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checklist:
    """All items, in order."""

    titles: Mapping[str, str]  #: section -> title
    answers: tuple[Answer, ...]

    def select_answers(self, *states: State) -> list[Answer]:
        """Return the answers in these states."""
        return [answer for answer in self.answers if answer.state in states]

    @property
    def verdict(self) -> Verdict:
        """differ if an item fails, inconclusive if one is or if none was checked, else agree."""
        if self.select_answers("fails"):
            return "differ"
        is_open = self.select_answers("inconclusive") or not self.has_input
        return "inconclusive" if is_open else "agree"

    @property
    def has_input(self) -> bool:
        """Whether settings or logs answered any item."""
        return bool(self.select_answers("fails", "inconclusive", "advice", "holds"))

    def to_stage(self) -> Stage:
        """Return the checklist as one stage of a triage."""
        counts = {state: len(self.select_answers(state)) for state in _WORST_FIRST}
        failing = self.select_answers("fails")
        advised = self.select_answers("advice")
        headline = (
            f"nothing was given that answers an item, {counts['open']} are to tick off"
            if not self.has_input
            else f"{counts['holds']} items hold, {counts['advice']} are advised,"
            f" {counts['inconclusive']} are inconclusive, {counts['open']} are to tick off"
        )
        if failing:
            remainder = format_remainder(len(failing) - 1)
            headline = f"{failing[0].evidence[0]}{remainder}; {headline}"
        return Stage(
            name="checklist",
            verdict=self.verdict,
            headline=headline,
            evidence=_list_evidence([*failing, *advised]),
            missing=_list_evidence(self.select_answers("inconclusive")),
        )


def _list_evidence(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(line for answer in answers for line in answer.evidence)


def check(
    settings: SettingsComparison | None = None, logs: LogComparison | None = None
) -> Checklist:
    """Answer what the settings and logs of two runs can answer; without them every item is open."""
    titles, items = load_items()
    return Checklist(titles, tuple(_answer_item(item, settings, logs) for item in items))


@cache
def load_items() -> tuple[Mapping[str, str], tuple[Item, ...]]:
    """Return the titles of the sections, and all items, as shipped."""
    with (find_shipped_root() / "checklist.yaml").open(encoding="utf-8") as stream:
        data = yaml.safe_load(stream)
    return data["sections"], tuple(Item(name, **fields) for name, fields in data["items"].items())


def _answer_item(
    item: Item, settings: SettingsComparison | None, logs: LogComparison | None
) -> Answer:
    checks = list(_collect_checks(item, settings, logs))
    if not checks and settings is not None and _is_unused(item, settings):
        return Answer(item, "unused")
    worst_state = _find_worst_state(checks)
    evidence = tuple(line for state, line in checks if state == worst_state)
    is_partial = settings is not None and not _hold_advised_values(item, settings)
    if worst_state == "holds" and (item.dump or is_partial):
        # Settings alone cannot tick off what a dump or the data must show, nor environment
        # variables what a setting of both runs must say.
        return Answer(item, "open", evidence)
    return Answer(item, worst_state, evidence)


def _find_worst_state(checks: Sequence[tuple[State, str]]) -> State:
    """Return the worst state of the checks, 'open' without checks."""
    check_states = {state for state, _ in checks}
    for state in _WORST_FIRST:
        if state in check_states:
            return state
    return "open"


def _collect_checks(
    item: Item, settings: SettingsComparison | None, logs: LogComparison | None
) -> Iterator[tuple[State, str]]:
    """Yield the states that settings and logs give to an item, each with its evidence."""
    if settings is not None:
        yield from _check_rows(item, settings)
        yield from _check_advice(item, settings)
        for side in (settings.target, settings.reference):
            yield from _check_variables(item, side)
            yield from _check_keys(item, side)
    if logs is not None:
        yield from _check_logs(item, logs)


def _is_unused(item: Item, settings: SettingsComparison) -> bool:
    """Return whether rows of settings answer the item, and none of them has an effect.

    That a model lacks something is known only if the settings describe the model at all.
    """
    states = {row.state for row in _select_item_rows(item, settings)}
    described = [row for row in settings.rows if row.setting in _STRUCTURE]
    return states == {"unused"} and all(
        row.target.is_written and row.reference.is_written for row in described
    )


def _hold_advised_values(item: Item, settings: SettingsComparison) -> bool:
    """Return whether both runs are known to have every value that is advised for the item."""
    rows = {row.setting: row for row in settings.rows}
    for name, advised_value in item.advise.items():
        for value in (rows[name].target, rows[name].reference):
            if not value.is_known or not are_equal(value.value, advised_value):
                return False
    return True


def _select_item_rows(item: Item, settings: SettingsComparison) -> list[ComparedSetting]:
    """Return the rows of settings that answer an item."""
    if not item.settings:
        return []
    return [row for row in settings.rows if row.item == item.name]


def _check_rows(item: Item, settings: SettingsComparison) -> Iterator[tuple[State, str]]:
    """Check the rows of settings; a difference that at most rounds is a matter of advice.

    A default of both sides is written nowhere: a person must check it.
    """
    for row in _select_item_rows(item, settings):
        state = _ANSWERS.get(row.state)
        if state is None:
            continue
        if state == "holds" and not (row.target.is_written or row.reference.is_written):
            yield "open", row.reason
            continue
        if state == "holds" or row.matters:
            yield state, row.reason
        elif row.effect != "none":
            yield "advice", row.reason


def _check_advice(item: Item, settings: SettingsComparison) -> Iterator[tuple[State, str]]:
    """Check the values that both runs should have while they are aligned."""
    rows = {row.setting: row for row in settings.rows}
    for name, advised_value in item.advise.items():
        yield from _check_advised_value(rows[name], advised_value, settings)


def _check_advised_value(
    row: ComparedSetting, advised_value: Any, settings: SettingsComparison
) -> Iterator[tuple[State, str]]:
    name, advised = row.setting.replace("_", " "), format_value(advised_value)
    sides: tuple[tuple[Settings, RowValue], ...] = (
        (settings.target, row.target),
        (settings.reference, row.reference),
    )
    for side, row_value in sides:
        if row.state == "unused" or row_value.origin in ("unknown", "unstated", "absent"):
            continue
        if not are_equal(row_value.value, advised_value):
            value = format_value(row_value.value)
            framework = FRAMEWORK_NAMES[side.framework]
            yield "advice", f"{name} is {value} in {framework}, advised {advised}"
    is_written = row.target.is_written or row.reference.is_written
    if row.state == "agree" and is_written and are_equal(row.target.value, advised_value):
        yield "holds", f"{name} is {advised}"


def _check_variables(item: Item, side: Settings) -> Iterator[tuple[State, str]]:
    """Check the variables that a launch script should set; only scripts contain them."""
    for name, expected in item.environment.get(side.framework, {}).items():
        setting = side.environment.get(name)
        if setting is not None and not setting.doubt:
            line = f"{name}={setting.value} ({setting.place})"
            if str(setting.value).lower() == expected.lower():
                yield "holds", line
            else:
                yield "fails", f"{line}, expected {expected}"
        elif "script" in side.source:
            yield "advice", f"{name} is not set in {side.path}, advised {expected}"


def _check_keys(item: Item, side: Settings) -> Iterator[tuple[State, str]]:
    """Check keys of a YAML of MindSpore Transformers; the expected value is the default of each."""
    if side.framework != "mindformers":
        return
    for name, expected_value in item.keys.items():
        expected = format_value(expected_value)
        setting = side.values.get(name)
        if setting is None:
            yield "holds", f"{name} is not set in {side.path}: {expected} by default"
            continue
        line = f"{name} is {format_value(setting.value)} ({setting.place})"
        if are_equal(setting.value, expected_value):
            yield "holds", line
        else:
            yield "fails", f"{line}, expected {expected}"


def _check_logs(item: Item, logs: LogComparison) -> Iterator[tuple[State, str]]:
    for criterion in logs.checks:
        if criterion.name in item.logs:
            yield _ANSWERS[criterion.verdict], criterion.summary
