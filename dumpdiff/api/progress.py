"""How a long piece of work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]  #: (what is being done, share done 0..1)


def say(progress: Progress | None, stage: str, share: float) -> None:
    """Tell ``progress``, if there is one, that ``share`` of ``stage`` is done."""
    if progress:
        progress(stage, share)


def stage_of(progress: Progress | None, stage: str) -> Callable[[float], None] | None:
    """What one stage tells its share to; None if nobody listens."""
    return (lambda share: progress(stage, share)) if progress else None
