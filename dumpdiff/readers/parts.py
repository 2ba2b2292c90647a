"""What a dump folder holds, and which part of it to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DumpError


@dataclass(frozen=True)
class Part:
    """One step of one rank (of one compiled graph) in one format; ``path`` is what the format's reader opens."""

    format: str
    path: Path
    step: int | None = None
    rank: int | None = None
    graph: int | None = None

    def __str__(self) -> str:
        said = [f"{key} {value}" for key in ("step", "rank", "graph") if (value := getattr(self, key)) is not None]
        return f"{self.path} ({', '.join([self.format, *said])})"


def choose(
    target: Sequence[Part],
    reference: Sequence[Part],
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
) -> tuple[Part, Part]:
    """The two parts to compare: what was asked for, else the first common step, the first common rank, the first graph.

    A part without a step (or rank) matches any. Raises DumpError when the two dumps have no step or rank in common,
    listing what each has.
    """
    raise DumpError("not written yet")
