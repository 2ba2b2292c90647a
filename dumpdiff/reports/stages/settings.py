"""A comparison of settings for people and for programs, for ``dumpdiff settings``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from ...run_settings import Comparison, Outcome, Seen, Settings
from ...run_settings.comparison import spoken_places
from ...run_settings.settings import SPOKEN
from ...run_settings.values import spoken
from .sections import Lines, Part, Rows, document, write_stage

_FEW = 5  #: lines of a list that are shown without -v


def write(
    comparison: Comparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print what differs and what cannot be told; with ``verbose`` every row of the table."""
    write_stage(
        comparison.stage(),
        sides(comparison),
        parts(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def sides(comparison: Comparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _described(comparison.target), _described(comparison.reference)


def parts(comparison: Comparison, *, verbose: bool = False) -> Iterator[Part]:
    """What differs and what cannot be told; with ``verbose`` every row of the table."""
    columns = (SPOKEN[comparison.target.framework], SPOKEN[comparison.reference.framework])

    def rows(title: str, outcomes: Iterable[Outcome]) -> Rows:
        cells = (
            (o.setting.replace("_", " "), _cell(o.target), _cell(o.reference)) for o in outcomes
        )
        return Rows(title, columns, tuple(cells))

    yield rows("changes the result", comparison.having("different", "unsupported", matters=True))
    yield rows("cannot be told", comparison.having("unclear", matters=True))
    minor = comparison.having("different", "unsupported", matters=False)
    yield rows("at most rounds", (outcome for outcome in minor if outcome.effect == "rounding"))
    if verbose:
        yield rows("changes no number", (outcome for outcome in minor if outcome.effect == "none"))
        yield rows("equal", comparison.having("equal"))
        for role, names in comparison.unread.items():
            yield Lines(f"{role}: set, and in no row of the table", names)
    for role, side in (("target", comparison.target), ("reference", comparison.reference)):
        yield Lines(f"notes on the {role}", side.notes, None if verbose else _FEW)


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
    return document(
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
