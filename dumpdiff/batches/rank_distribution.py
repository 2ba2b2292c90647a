"""What the relation of two sides' tokens means, by where they were read and by who trains on which sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..model.arrays import Ints
from .batch import Batch
from .checks import Finding, State
from .relation import Relation, format_numbers

_SAME_MEAN = "the mean loss of the step is the same"


def judge_tokens(target: Batch, reference: Batch, relation: Relation) -> Iterator[Finding]:
    """One finding about the tokens, and one about the ranks if both sides know them.

    Dumps are compared tensor by tensor, so that each sample must stand in its place. Of a global batch that is known
    from files alone it is enough that the step has the same samples.
    """
    state: State = "agree" if relation.kind == "same" else "differ"
    said = relation.summary
    by_rank = _by_rank(target, reference, relation)
    files = "dump" not in (target.kind, reference.kind)
    if relation.kind == "order" and by_rank is not None and np.array_equal(*by_rank):
        state, said = "agree", f"the same {target.n_samples} samples, dealt out to the same ranks"
    elif relation.kind == "order" and files:
        state, said = "warning", f"{said}; {_SAME_MEAN}"
    elif relation.kind == "part":
        state, said = _part(target, reference, relation)
    elif relation.kind == "longer" and abs(target.sample_length - reference.sample_length) == 1:
        state, said = "agree", f"{said}, as where the model cuts inputs and labels out of one row"
    yield Finding("token ids", state, said)
    if by_rank is None or target.ranks is None or reference.ranks is None:
        return
    mine, theirs = _numbered(target.ranks), _numbered(reference.ranks)[list(relation.reference_samples)]
    wrong = np.flatnonzero(mine != theirs)
    if len(wrong):
        i = int(wrong[0])
        where = f"first sample {i}: rank {mine[i]} against rank {theirs[i]}"
        count = f"{len(wrong)} of {target.n_samples} samples go to another rank, {where}"
        yield Finding("ranks", "warning" if files else "differ", f"{count}; {_SAME_MEAN}")
    elif mine.any():
        yield Finding("ranks", "agree", "every sample goes to the same rank")


def _numbered(ranks: Ints) -> Ints:
    """(samples,) data-parallel ranks from 0: those of a dump are of all devices."""
    return np.unique(ranks, return_inverse=True)[1]


def _by_rank(target: Batch, reference: Batch, relation: Relation) -> tuple[Ints, Ints] | None:
    """Both sides' samples, by the reference's numbers, as the ranks get them; None if a side has no ranks."""
    if relation.kind not in ("same", "order") or target.ranks is None or reference.ranks is None:
        return None
    order = np.asarray(relation.reference_samples)
    return order[np.argsort(target.ranks, kind="stable")], np.argsort(
        reference.ranks, kind="stable"
    )


def _part(target: Batch, reference: Batch, relation: Relation) -> tuple[State, str]:
    """One side holds some samples of the other: as it should be, if a dump holds those of one rank."""
    if target.n_samples < reference.n_samples:
        few, many, numbers = target, reference, list(relation.reference_samples)
    else:
        few, many, numbers = (
            reference,
            target,
            [i for i, at in enumerate(relation.reference_samples) if at >= 0],
        )
    owners = [] if many.ranks is None else np.unique(many.ranks[numbers]).tolist()
    if len(owners) > 1:
        return "differ", f"{relation.summary}, where they go to ranks {format_numbers(owners)}"
    whole = many.ranks is not None and int((many.ranks == owners[0]).sum()) == few.n_samples
    if few.kind == "dump" and (whole or many.kind != "dump"):
        return "agree", f"{relation.summary}: those of rank {owners[0]}" if owners else relation.summary
    return "differ", relation.summary
