"""What the relation of two sides' tokens means, by where they were read and by who trains on which sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..model.arrays import Ints
from .batch import Batch
from .checks import Finding, State
from .relation import Relation, spoken

_SAME_MEAN = "the mean loss of the step is the same"


def judged(target: Batch, reference: Batch, relation: Relation) -> Iterator[Finding]:
    """One finding about the tokens, and one about the ranks if both sides know them.

    Dumps are compared tensor by tensor, so that each sample must stand in its place. Of a global batch that is known
    from files alone it is enough that the step has the same samples.
    """
    state: State = "holds" if relation.kind == "same" else "differs"
    said = relation.said
    by_rank = _by_rank(target, reference, relation)
    files = "dump" not in (target.kind, reference.kind)
    if relation.kind == "order" and by_rank is not None and np.array_equal(*by_rank):
        state, said = "holds", f"the same {target.samples} samples, dealt out to the same ranks"
    elif relation.kind == "order" and files:
        state, said = "warns", f"{said}; {_SAME_MEAN}"
    elif relation.kind == "part":
        state, said = _part(target, reference, relation)
    elif relation.kind == "longer" and abs(target.length - reference.length) == 1:
        state, said = "holds", f"{said}, as where the model cuts inputs and labels out of one row"
    yield Finding("token ids", state, said)
    if by_rank is None or target.ranks is None or reference.ranks is None:
        return
    mine, theirs = _numbered(target.ranks), _numbered(reference.ranks)[list(relation.order)]
    wrong = np.flatnonzero(mine != theirs)
    if len(wrong):
        i = int(wrong[0])
        where = f"first sample {i}: rank {mine[i]} against rank {theirs[i]}"
        count = f"{len(wrong)} of {target.samples} samples go to another rank, {where}"
        yield Finding("ranks", "warns" if files else "differs", f"{count}; {_SAME_MEAN}")
    elif mine.any():
        yield Finding("ranks", "holds", "every sample goes to the same rank")


def _numbered(ranks: Ints) -> Ints:
    """(samples,) data-parallel ranks from 0: those of a dump are of all devices."""
    return np.unique(ranks, return_inverse=True)[1]


def _by_rank(target: Batch, reference: Batch, relation: Relation) -> tuple[Ints, Ints] | None:
    """Both sides' samples, by the reference's numbers, as the ranks get them; None if a side has no ranks."""
    if relation.kind not in ("same", "order") or target.ranks is None or reference.ranks is None:
        return None
    order = np.asarray(relation.order)
    return order[np.argsort(target.ranks, kind="stable")], np.argsort(
        reference.ranks, kind="stable"
    )


def _part(target: Batch, reference: Batch, relation: Relation) -> tuple[State, str]:
    """One side holds some samples of the other: as it should be, if a dump holds those of one rank."""
    if target.samples < reference.samples:
        few, many, numbers = target, reference, list(relation.order)
    else:
        few, many, numbers = (
            reference,
            target,
            [i for i, at in enumerate(relation.order) if at >= 0],
        )
    owners = [] if many.ranks is None else np.unique(many.ranks[numbers]).tolist()
    if len(owners) > 1:
        return "differs", f"{relation.said}, where they go to ranks {spoken(owners)}"
    whole = many.ranks is not None and int((many.ranks == owners[0]).sum()) == few.samples
    if few.kind == "dump" and (whole or many.kind != "dump"):
        return "holds", f"{relation.said}: those of rank {owners[0]}" if owners else relation.said
    return "differs", relation.said
