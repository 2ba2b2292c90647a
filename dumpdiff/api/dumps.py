"""From two dumps to a result: reading, aligning, comparing, locating, explaining, drawing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from .. import readers
from ..alignment import align as align_flows
from ..comparison import Comparison, Spread, compare_pairs, spread_of
from ..divergence import locate
from ..graph import Flow, flow_of
from ..model.defaults import EXPLAINED, MIN_COVERAGE
from ..model.gc_pause import collector_paused
from ..model.result import Finding, Result
from ..model.trace import Trace
from ..readers.parts import Part
from ..rulebook import Rules, load_rules
from .progress import Progress, say, stage_of

Checkpoints = tuple[
    str | Path | None, str | Path | None
]  #: of the target's weights and the reference's


def read(
    path: str | Path, *, step: int | None = None, rank: int | None = None, graph: int | None = None
) -> Trace:
    """The trace of one dump, or of the chosen part of it. Raises DumpError if nothing can be read."""
    parts = readers.find(path)
    return readers.read(readers.choose(parts, parts, step=step, rank=rank, graph=graph)[0])


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
    weights_target: str | Path | None = None,
    weights_reference: str | Path | None = None,
    min_coverage: float = MIN_COVERAGE,
    explained: Collection[int] = EXPLAINED,
    closeups: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Where do two dumps of one model part? ``target`` is the run under test, ``reference`` the trusted one.

    Any two formats can be compared. ``step``, ``rank`` and ``graph`` choose a part of each dump (default: the first
    common step, the first common rank, the first graph); ``baseline`` is a second run of the reference: what these two
    differ by is allowed to the target, see compare.baseline; ``rules`` are further rule files; ``weights_target`` and
    ``weights_reference`` are checkpoints that name a side's parameters by their values; ``explained`` are the ranks of
    the findings whose cause is looked for; ``closeups`` asks for what a report that draws needs.

    Raises DumpError if a dump or a checkpoint cannot be read, or the two have no step or rank in common, RuleError for
    a wrong rule file.
    """
    book = load_rules([Path(file) for file in rules])
    parts = readers.choose(
        readers.find(target), readers.find(reference), step=step, rank=rank, graph=graph
    )
    comparison = compared(parts, baseline, book, progress, (weights_target, weights_reference))
    say(progress, "locating", 0.0)
    result = locate(comparison, book, min_coverage)
    say(progress, "explaining", 0.0)
    result = replace(
        result,
        findings=_explained(result.findings, comparison, book, explained),
        details={**result.details, "rules": [str(file) for file in rules]},
    )
    if not closeups:
        return result
    from ..figures import closeups as closeups_of

    say(progress, "drawing", 0.0)
    return replace(result, closeups=closeups_of(comparison, result, book))


def compared(
    parts: tuple[Part, Part],
    baseline: str | Path | None,
    rules: Rules,
    progress: Progress | None,
    weights: Checkpoints = (None, None),
) -> Comparison:
    """Two parts read, aligned and compared; with what two runs of the reference allow, if there is a baseline."""
    sides = flows(parts, progress, weights)
    spread = None if baseline is None else _spread(baseline, parts[1], sides[1], rules, progress)
    say(progress, "aligning", 0.0)
    return compare_pairs(align_flows(*sides, rules), rules, stage_of(progress, "comparing"), spread)


def flows(
    parts: tuple[Part, Part], progress: Progress | None, weights: Checkpoints = (None, None)
) -> tuple[Flow, Flow]:
    """Both sides read, their parameters named by checkpoints where there are any, and their dataflow."""
    found = []
    for role, part, saved in zip(("target", "reference"), parts, weights, strict=True):
        say(progress, f"reading the {role}", 0.0)
        trace = readers.read(part)
        if saved is not None:
            trace = _named(trace, saved, stage_of(progress, f"weights of the {role}"))
        found.append(flow_of(trace, stage_of(progress, f"statistics of the {role}")))
    return found[0], found[1]


def _named(trace: Trace, saved: str | Path, progress: Callable[[float], None] | None) -> Trace:
    from .. import checkpoints
    from ..weight_comparison.dump_names import with_names

    return with_names(trace, checkpoints.open(saved), progress)


def _spread(
    path: str | Path, part: Part, reference: Flow, rules: Rules, progress: Progress | None
) -> Spread:
    """The same step, rank and graph of another run of the reference, compared with it."""
    choice = {"step": part.step, "rank": None if part.anonymous else part.rank, "graph": part.graph}
    again, _ = readers.choose(readers.find(path), [part], **choice, roles=("baseline", "reference"))
    say(progress, "reading the baseline", 0.0)
    flow = flow_of(readers.read(again), stage_of(progress, "statistics of the baseline"))
    alignment = align_flows(flow, reference, rules)
    return spread_of(compare_pairs(alignment, rules, stage_of(progress, "comparing the baseline")))


def _explained(
    findings: tuple[Finding, ...], comparison: Comparison, rules: Rules, ranks: Collection[int]
) -> tuple[Finding, ...]:
    """The findings, those of the given ranks with their causes."""
    chosen = [finding for finding in findings if finding.rank in ranks]
    if not chosen:
        return findings
    from ..causes import explain  # most comparisons end in agreement, and need none of it

    told = {finding.rank: finding for finding in explain(comparison, rules, chosen)}
    return tuple(told.get(finding.rank, finding) for finding in findings)
