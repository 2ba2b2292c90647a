"""A comparison of two batches for people and for programs, for ``dumpdiff data``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ...batches import Batch, DataComparison
from ...model.arrays import AnyArray
from .sections import Block, ListBlock, TableBlock, build_document, write_stage

_SHOWN = 12  #: ids of a sample that are printed
_MOST = 8  #: samples of a side that are printed

Texts = dict[str, str]  #: "target, sample 3" -> its text


def write(
    comparison: DataComparison,
    console: Console,
    texts: Texts | None = None,
    *,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Print what was found about both sides and each of them; ``verbose``: the first ids of every sample.

    ``texts`` are decoded samples.
    """
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, texts, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: DataComparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _described(comparison.target), _described(comparison.reference)


def build_blocks(
    comparison: DataComparison, texts: Texts | None = None, *, verbose: bool = False
) -> Iterator[Block]:
    """What was found about both sides and each of them, and texts; with ``verbose`` the first ids of every sample."""
    for side, title in (("", "both"), ("target", "target"), ("reference", "reference")):
        rows = (
            (found.name, found.state, found.summary)
            for found in comparison.findings
            if found.side == side
        )
        yield TableBlock(title, ("", "what was found"), tuple(rows))
    if verbose:
        for side, batch in _sides(comparison):
            yield TableBlock(f"sample of the {side}", ("rank", "first token ids"), _samples(batch))
    for side, text in (texts or {}).items():
        yield ListBlock(f"text of the {side}", (text,))
    yield ListBlock("not looked at", comparison.missing)
    notes = (f"{side}: {note}" for side, batch in _sides(comparison) for note in batch.notes)
    yield ListBlock("notes", tuple(notes))


def _sides(comparison: DataComparison) -> tuple[tuple[str, Batch], tuple[str, Batch]]:
    return ("target", comparison.target), ("reference", comparison.reference)


def _described(batch: Batch) -> str:
    size = (
        f"{batch.n_samples} x {batch.sample_length} tokens"
        if batch.n_samples
        else "statistics only"
    )
    return f"{batch.source}: {size}, {batch.path}"


def _samples(batch: Batch) -> tuple[tuple[str, ...], ...]:
    if batch.tokens is None:
        return ()
    ranks = ["-"] * batch.n_samples if batch.ranks is None else [str(rank) for rank in batch.ranks]
    return tuple((str(i), ranks[i], _ids(row)) for i, row in enumerate(batch.tokens[:_MOST]))


def _ids(row: AnyArray) -> str:
    more = f" ... ({len(row)})" if len(row) > _SHOWN else ""
    return " ".join(map(str, row[:_SHOWN].tolist())) + more


def to_json(comparison: DataComparison, texts: Texts | None = None) -> dict[str, Any]:
    """The comparison as plain data."""
    relation = comparison.relation
    return build_document(
        comparison.to_stage(),
        target=_side(comparison.target),
        reference=_side(comparison.reference),
        findings=[asdict(finding) for finding in comparison.findings],
        relation=None if relation is None else relation.kind,
        order=None
        if relation is None or not relation.reference_samples
        else list(relation.reference_samples),
        first_difference=None
        if relation is None or relation.first_difference is None
        else list(relation.first_difference),
        texts=texts or {},
    )


def _side(batch: Batch) -> dict[str, Any]:
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
