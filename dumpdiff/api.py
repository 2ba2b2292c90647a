"""The library's front door: the whole way of the data, from two paths to a result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import readers
from .alignment import align as align_flows
from .collector import collector_paused
from .compare import Comparison, Spread, compare_pairs, spread_of
from .errors import DumpError
from .graph import Flow, flow_of
from .locate import locate
from .readers.parts import Part
from .recorded import Recorded, recorded
from .result import Finding, Result
from .rules import Rules, load_rules
from .trace import Trace

if TYPE_CHECKING:
    from .capture.like import Expected
    from .capture.msprobe import Options
    from .capture.msprobe.mapping import Kind as MappingKind
    from .capture.msprobe.mapping import MsprobeMapping
    from .capture.msprobe.version import Version
    from .capture.narrow import Narrowed
    from .convert import Converted, Reading, Wanted
    from .optimizers.differences import Comparison as Moves
    from .optimizers.moved import Moved
    from .weights import WeightsResult

Progress = Callable[[str, float], None]  #: (what is being done, share done 0..1)
Checkpoints = tuple[str | Path | None, str | Path | None]  #: of the target's weights and the reference's

#: A verdict 'aligned' needs this share of each side's forward (and backward) ops compared, or leading only to what was.
MIN_COVERAGE = 0.7

#: Ranks of the findings that are explained unasked: later ones mostly follow from these, and each costs a moment.
EXPLAINED = (1, 2, 3)


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
    parts = readers.choose(readers.find(target), readers.find(reference), step=step, rank=rank, graph=graph)
    comparison = _compared(parts, baseline, book, progress, (weights_target, weights_reference))
    _say(progress, "locating", 0.0)
    result = locate(comparison, book, min_coverage)
    _say(progress, "explaining", 0.0)
    result = replace(result, findings=_explained(result.findings, comparison, book, explained))
    if not closeups:
        return result
    from .depict import closeups as closeups_of

    _say(progress, "drawing", 0.0)
    return replace(result, closeups=closeups_of(comparison, result, book))


def _explained(
    findings: tuple[Finding, ...], comparison: Comparison, rules: Rules, ranks: Collection[int]
) -> tuple[Finding, ...]:
    """The findings, those of the given ranks with their causes."""
    chosen = [finding for finding in findings if finding.rank in ranks]
    if not chosen:
        return findings
    from .explain import explain  # most comparisons end in agreement, and need none of it

    told = {finding.rank: finding for finding in explain(comparison, rules, chosen)}
    return tuple(told.get(finding.rank, finding) for finding in findings)


def explain(
    result: str | Path, finding: int = 1, *, rules: Sequence[str | Path] = (), progress: Progress | None = None
) -> Finding:
    """The finding number ``finding`` of a result that ``dumpdiff align --json`` wrote, with its causes.

    See :func:`repeat`. Raises DumpError if the file has no such finding, or its dumps are no longer those.
    """
    made = recorded(Path(result))
    if finding > len(made.titles):
        raise DumpError(f"{result}: has no finding {finding}; it has {len(made.titles)}")
    again = repeat(result, rules=rules, explained=(finding,), progress=progress)
    found = next((one for one in again.findings if one.title == made.titles[finding - 1]), None)
    if found is None:
        raise DumpError(f"{result}: its dumps no longer give finding {finding}; run dumpdiff align again")
    return found


def repeat(
    result: str | Path,
    *,
    rules: Sequence[str | Path] = (),
    explained: Collection[int] = EXPLAINED,
    closeups: bool = False,
    progress: Progress | None = None,
) -> Result:
    """The comparison that ``dumpdiff align --json`` wrote to the file ``result``, made again with all its tables.

    The two dumps that it names are read again, in the same step, rank and graph, and against the same baseline.

    Raises DumpError if the file is no such result, or its dumps are gone.
    """
    made = recorded(Path(result))
    return align(
        made.target,
        made.reference,
        step=made.step,
        rank=made.rank,
        graph=made.graph,
        baseline=made.baseline,
        weights_target=made.weights[0],
        weights_reference=made.weights[1],
        min_coverage=made.min_coverage,
        rules=rules,
        explained=explained,
        closeups=closeups,
        progress=progress,
    )


@collector_paused()
def narrow(
    result: str | Path,
    folder: str | Path,
    *,
    finding: int | None = None,
    count: int = 20,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Narrowed:
    """What to record next: whole tensors of at most ``count`` ops of either side, around a finding of a result.

    Without a ``finding`` around the first three. ``folder`` is where the configurations will lie and the dumps go.

    Raises DumpError if the file is no result, has no such finding, or its dumps are gone.
    """
    from .capture.narrow import narrow as narrowed

    made, book = recorded(Path(result)), load_rules(rules)
    if finding is not None and finding > len(made.titles):
        raise DumpError(f"{result}: has no finding {finding}; it has {len(made.titles)}")
    comparison = _compared(_parts(made), made.baseline, book, progress, made.weights)
    _say(progress, "locating", 0.0)
    findings = locate(comparison, book, made.min_coverage).findings
    chosen = findings[:3] if finding is None else findings[finding - 1 : finding]
    return narrowed(comparison.alignment, chosen, count, Path(folder).absolute())


@collector_paused()
def mapping(
    result: str | Path,
    kind: MappingKind = "data",
    *,
    version: Version | None = None,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> MsprobeMapping:
    """The mapping file that lets ``msprobe compare`` compare the two dumps of a result as they were aligned.

    ``version`` is that of the msprobe that will read it; by default the one that wrote the reference.

    Raises DumpError if the file is no result, or its dumps are gone or not both of msprobe.
    """
    from .capture.msprobe.mapping import msprobe_mapping

    made, book = recorded(Path(result)), load_rules(rules)
    flows = _flows(_parts(made), progress, made.weights)
    _say(progress, "aligning", 0.0)
    return msprobe_mapping(align_flows(*flows, book), book, kind, version)


def optimizer(
    target: str | Path,
    reference: str | Path | None = None,
    *,
    settings: str | Path | None = None,
    progress: Progress | None = None,
) -> Moved | Moves:
    """Which rule moved the weights of a run; with ``reference``, of two runs, and what is different.

    Each is a folder with ``weights_0``, ``gradients_1``, ``weights_1``, ..., or such paths with commas between them, or
    a dump of several steps, see :mod:`dumpdiff.optimizers.inputs`; ``settings`` is a file of what is known of both.

    Raises DumpError if nothing can be read or followed there.
    """
    from .optimizers.differences import compared
    from .optimizers.inputs import read_run

    given = [target] if reference is None else [target, reference]
    found = []
    for at, path in enumerate(given):
        _say(progress, f"recomputing {path}", at / len(given))
        found.append(read_run(str(path), settings))
    return found[0] if reference is None else compared(*found)


def expected_mindspore(config: Mapping[str, Any], like: str | Path) -> Expected:
    """What a valid dump configuration of MindSpore will cost, if the run is like that of the dump ``like``."""
    from .capture.like import like_mindspore

    return like_mindspore(config, _first(like), str(like))


def expected_msprobe(options: Options, like: str | Path) -> Expected:
    """What msprobe will write, asked for by ``options``, if the run is like that of the dump ``like``."""
    from .capture.like import like_msprobe

    return like_msprobe(options, _first(like), str(like))


def _first(dump: str | Path) -> Trace:
    """The trace of the first part of a dump, whatever it holds: one step of one rank stands for the others."""
    return readers.read(readers.find(dump)[0])


def _parts(made: Recorded) -> tuple[Part, Part]:
    """The two parts that a recorded comparison was of."""
    found = readers.find(made.target), readers.find(made.reference)
    return readers.choose(*found, step=made.step, rank=made.rank, graph=made.graph)


def _compared(
    parts: tuple[Part, Part],
    baseline: str | Path | None,
    rules: Rules,
    progress: Progress | None,
    weights: Checkpoints = (None, None),
) -> Comparison:
    """Two parts read, aligned and compared; with what two runs of the reference allow, if there is a baseline."""
    flows = _flows(parts, progress, weights)
    spread = None if baseline is None else _spread(baseline, parts[1], flows[1], rules, progress)
    _say(progress, "aligning", 0.0)
    return compare_pairs(align_flows(*flows, rules), rules, _stage(progress, "comparing"), spread)


def _flows(
    parts: tuple[Part, Part], progress: Progress | None, weights: Checkpoints = (None, None)
) -> tuple[Flow, Flow]:
    """Both sides read, their parameters named by checkpoints where there are any, and their dataflow."""
    flows = []
    for role, part, saved in zip(("target", "reference"), parts, weights, strict=True):
        _say(progress, f"reading the {role}", 0.0)
        trace = readers.read(part)
        if saved is not None:
            trace = _named(trace, saved, _stage(progress, f"weights of the {role}"))
        flows.append(flow_of(trace, _stage(progress, f"statistics of the {role}")))
    return flows[0], flows[1]


def _named(trace: Trace, saved: str | Path, progress: Callable[[float], None] | None) -> Trace:
    from . import checkpoints
    from .weights.naming import with_names

    return with_names(trace, checkpoints.open(saved), progress)


def weights(
    target: str | Path,
    reference: str | Path,
    *,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> WeightsResult:
    """Do two checkpoints hold the same weights? ``target`` is the one under test, ``reference`` the trusted one.

    Any two formats and layouts can be compared; ``rules`` are further rule files. Memory stays within a few hundred
    megabytes, whatever the checkpoints' size.

    Raises DumpError if a checkpoint cannot be read, RuleError for a wrong rule file.
    """
    from . import checkpoints
    from .weights import compare

    book = load_rules([Path(file) for file in rules])
    return compare(checkpoints.open(target), checkpoints.open(reference), book, progress)


def convert(
    source: str | Path,
    folder: str | Path | None,
    wanted: Wanted,
    reading: Reading | None = None,
    *,
    like: str | Path | None = None,
    resume: bool = False,
    verify: bool = True,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Converted:
    """Write the weights of ``source`` into ``folder`` as another framework has them; only plan it if that is None.

    ``wanted`` says as what, ``reading`` what the files of the source do not, ``like`` is a checkpoint whose names to
    use; with ``resume`` an interrupted conversion goes on; ``verify`` compares what was written with the source.

    Raises DumpError for what cannot be read, converted or written, RuleError for a wrong rule file.
    """
    from . import checkpoints
    from .convert import Reading, planned
    from .convert import convert as converted

    book, opened = load_rules([Path(file) for file in rules]), checkpoints.open(source)
    said, example = reading or Reading(), None if like is None else checkpoints.open(like)
    if folder is None:
        return planned(opened, said, wanted, book, example)
    return converted(
        opened, Path(folder), said, wanted, book, like=example, resume=resume, verify=verify, progress=progress
    )


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
