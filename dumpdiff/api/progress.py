"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

#: Called with what is being done, and the share of it that is done (0..1).
Progress = Callable[[str, float], None]


def report_progress(progress: Progress | None, activity: str, share: float) -> None:
    """Report to ``progress``, if there is one, that ``share`` (0..1) of ``activity`` is done."""
    if progress is not None:
        progress(activity, share)


def narrow_progress(progress: Progress | None, activity: str) -> Callable[[float], None] | None:
    """Return a callback that takes the share of one activity; None if there is no ``progress``."""
    if progress is None:
        return None
    return lambda share: progress(activity, share)
