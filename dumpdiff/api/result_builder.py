"""The result of one step of one rank: compared, located, explained."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..divergence import locate
from ..model.result import Result
from .backends import OpenDumps
from .inputs import Candidates, Inputs
from .layouts import Layouts, list_layout
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
    layouts: Layouts | None = None,
    has_drawings: bool = False,
) -> tuple[Result, OpenDumps]:
    """Compare two dumps, explain the findings of the given ranks, and return the open dumps, too.

    ``candidates`` are the parts of either dump to choose from; default: all. ``layouts`` is what
    :func:`.layouts.find_layouts` returned, if it was called before.
    """
    comparison = compare_dumps(inputs, progress, candidates, layouts)
    report_progress(progress, "locating", 0.0)
    result = locate(comparison, inputs.book, min_coverage)
    if comparison.merged is not None:
        layout_rows = list_layout(comparison.merged)
        result = replace(
            result,
            findings=add_shard_evidence(result.findings, comparison, comparison.merged),
            details={**result.details, "layouts": layout_rows},
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
