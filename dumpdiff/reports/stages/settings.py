"""A comparison of settings in a terminal and as JSON, for ``dumpdiff settings``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from ...run_settings import ComparedSetting, RowValue, Settings, SettingsComparison
from ...run_settings.comparison import format_places
from ...run_settings.settings import FRAMEWORK_NAMES
from ...run_settings.values import format_value
from ..formats.blocks import Block, ListBlock, TableBlock
from .stage import build_document, write_stage

_SHORT = 5  #: lines of a list that are shown without -v


def write(
    comparison: SettingsComparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print what differs and what is inconclusive; with ``verbose`` every row of the table."""
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: SettingsComparison) -> tuple[str, str]:
    """Describe target and reference, one line each."""
    return _format_side(comparison.target), _format_side(comparison.reference)


def build_blocks(comparison: SettingsComparison, *, verbose: bool = False) -> Iterator[Block]:
    """Yield what differs and what is inconclusive; with ``verbose`` every row of the table."""
    columns = (
        FRAMEWORK_NAMES[comparison.target.framework],
        FRAMEWORK_NAMES[comparison.reference.framework],
    )

    def build_table(title: str, rows: Iterable[ComparedSetting]) -> TableBlock:
        return TableBlock(title, columns, tuple(map(_list_cells, rows)))

    major_rows = comparison.select_rows("differ", "unsupported", matters=True)
    minor_rows = comparison.select_rows("differ", "unsupported", matters=False)
    rounding_rows = [row for row in minor_rows if row.effect == "rounding"]
    yield build_table("changes the result", major_rows)
    yield build_table("inconclusive", comparison.select_rows("inconclusive", matters=True))
    yield build_table("at most rounds", rounding_rows)
    if verbose:
        harmless_rows = [row for row in minor_rows if row.effect == "none"]
        yield build_table("changes no number", harmless_rows)
        yield build_table("equal", comparison.select_rows("agree"))
    limit = None if verbose else _SHORT
    yield ListBlock("differs, effect not known", comparison.unread_differences, limit)
    for side, names in comparison.unread.items():
        yield ListBlock(f"{side}: set, but in no row of the table: not compared", names, limit)
    yield ListBlock("notes on the target", comparison.target.notes, limit)
    yield ListBlock("notes on the reference", comparison.reference.notes, limit)


def _list_cells(row: ComparedSetting) -> tuple[str, ...]:
    name = row.setting.replace("_", " ")
    return name, _format_value(row.target), _format_value(row.reference)


def _format_value(value: RowValue) -> str:
    if value.origin == "absent":
        return "no such option"
    if value.origin == "unknown":
        return f"? {value.reason}"
    if value.origin == "unstated":
        return "? not in this kind of file"
    origins = {"default": "by default", "fixed": "always"}
    origin = origins.get(value.origin, format_places(value.places))
    return f"{format_value(value.value)}  ({origin})"


def _format_side(settings: Settings) -> str:
    version = f" {settings.version}" if settings.version else ""
    framework = f"{FRAMEWORK_NAMES[settings.framework]}{version}"
    return f"{framework}, {settings.source}: {len(settings.values)} values, {settings.path}"


def to_json(comparison: SettingsComparison) -> dict[str, Any]:
    """Return the comparison as plain data: every row with both values, places and the reason."""
    return build_document(
        comparison.to_stage(),
        target=_convert_side(comparison.target),
        reference=_convert_side(comparison.reference),
        settings=[_convert_row(row) for row in comparison.rows],
        unread=comparison.unread,
    )


def _convert_row(row: ComparedSetting) -> dict[str, Any]:
    return {
        "setting": row.setting,
        "section": row.section,
        "effect": row.effect,
        "state": row.state,
        "target": _convert_value(row.target),
        "reference": _convert_value(row.reference),
        "reason": row.reason,
        "checklist": row.item,
    }


def _convert_value(value: RowValue) -> dict[str, Any]:
    return {
        "value": value.value,
        "origin": value.origin,
        "names": value.names,
        "places": value.places,
        "reason": value.reason,
    }


def _convert_side(settings: Settings) -> dict[str, Any]:
    environment = {name: variable.value for name, variable in settings.environment.items()}
    return {
        "path": settings.path,
        "framework": settings.framework,
        "version": settings.version,
        "source": settings.source,
        "environment": environment,
        "notes": settings.notes,
    }
