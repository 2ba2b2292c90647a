"""The library's front door: the whole way of the data, from two paths to a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from . import readers
from .alignment import align as align_flows
from .collector import collector_paused
from .compare import compare_pairs
from .graph import flow_of
from .locate import locate
from .result import Result
from .rules import load_rules
from .trace import Trace

Progress = Callable[[str, float], None]  #: (what is being done, share done 0..1)

#: A verdict 'aligned' needs this share of each side's forward (and backward) ops compared, or leading only to what was.
MIN_COVERAGE = 0.7


@collector_paused()
def align(
    target: str | Path,
    reference: str | Path,
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
    rules: Sequence[str | Path] = (),
    min_coverage: float = MIN_COVERAGE,
    progress: Progress | None = None,
) -> Result:
    """Where do two dumps of one model part? ``target`` is the run under test, ``reference`` the trusted one.

    Any two formats can be compared. ``step``, ``rank`` and ``graph`` choose a part of each dump (default: the first
    common step, the first common rank, the first graph); ``rules`` are further rule files.

    Raises DumpError if a dump cannot be read or the two have no step or rank in common, RuleError for a wrong rule
    file.
    """
    book = load_rules([Path(file) for file in rules])
    parts = readers.choose(readers.find(target), readers.find(reference), step=step, rank=rank, graph=graph)
    flows = []
    for role, part in zip(("target", "reference"), parts, strict=True):
        _say(progress, f"reading the {role}", 0.0)
        trace = readers.read(part)
        flows.append(flow_of(trace, _stage(progress, f"statistics of the {role}")))
    _say(progress, "aligning", 0.0)
    alignment = align_flows(flows[0], flows[1], book)
    comparison = compare_pairs(alignment, book, _stage(progress, "comparing"))
    _say(progress, "locating", 0.0)
    return locate(comparison, book, min_coverage)


def read(path: str | Path, *, step: int | None = None, rank: int | None = None, graph: int | None = None) -> Trace:
    """The trace of one dump, or of the chosen part of it. Raises DumpError if nothing can be read."""
    parts = readers.find(path)
    return readers.read(readers.choose(parts, parts, step=step, rank=rank, graph=graph)[0])


def _say(progress: Progress | None, stage: str, share: float) -> None:
    if progress:
        progress(stage, share)


def _stage(progress: Progress | None, stage: str) -> Callable[[float], None] | None:
    return (lambda share: progress(stage, share)) if progress else None
