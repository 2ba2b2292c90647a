"""A comparison of settings for people and for programs, for ``dumpdiff settings``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from ...run_settings import ComparedSetting, RowValue, Settings, SettingsComparison
from ...run_settings.comparison import format_places
from ...run_settings.settings import FRAMEWORK_NAMES
from ...run_settings.values import format_value
from .sections import Block, ListBlock, TableBlock, build_document, write_stage

_FEW = 5  #: lines of a list that are shown without -v


def write(
    comparison: SettingsComparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print what differs and what cannot be told; with ``verbose`` every row of the table."""
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: SettingsComparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _described(comparison.target), _described(comparison.reference)


def build_blocks(comparison: SettingsComparison, *, verbose: bool = False) -> Iterator[Block]:
    """What differs and what cannot be told; with ``verbose`` every row of the table."""
    columns = (
        FRAMEWORK_NAMES[comparison.target.framework],
        FRAMEWORK_NAMES[comparison.reference.framework],
    )

    def rows(title: str, outcomes: Iterable[ComparedSetting]) -> TableBlock:
        cells = (
            (o.setting.replace("_", " "), _cell(o.target), _cell(o.reference)) for o in outcomes
        )
        return TableBlock(title, columns, tuple(cells))

    yield rows(
        "changes the result", comparison.select_settings("differ", "unsupported", matters=True)
    )
    yield rows("inconclusive", comparison.select_settings("inconclusive", matters=True))
    minor = comparison.select_settings("differ", "unsupported", matters=False)
    yield rows("at most rounds", (outcome for outcome in minor if outcome.effect == "rounding"))
    if verbose:
        yield rows("changes no number", (outcome for outcome in minor if outcome.effect == "none"))
        yield rows("equal", comparison.select_settings("agree"))
        for role, names in comparison.unread.items():
            yield ListBlock(f"{role}: set, and in no row of the table", names)
    for role, side in (("target", comparison.target), ("reference", comparison.reference)):
        yield ListBlock(f"notes on the {role}", side.notes, None if verbose else _FEW)


def _cell(seen: RowValue) -> str:
    if seen.how == "absent":
        return "no such option"
    if seen.how == "unknown":
        return f"? {seen.why}"
    where = {"default": "by default", "fixed": "always"}.get(seen.how, format_places(seen.places))
    return f"{format_value(seen.value)}  ({where})"


def _described(settings: Settings) -> str:
    version = f" {settings.version}" if settings.version else ""
    return f"{FRAMEWORK_NAMES[settings.framework]}{version}, {settings.source}: {len(settings.values)} values, {settings.path}"


def to_json(comparison: SettingsComparison) -> dict[str, Any]:
    """The comparison as plain data: every row with both values, places and the reason."""
    return build_document(
        comparison.to_stage(),
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
