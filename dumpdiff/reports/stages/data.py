"""A comparison of two batches in a terminal and as JSON, for ``dumpdiff data``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ...batches import Batch, DataComparison, Finding
from ...model.arrays import AnyArray
from ..formats.blocks import Block, ListBlock, TableBlock
from .stage import build_document, write_stage

_MAX_IDS = 12  #: ids of a sample that are printed
_MAX_SAMPLES = 8  #: samples of a side that are printed


def write(
    comparison: DataComparison,
    console: Console,
    *,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Print the findings about both sides and about each one.

    With ``verbose``, also the first ids of every sample.
    """
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: DataComparison) -> tuple[str, str]:
    """Describe target and reference, one line each."""
    return _format_batch(comparison.target), _format_batch(comparison.reference)


def build_blocks(comparison: DataComparison, *, verbose: bool = False) -> Iterator[Block]:
    """Yield findings, texts and notes; with ``verbose`` also the first ids of every sample."""
    for side, title in (("", "both"), ("target", "target"), ("reference", "reference")):
        findings = [finding for finding in comparison.findings if finding.side == side]
        rows = tuple((finding.name, finding.state, finding.summary) for finding in findings)
        yield TableBlock(title, ("", "what was found"), rows)
    batches = (("target", comparison.target), ("reference", comparison.reference))
    if verbose:
        for side, batch in batches:
            samples = tuple(_list_samples(batch))
            yield TableBlock(f"sample of the {side}", ("rank", "first token ids"), samples)
    for sample, text in comparison.texts.items():
        yield ListBlock(f"text of the {sample}", (text,))
    yield ListBlock("not compared", comparison.missing)
    notes: list[str] = []
    for side, batch in batches:
        notes += [f"{side}: {note}" for note in batch.notes]
    yield ListBlock("notes", tuple(notes))


def _format_batch(batch: Batch) -> str:
    size = "statistics only"
    if batch.n_samples:
        size = f"{batch.n_samples} x {batch.sample_length} tokens"
    return f"{batch.source}: {size}, {batch.path}"


def _list_samples(batch: Batch) -> Iterator[tuple[str, ...]]:
    """Yield (number, rank, first token ids) of the first samples."""
    if batch.tokens is None:
        return
    for index, row in enumerate(batch.tokens[:_MAX_SAMPLES]):
        rank = "-" if batch.ranks is None else str(batch.ranks[index])
        yield str(index), rank, _format_ids(row)


def _format_ids(row: AnyArray) -> str:
    ids = " ".join(map(str, row[:_MAX_IDS].tolist()))
    return f"{ids} ... ({len(row)})" if len(row) > _MAX_IDS else ids


def to_json(comparison: DataComparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    relation = comparison.relation
    reference_samples = first_difference = None
    if relation is not None:
        reference_samples = list(relation.reference_samples) or None
        if relation.first_difference is not None:
            first_difference = list(relation.first_difference)
    return build_document(
        comparison.to_stage(),
        target=_convert_batch(comparison.target),
        reference=_convert_batch(comparison.reference),
        findings=[_convert_finding(finding) for finding in comparison.findings],
        relation=None if relation is None else relation.kind,
        reference_samples=reference_samples,
        first_difference=first_difference,
        texts=comparison.texts,
    )


def _convert_finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "state": finding.state,
        "summary": finding.summary,
        "side": finding.side,
    }


def _convert_batch(batch: Batch) -> dict[str, Any]:
    return {
        "path": batch.path,
        "kind": batch.kind,
        "source": batch.source,
        "samples": batch.n_samples,
        "length": batch.sample_length,
        "fields": [*batch.arrays, *batch.statistics],
        "ranks": None if batch.ranks is None else batch.ranks.tolist(),
        "vocabulary": batch.vocabulary,
        "notes": batch.notes,
    }
