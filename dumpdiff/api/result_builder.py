"""The result of one step of one rank: compared, located, explained."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..divergence import locate
from ..model.result import Result, Side
from .backends import OpenDumps
from .inputs import Candidates, Inputs, PathLike
from .layouts import list_layout
from .pipeline import compare_dumps
from .progress import Progress, report_progress
from .shard_evidence import add_shard_evidence


def build_result(
    inputs: Inputs,
    min_coverage: float,
    explained: Collection[int],
    progress: Progress | None,
    *,
    candidates: Candidates | None = None,
    has_drawings: bool = False,
) -> tuple[Result, OpenDumps]:
    """Compare two dumps, explain the findings of the given ranks, and return the open dumps, too.

    ``candidates`` are the parts of either dump to choose from; default: all.
    """
    comparison = compare_dumps(inputs, progress, candidates)
    report_progress(progress, "locating", 0.0)
    result = locate(comparison, inputs.book, min_coverage)
    if comparison.merged is not None:
        layouts = list_layout(comparison.merged)
        result = replace(
            result,
            target=_name_run(result.target, inputs.target),
            reference=_name_run(result.reference, inputs.reference),
            findings=add_shard_evidence(result.findings, comparison, comparison.merged),
            details={**result.details, "layouts": layouts},
        )
    backend = OpenDumps(comparison, progress)
    report_progress(progress, "explaining", 0.0)
    rule_paths = [str(Path(file).absolute()) for file in inputs.rules]
    narrowed_paths = [str(Path(folder).absolute()) for folder in inputs.narrowed]
    result = replace(
        result,
        findings=backend.explain_ranks(result.findings, explained),
        details={
            **result.details,
            "rules": rule_paths,
            "verify": inputs.verify,
            "narrowed": narrowed_paths,
        },
        backend=backend,
    )
    return (backend.add_drawings(result) if has_drawings else result), backend


def _name_run(side: Side, path: PathLike) -> Side:
    """Return the side of a merged run with the path of all its ranks, which are read again."""
    return replace(side, source=replace(side.source, path=str(path)))
