"""A comparison of gradient norms in a terminal and as JSON, for ``dumpdiff norms``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ...gradient_norms import NormComparison, Norms, Pattern, Row
from ...model.formatting import format_number
from ..formats.blocks import Block, ListBlock, TableBlock
from ..sentences import translate_sentence
from .stage import build_document, write_stage

_STATES = {
    "agree": "",
    "differ": "differs",
    "inconclusive": "inconclusive",
    "coarse": "too few digits",
}
_PAIRED_BY = {
    "name": "name",
    "rule": "rule",
    "parts": "sum of squares",
    "order": "order",
    "value": "value",
}
_MAX_ROWS = 10  #: rows that are shown without -v, the differing ones first
_MAX_UNPAIRED = 10  #: parameters without a partner that are listed without -v


def write(
    comparison: NormComparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the verdict, both sides, the patterns, and the worst norms; all with ``verbose``."""
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: NormComparison) -> tuple[str, str]:
    """Describe target and reference, one line each."""
    return _format_side(comparison.target), _format_side(comparison.reference)


def build_blocks(comparison: NormComparison, *, verbose: bool = False) -> Iterator[Block]:
    """Yield the patterns, the worst norms, the coverage, the unpaired; all with ``verbose``."""
    patterns = tuple(f"{p.summary}. Likely: {p.cause}" for p in comparison.patterns)
    yield ListBlock("what they have in common", patterns)
    rows = comparison.rows if verbose else comparison.rows[:_MAX_ROWS]
    columns = ("target", "reference", "difference", "allowed", "", "paired by")
    yield TableBlock("parameter", columns, tuple(map(_list_cells, rows)))
    coverage = list(_describe_coverage(comparison))
    n_more = len(comparison.rows) - len(rows)
    if n_more:
        coverage.append(f"{n_more} more rows with -v")
    yield ListBlock("compared", tuple(coverage))
    limit = None if verbose else _MAX_UNPAIRED
    yield ListBlock("only in the target", comparison.target_unpaired, limit)
    yield ListBlock("only in the reference", comparison.reference_unpaired, limit)
    yield ListBlock("notes", comparison.notes)


def _list_cells(row: Row) -> tuple[str, ...]:
    return (
        row.label,
        f"{row.target_norm:.6g}",
        f"{row.reference_norm:.6g}",
        format_number(row.relative),
        format_number(row.tolerance),
        translate_sentence(_STATES[row.state]),
        translate_sentence(_PAIRED_BY[row.evidence]),
    )


def _format_side(side: Norms) -> str:
    step = f", step {side.step}" if side.step is not None else ""
    norms = f"{len(side)} norms, together {side.combined_norm:.6g}"
    if not math.isnan(side.global_norm):
        norms += f", global norm {side.global_norm:.6g} printed"
    kind = "squares" if side.squared else "roots"
    return f"{side.source}{step}: {norms}; {kind} ({side.squared_reason}); {side.path}"


def _describe_coverage(comparison: NormComparison) -> Iterator[str]:
    target_share, reference_share = (f"{100 * share:.3g} %" for share in comparison.coverage)
    shares = f"{target_share} of the target's parameters, {reference_share} of the reference's"
    yield f"{len(comparison.rows)} pairs: {shares}"
    limit = f"{format_number(comparison.agree_limit)}{_describe_precision(comparison)}"
    yield f"allowed for rounding: {limit}; plus the rounding of the printed digits"
    if comparison.factor != 1:
        yield f"differences are those that remain after the factor {comparison.factor:.6g}"


def _describe_precision(comparison: NormComparison) -> str:
    """Return the precision, or what is inconclusive without it."""
    if comparison.precision:
        return f" ({comparison.precision})"
    inconclusive = ""
    if comparison.differ_limit > comparison.agree_limit:
        inconclusive = f"; up to {format_number(comparison.differ_limit)} is inconclusive"
    return f"{inconclusive} (precision unknown, see --precision)"


def to_json(comparison: NormComparison) -> dict[str, Any]:
    """Return the comparison as plain data: every row, unpaired parameters, patterns."""
    return build_document(
        comparison.to_stage(),
        target=_convert_side(comparison.target),
        reference=_convert_side(comparison.reference),
        agree_limit=comparison.agree_limit,
        differ_limit=comparison.differ_limit,
        precision=comparison.precision,
        factor=comparison.factor,
        coverage={"target": comparison.coverage[0], "reference": comparison.coverage[1]},
        patterns=[_convert_pattern(pattern) for pattern in comparison.patterns],
        rows=[_convert_row(row) for row in comparison.rows],
        unpaired={"target": comparison.target_unpaired, "reference": comparison.reference_unpaired},
        ambiguous=comparison.n_ambiguous,
        notes=comparison.notes,
    )


def _convert_row(row: Row) -> dict[str, Any]:
    return {
        "path": row.path,
        "target": row.target,
        "reference": row.reference,
        "target_norm": row.target_norm,
        "reference_norm": row.reference_norm,
        "relative": row.relative,
        "tolerance": row.tolerance,
        "state": row.state,
        "evidence": row.evidence,
    }


def _convert_pattern(pattern: Pattern) -> dict[str, Any]:
    return {
        "kind": pattern.kind,
        "summary": pattern.summary,
        "cause": pattern.cause,
        "layer": pattern.layer,
    }


def _convert_side(side: Norms) -> dict[str, Any]:
    return {
        "path": side.path,
        "source": side.source,
        "step": side.step,
        "norms": len(side),
        "squared": side.squared,
        "squared_reason": side.squared_reason,
        "global_norm": side.global_norm,
        "combined_norm": side.combined_norm,
        "precision": side.precision,
    }
