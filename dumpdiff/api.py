"""The library's front door: the whole way of the data, from two paths to a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from . import readers
from .alignment import align as align_flows
from .collector import collector_paused
from .compare import Spread, compare_pairs, spread_of
from .graph import Flow, flow_of
from .locate import locate
from .readers.parts import Part
from .result import Result
from .rules import Rules, load_rules
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
    baseline: str | Path | None = None,
    rules: Sequence[str | Path] = (),
    min_coverage: float = MIN_COVERAGE,
    progress: Progress | None = None,
) -> Result:
    """Where do two dumps of one model part? ``target`` is the run under test, ``reference`` the trusted one.

    Any two formats can be compared. ``step``, ``rank`` and ``graph`` choose a part of each dump (default: the first
    common step, the first common rank, the first graph); ``baseline`` is a second run of the reference: what these two
    differ by is allowed to the target, see compare.baseline; ``rules`` are further rule files.

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
    spread = None if baseline is None else _spread(baseline, parts[1], flows[1], book, progress)
    _say(progress, "aligning", 0.0)
    alignment = align_flows(flows[0], flows[1], book)
    comparison = compare_pairs(alignment, book, _stage(progress, "comparing"), spread)
    _say(progress, "locating", 0.0)
    return locate(comparison, book, min_coverage)


def _spread(path: str | Path, part: Part, reference: Flow, rules: Rules, progress: Progress | None) -> Spread:
    """The same step, rank and graph of another run of the reference, compared with it."""
    choice = {"step": part.step, "rank": None if part.anonymous else part.rank, "graph": part.graph}
    again, _ = readers.choose(readers.find(path), [part], **choice, roles=("baseline", "reference"))
    _say(progress, "reading the baseline", 0.0)
    flow = flow_of(readers.read(again), _stage(progress, "statistics of the baseline"))
    return spread_of(compare_pairs(align_flows(flow, reference, rules), rules, _stage(progress, "comparing baseline")))


def read(path: str | Path, *, step: int | None = None, rank: int | None = None, graph: int | None = None) -> Trace:
    """The trace of one dump, or of the chosen part of it. Raises DumpError if nothing can be read."""
    parts = readers.find(path)
    return readers.read(readers.choose(parts, parts, step=step, rank=rank, graph=graph)[0])


def _say(progress: Progress | None, stage: str, share: float) -> None:
    if progress:
        progress(stage, share)


def _stage(progress: Progress | None, stage: str) -> Callable[[float], None] | None:
    return (lambda share: progress(stage, share)) if progress else None
