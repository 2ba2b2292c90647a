"""A comparison of settings for people and for programs, for ``dumpdiff settings``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from ..triage.settings import Comparison, Outcome, Seen, Settings
from ..triage.settings.comparing import spoken_places
from ..triage.settings.given import SPOKEN
from ..triage.settings.values import spoken
from . import stages

_FEW = 5  #: lines of a list that are shown without -v


def write(comparison: Comparison, console: Console, *, quiet: bool = False, verbose: bool = False) -> None:
    """Print what differs and what cannot be told; with ``verbose`` every row of the table."""
    stages.write_headline(comparison.stage(), console)
    if quiet:
        return
    stages.write_sides(console, _described(comparison.target), _described(comparison.reference))
    columns = (SPOKEN[comparison.target.framework], SPOKEN[comparison.reference.framework])
    _table(console, "changes the result", columns, comparison.having("different", "unsupported", matters=True))
    _table(console, "cannot be told", columns, comparison.having("unclear", matters=True))
    minor = comparison.having("different", "unsupported", matters=False)
    rounding = [outcome for outcome in minor if outcome.effect == "rounding"]
    _table(console, "at most rounds", columns, rounding)
    if verbose:
        _table(console, "changes no number", columns, [outcome for outcome in minor if outcome.effect == "none"])
        _table(console, "equal", columns, comparison.having("equal"))
        for role, names in comparison.unread.items():
            stages.write_list(console, f"{role}: set, and in no row of the table", names)
    for role, side in (("target", comparison.target), ("reference", comparison.reference)):
        stages.write_list(console, f"notes on the {role}", side.notes, None if verbose else _FEW)


def _table(console: Console, title: str, columns: tuple[str, str], outcomes: Iterable[Outcome]) -> None:
    rows = [(o.setting.replace("_", " "), _cell(o.target), _cell(o.reference)) for o in outcomes]
    stages.write_table(console, title, columns, rows)


def _cell(seen: Seen) -> str:
    if seen.how == "absent":
        return "no such option"
    if seen.how == "unknown":
        return f"? {seen.why}"
    where = {"default": "by default", "fixed": "always"}.get(seen.how, spoken_places(seen.places))
    return f"{spoken(seen.value)}  ({where})"


def _described(settings: Settings) -> str:
    version = f" {settings.version}" if settings.version else ""
    return f"{SPOKEN[settings.framework]}{version}, {settings.source}: {len(settings.values)} values, {settings.path}"


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data: every row with both values, places and the reason."""
    return stages.document(
        comparison.stage(),
        target=_side(comparison.target),
        reference=_side(comparison.reference),
        settings=[
            {
                "setting": o.setting,
                "section": o.section,
                "effect": o.effect,
                "state": o.state,
                "target": vars(o.target),
                "reference": vars(o.reference),
                "reason": o.reason,
                "checklist": o.item,
            }
            for o in comparison.outcomes
        ],
        unread=comparison.unread,
    )


def _side(settings: Settings) -> dict[str, Any]:
    return {
        "path": settings.path,
        "framework": settings.framework,
        "version": settings.version,
        "source": settings.source,
        "environment": {name: given.value for name, given in settings.environment.items()},
        "notes": settings.notes,
    }
