"""Parameters that only one side has: tied heads, biases of zeros, and what is really missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.arrays import Floats
from .distance import measure_distance
from .groups import Member
from .matrix import Matrix
from .result import Mistake, Pair
from .whole_model import WholeModel

_HEAD, _EMBEDDING = "head.weight", "embedding.weight"


@dataclass(frozen=True)
class UnpairedParameters:
    """What became of the parameters that have no partner."""

    pairs: tuple[
        Pair, ...
    ]  #: a head, compared with the embedding that stands for it on the other side
    missing: tuple[str, ...]  #: of the reference, not in the target
    unknown: tuple[str, ...]  #: of the target, not in the reference
    notes: tuple[str, ...]
    accounted: int  #: elements that are explained without being compared


def explain_unpaired(
    sides: tuple[WholeModel, WholeModel], target: Sequence[Member], reference: Sequence[Member]
) -> UnpairedParameters:
    """What the members without a partner are."""
    pairs: list[Pair] = []
    notes: list[str] = []
    absent: tuple[list[str], list[str]] = [], []
    accounted = 0
    for one, members in ((0, target), (1, reference)):
        for member in members:
            if member.path == _HEAD and (pair := _head(sides, one, member)) is not None:
                pairs.append(pair)
                if pair.mistake is None:
                    notes.append(
                        f"the head of the {('target', 'reference')[one]} is its embedding; the other side has none"
                    )
            elif member.path.endswith(".bias") and not _values(member.matrix).any():
                accounted += member.matrix.size
                notes.append(
                    f"{member.label}: zeros, and the {('reference', 'target')[one]} has no such bias"
                )
            else:
                absent[one].append(member.label)
    return UnpairedParameters(tuple(pairs), tuple(absent[1]), tuple(absent[0]), tuple(notes), accounted)


def _values(matrix: Matrix) -> Floats:
    return matrix.read_values(slice(0, matrix.shape[0]))


def _head(sides: tuple[WholeModel, WholeModel], one: int, member: Member) -> Pair | None:
    """A head that one side alone has: the other takes its embedding in its place. None if it has none either."""
    other = sides[1 - one]
    name = other.canonical.get(_EMBEDDING)
    if name is None:
        return None
    embedding = other.tensors[name].matrix
    rows = min(member.matrix.shape[0], embedding.shape[0])
    if member.matrix.shape[1] != embedding.shape[1]:
        return None
    mine, theirs = member.matrix.slice_rows(0, rows), embedding.slice_rows(0, rows)
    found = measure_distance(*((mine, theirs) if one == 0 else (theirs, mine)))
    names = (member.label, name) if one == 0 else (name, member.label)
    mistake = None
    if len(found.wrong_rows):
        role = ("target", "reference")[one]
        mistake = Mistake(
            "tied-head",
            f"the {role} has a head of its own, where the other side uses its embedding",
        )
    return Pair(
        path=_HEAD,
        target=names[0],
        reference=names[1],
        evidence="rule",
        shape=mine.shape,
        dtypes=(mine.dtype, theirs.dtype) if one == 0 else (theirs.dtype, mine.dtype),
        relation=found.classify(),
        error=found.relative,
        unequal=int(found.unequal.sum()),
        elements=mine.size,
        mistake=mistake,
    )
