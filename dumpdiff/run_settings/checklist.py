"""The guides' checklists: what can be checked from settings, environment and logs is, the rest is left to tick off."""

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
from . import SettingsComparison, ComparedSetting, Settings
from .row_value import RowValue
from .settings import FRAMEWORK_NAMES
from .values import are_equal, format_value

#: holds: checked, and as it should be; fails: the runs differ, or a value is wrong; advice: equal, but not as
#: recommended while aligning; open: for a person to check; unused: not in these models.
State = Literal["holds", "fails", "inconclusive", "advice", "open", "unused"]

#: The worst of several answers is the item's.
_WORST: tuple[State, ...] = ("fails", "inconclusive", "advice", "holds", "open")


@dataclass(frozen=True)
class Item:
    """One line to tick off; the fields are explained at the head of ``rules/checklist.yaml``."""

    name: str
    section: str
    ask: str
    settings: bool = False
    advise: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    logs: Sequence[str] = ()
    dump: bool = False


@dataclass(frozen=True)
class Answer:
    """What is known of one item."""

    item: Item
    state: State
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checklist:
    """All items, in order."""

    titles: Mapping[str, str]  #: section -> title
    answers: tuple[Answer, ...]

    def select_answers(self, *states: State) -> list[Answer]:
        """The answers in these states."""
        return [answer for answer in self.answers if answer.state in states]

    @property
    def verdict(self) -> Verdict:
        """differ if an item fails, inconclusive if one that could be checked cannot be told, else agree."""
        return (
            "differ"
            if self.select_answers("fails")
            else "inconclusive"
            if self.select_answers("inconclusive")
            else "agree"
        )

    def to_stage(self) -> Stage:
        """The checklist as one stage of a triage."""
        counts = {state: len(self.select_answers(state)) for state in _WORST}
        failing, unknown, advised = (
            self.select_answers("fails"),
            self.select_answers("inconclusive"),
            self.select_answers("advice"),
        )
        first = f"{failing[0].evidence[0]}{_more(len(failing) - 1)}; " if failing else ""
        said = f"{first}{counts['holds']} items hold, {counts['advice']} are advised, {counts['inconclusive']} are inconclusive"
        return Stage(
            name="checklist",
            verdict=self.verdict,
            headline=f"{said}, {counts['open']} are to tick off",
            evidence=tuple(line for answer in (*failing, *advised) for line in answer.evidence),
            missing=tuple(line for answer in unknown for line in answer.evidence),
        )


def check(
    settings: SettingsComparison | None = None, logs: LogComparison | None = None
) -> Checklist:
    """Answer what two runs' settings and logs can answer; without them everything is left to tick off."""
    titles, items = load_items()
    return Checklist(titles, tuple(_answer(item, settings, logs) for item in items))


@cache
def load_items() -> tuple[Mapping[str, str], tuple[Item, ...]]:
    """Titles of the sections, and all items, as shipped."""
    with (find_shipped_root() / "checklist.yaml").open(encoding="utf-8") as stream:
        data = yaml.safe_load(stream)
    return data["sections"], tuple(Item(name, **fields) for name, fields in data["items"].items())


def _answer(item: Item, settings: SettingsComparison | None, logs: LogComparison | None) -> Answer:
    found: list[tuple[State, str]] = []
    if settings is not None:
        found += [*_rows(item, settings), *_advice(item, settings)]
        for side in (settings.target, settings.reference):
            found += [*_variables(item, side), *_keys(item, side)]
    if logs is not None:
        found += _criteria(item, logs)
    if not found and settings is not None and _means_nothing(item, settings):
        return Answer(item, "unused")
    states = {state for state, _ in found}
    worst: State = next((state for state in _WORST if state in states), "open")
    # Settings alone cannot tick off what a dump or the data itself must show.
    if item.dump and worst == "holds":
        return Answer(item, "open", tuple(said for _, said in found))
    return Answer(item, worst, tuple(said for state, said in found if state == worst))


def _means_nothing(item: Item, settings: SettingsComparison) -> bool:
    rows = [outcome.state for outcome in settings.outcomes if outcome.item == item.name]
    return item.settings and bool(rows) and set(rows) == {"unused"}


_STATES: Mapping[str, State] = {
    "agree": "holds",
    "differ": "fails",
    "unsupported": "fails",
    "inconclusive": "inconclusive",
}


def _rows(item: Item, settings: SettingsComparison) -> Iterator[tuple[State, str]]:
    """What the table of settings says; a difference that at most rounds is a matter of advice."""
    if not item.settings:
        return
    for outcome in settings.outcomes:
        if outcome.item == item.name and outcome.state in _STATES:
            state = _STATES[outcome.state]
            if state in ("fails", "inconclusive") and not outcome.matters:
                if outcome.effect == "none":
                    continue
                state = "advice"
            yield state, outcome.reason


def _advice(item: Item, settings: SettingsComparison) -> Iterator[tuple[State, str]]:
    """What both runs should have while they are aligned."""
    rows: dict[str, ComparedSetting] = {outcome.setting: outcome for outcome in settings.outcomes}
    for name, wanted in item.advise.items():
        outcome = rows[name]
        for side, seen in (
            (settings.target, outcome.target),
            (settings.reference, outcome.reference),
        ):
            if outcome.state == "unused" or seen.how in ("unknown", "absent") or _is(seen, wanted):
                continue
            said = f"{name.replace('_', ' ')} is {format_value(seen.value)} in {FRAMEWORK_NAMES[side.framework]}"
            yield "advice", f"{said}, advised {format_value(wanted)}"
        if outcome.state == "agree" and _is(outcome.target, wanted):
            yield "holds", f"{name.replace('_', ' ')} is {format_value(wanted)}"


def _is(seen: RowValue, wanted: Any) -> bool:
    return are_equal(seen.value, wanted)


def _variables(item: Item, side: Settings) -> Iterator[tuple[State, str]]:
    """Variables that a launch script should set; a YAML or a log says nothing about them."""
    for name, wanted in item.environment.get(side.framework, {}).items():
        given = side.environment.get(name)
        if given is not None and not given.doubt:
            right = str(given.value).lower() == wanted.lower()
            said = f"{name}={given.value} ({given.place})"
            yield "holds" if right else "fails", said if right else f"{said}, expected {wanted}"
        elif "script" in side.source:
            yield "advice", f"{name} is not set in {side.path}, advised {wanted}"


def _keys(item: Item, side: Settings) -> Iterator[tuple[State, str]]:
    """Keys of a YAML of MindSpore Transformers that should have a value; silence is the default, which is right."""
    for name, wanted in item.keys.items() if side.framework == "mindformers" else ():
        given = side.values.get(name)
        if given is None:
            yield "holds", f"{name} is not set in {side.path}: {format_value(wanted)} by default"
            continue
        right = are_equal(given.value, wanted)
        said = f"{name} is {format_value(given.value)} ({given.place})"
        yield (
            "holds" if right else "fails",
            said if right else f"{said}, expected {format_value(wanted)}",
        )


def _criteria(item: Item, logs: LogComparison) -> Iterator[tuple[State, str]]:
    for criterion in logs.checks:
        if criterion.name in item.logs:
            yield _STATES[criterion.verdict], criterion.said


def _more(count: int) -> str:
    return f", and {count} more" if count else ""
