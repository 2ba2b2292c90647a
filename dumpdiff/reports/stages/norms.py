"""A comparison of gradient norms for people and for programs, for ``dumpdiff norms``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ...gradient_norms import NormComparison, Norms, Row
from ...model.formatting import number
from .sections import Block, ListBlock, TableBlock, build_document, write_stage

_STATES = {
    "agree": "",
    "differ": "differs",
    "inconclusive": "inconclusive",
    "coarse": "too few digits",
}
_BY = {
    "name": "name",
    "rule": "rule",
    "parts": "sum of squares",
    "order": "order",
    "value": "value",
}
_WORST = 10  #: rows that are shown without -v, the differing ones first
_ALONE = 10  #: parameters without a partner that are named without -v


def write(
    comparison: NormComparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the verdict, both sides, what the differing norms have in common, and the worst; all with ``verbose``."""
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: NormComparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _described(comparison.target), _described(comparison.reference)


def build_blocks(comparison: NormComparison, *, verbose: bool = False) -> Iterator[Block]:
    """What the differing norms have in common, the worst, what was compared, what is alone; all with ``verbose``."""
    yield ListBlock(
        "what they have in common",
        tuple(f"{one.summary}. Likely: {one.cause}" for one in comparison.patterns),
    )
    rows = comparison.rows if verbose else comparison.rows[:_WORST]
    columns = ("target", "reference", "off by", "allowed", "", "paired by")
    yield TableBlock("parameter", columns, tuple(map(_cells, rows)))
    left = len(comparison.rows) - len(rows)
    yield ListBlock(
        "compared", (*_coverage(comparison), *((f"{left} more rows with -v",) if left else ()))
    )
    for role, alone in (
        ("target", comparison.target_unpaired),
        ("reference", comparison.reference_unpaired),
    ):
        yield ListBlock(f"of the {role} alone", alone, None if verbose else _ALONE)
    yield ListBlock("notes", comparison.notes)


def _cells(row: Row) -> tuple[str, ...]:
    norms = f"{row.target_norm:.6g}", f"{row.reference_norm:.6g}"
    return (
        row.label,
        *norms,
        number(row.relative),
        number(row.tolerance),
        _STATES[row.state],
        _BY[row.by],
    )


def _described(side: Norms) -> str:
    step = f", step {side.step}" if side.step is not None else ""
    kind = "squares" if side.squared else "roots"
    printed = (
        f", global norm {side.global_norm:.6g} printed"
        if side.global_norm == side.global_norm
        else ""
    )
    together = f"{len(side)} norms, together {side.combined_norm:.6g}{printed}"
    return f"{side.source}{step}: {together}; {kind} ({side.squared_reason}); {side.path}"


def _coverage(comparison: NormComparison) -> list[str]:
    first, second = (f"{100 * share:.3g} %" for share in comparison.coverage)
    lines = [
        f"{len(comparison.rows)} pairs: {first} of the target's parameters, {second} of the reference's",
        f"allowed for rounding: {number(comparison.agree_limit)}{_doubt(comparison)}; what digits leave open besides",
    ]
    if comparison.factor != 1:
        lines.append(f"differences are those that remain after the factor {comparison.factor:.6g}")
    return lines


def _doubt(comparison: NormComparison) -> str:
    """The precision, or what cannot be told without it."""
    if comparison.precision:
        return f" ({comparison.precision})"
    unsure = (
        f"; up to {number(comparison.differ_limit)} cannot be told"
        if comparison.differ_limit > comparison.agree_limit
        else ""
    )
    return f"{unsure} (precision unknown, see --precision)"


def to_json(comparison: NormComparison) -> dict[str, Any]:
    """The comparison as plain data: every row, what is alone, patterns."""
    return build_document(
        comparison.to_stage(),
        target=_side(comparison.target),
        reference=_side(comparison.reference),
        allowed=comparison.agree_limit,
        noise=comparison.differ_limit,
        precision=comparison.precision,
        factor=comparison.factor,
        coverage={"target": comparison.coverage[0], "reference": comparison.coverage[1]},
        patterns=[vars(pattern) for pattern in comparison.patterns],
        rows=[vars(row) for row in comparison.rows],
        alone={"target": comparison.target_unpaired, "reference": comparison.reference_unpaired},
        ambiguous=comparison.n_ambiguous,
        notes=comparison.notes,
    )


def _side(side: Norms) -> dict[str, Any]:
    return {
        "path": side.path,
        "source": side.source,
        "step": side.step,
        "norms": len(side),
        "squared": side.squared,
        "because": side.squared_reason,
        "global_norm": side.global_norm,
        "together": side.combined_norm,
        "precision": side.precision,
    }
