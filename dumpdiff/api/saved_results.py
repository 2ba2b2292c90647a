"""What is made of a result that was written before: its two dumps are read again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import readers
from ..alignment import align as align_flows
from ..divergence import locate
from ..model.defaults import EXPLAINED
from ..model.errors import DumpError
from ..model.gc_pause import collector_paused
from ..model.result import Finding, Result
from ..model.saved_result import Recorded, recorded
from ..readers.parts import Part
from ..rulebook import load_rules
from .dumps import align, compared, flows
from .progress import Progress, say

if TYPE_CHECKING:
    from ..capture.msprobe.mapping_files import Kind as MappingKind
    from ..capture.msprobe.mapping_files import MsprobeMapping
    from ..capture.msprobe.version import Version
    from ..capture.next_dump import Narrowed


def repeat(
    result: str | Path,
    *,
    rules: Sequence[str | Path] = (),
    explained: Collection[int] = EXPLAINED,
    closeups: bool = False,
    progress: Progress | None = None,
) -> Result:
    """The comparison that ``dumpdiff align --json`` wrote to the file ``result``, made again with all its tables.

    The two dumps that it names are read again, in the same step, rank and graph, by the same rules and against the
    same baseline; ``rules`` are further ones.

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
        rules=(*made.rules, *rules),
        explained=explained,
        closeups=closeups,
        progress=progress,
    )


def explain(
    result: str | Path,
    finding: int = 1,
    *,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
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
        raise DumpError(
            f"{result}: its dumps no longer give finding {finding}; run dumpdiff align again"
        )
    return found


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
    from ..capture.next_dump import narrow as narrowed

    made = recorded(Path(result))
    book = load_rules([*made.rules, *rules])
    if finding is not None and finding > len(made.titles):
        raise DumpError(f"{result}: has no finding {finding}; it has {len(made.titles)}")
    comparison = compared(_parts(made), made.baseline, book, progress, made.weights)
    say(progress, "locating", 0.0)
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
    from ..capture.msprobe.mapping_files import msprobe_mapping

    made = recorded(Path(result))
    book = load_rules([*made.rules, *rules])
    sides = flows(_parts(made), progress, made.weights)
    say(progress, "aligning", 0.0)
    return msprobe_mapping(align_flows(*sides, book), book, kind, version)


def _parts(made: Recorded) -> tuple[Part, Part]:
    """The two parts that a recorded comparison was of."""
    found = readers.find(made.target), readers.find(made.reference)
    return readers.choose(*found, step=made.step, rank=made.rank, graph=made.graph)
