"""Findings about the token ids of two batches, and about the ranks that train on the samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..model.arrays import Ints
from .batch import Batch
from .checks import Finding, State
from .relation import Relation, format_numbers

_SAME_LOSS = "the mean loss of the step is the same"


def judge_tokens(target: Batch, reference: Batch, relation: Relation) -> Iterator[Finding]:
    """Yield a finding about the tokens, and one about the ranks if both sides know them.

    Dumps are compared tensor by tensor, so each sample must have the same position. For global
    batches from files it is enough that the step has the same samples.
    """
    yield _judge_relation(target, reference, relation)
    yield from _judge_ranks(target, reference, relation)


def _judge_relation(target: Batch, reference: Batch, relation: Relation) -> Finding:
    state: State = "agree" if relation.kind == "identical" else "differ"
    summary = relation.summary
    if relation.kind == "reordered":
        if _has_same_distribution(target, reference, relation):
            state = "agree"
            summary = f"the same {target.n_samples} samples, distributed to the same ranks"
        elif _are_files(target, reference):
            state, summary = "warning", f"{summary}; {_SAME_LOSS}"
    elif relation.kind == "subset":
        state, summary = _judge_part(target, reference, relation)
    elif relation.kind == "longer" and abs(target.sample_length - reference.sample_length) == 1:
        state = "agree"
        summary += ", as if the model cuts inputs and labels from one row"
    return Finding("token ids", state, summary)


def _judge_ranks(target: Batch, reference: Batch, relation: Relation) -> Iterator[Finding]:
    """Yield a finding about the rank of each sample, if both sides know it."""
    if relation.kind not in ("identical", "reordered"):
        return
    if target.ranks is None or reference.ranks is None:
        return
    n_samples = len(relation.reference_samples)
    target_ranks = _renumber_ranks(target.ranks, n_samples)
    reference_ranks = _renumber_ranks(reference.ranks, n_samples)[list(relation.reference_samples)]
    differing_samples = np.flatnonzero(target_ranks != reference_ranks)
    if len(differing_samples):
        first = int(differing_samples[0])
        summary = (
            f"{len(differing_samples)} of {n_samples} samples go to a different rank, first"
            f" sample {first}: rank {target_ranks[first]} against rank {reference_ranks[first]};"
            f" {_SAME_LOSS}"
        )
        yield Finding("ranks", "warning" if _are_files(target, reference) else "differ", summary)
    elif target_ranks.any():
        yield Finding("ranks", "agree", "every sample goes to the same rank")


def _are_files(target: Batch, reference: Batch) -> bool:
    """Whether both batches are global batches from files."""
    return "dump" not in (target.kind, reference.kind)


def _renumber_ranks(ranks: Ints, n_samples: int) -> Ints:
    """Return (samples,) data-parallel ranks from 0; the ranks of a dump number all devices.

    All samples of a batch that is one flat row go to the rank of this row.
    """
    data_ranks = np.unique(ranks, return_inverse=True)[1]
    if len(data_ranks) == 1:
        return np.repeat(data_ranks, n_samples)
    return data_ranks


def _has_same_distribution(target: Batch, reference: Batch, relation: Relation) -> bool:
    """Whether the ranks of both sides, one after another, get the same samples."""
    if target.ranks is None or reference.ranks is None:
        return False
    reference_samples = np.asarray(relation.reference_samples)
    target_order = reference_samples[np.argsort(target.ranks, kind="stable")]
    return np.array_equal(target_order, np.argsort(reference.ranks, kind="stable"))


def _judge_part(target: Batch, reference: Batch, relation: Relation) -> tuple[State, str]:
    """Judge a side that holds some samples of the other: correct for the dump of one rank."""
    numbers = [number for number in relation.reference_samples if number >= 0]
    part, full = target, reference
    if target.n_samples >= reference.n_samples:
        part, full = reference, target
        numbers = relation.find_shared_samples()
    if full.ranks is None:
        is_dump_of_file = part.kind == "dump" and full.kind != "dump"
        return ("agree" if is_dump_of_file else "differ"), relation.summary
    part_ranks = np.unique(full.ranks[numbers]).tolist()
    if len(part_ranks) > 1:
        summary = f"{relation.summary}, where they go to ranks {format_numbers(part_ranks)}"
        return "differ", summary
    is_full_rank = int((full.ranks == part_ranks[0]).sum()) == part.n_samples
    if part.kind == "dump" and (is_full_rank or full.kind != "dump"):
        return "agree", f"{relation.summary}: those of rank {part_ranks[0]}"
    return "differ", relation.summary
