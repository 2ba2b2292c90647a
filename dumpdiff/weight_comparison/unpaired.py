"""Explain the parameters that only one side has: tied heads, biases of zeros, and missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .distance import measure_distance
from .drift import measure_drift
from .groups import Member, get_layer_path
from .parameter_rows import ParameterRows
from .result import Mistake, Pair
from .whole_model import WholeModel

_HEAD, _EMBEDDING = "head.weight", "embedding.weight"
_SIDE_NAMES = ("target", "reference")


@dataclass(frozen=True)
class UnpairedParameters:
    """The parameters that have no counterpart, explained."""

    #: A head, compared with the embedding that the other side uses as its head.
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]  #: of the reference, not in the target
    unknown: tuple[str, ...]  #: of the target, not in the reference
    notes: tuple[str, ...]
    explained_elements: int  #: elements that are explained without a comparison


def explain_unpaired(
    models: tuple[WholeModel, WholeModel], target: Sequence[Member], reference: Sequence[Member]
) -> UnpairedParameters:
    """Explain the members of target and reference that have no counterpart."""
    pairs: list[Pair] = []
    notes: list[str] = []
    absent: tuple[list[str], list[str]] = [], []
    explained_elements = 0
    for side, members in ((0, target), (1, reference)):
        for member in members:
            head_pair = None
            if member.path == _HEAD:
                head_pair = _compare_head(models, side, member)
            if head_pair is not None:
                pairs.append(head_pair)
                if head_pair.mistake is None:
                    notes.append(
                        f"the head of the {_SIDE_NAMES[side]} is its embedding; the other side has"
                        " none"
                    )
            elif (original := _find_original(models[side], member, members)) is not None:
                explained_elements += member.matrix.size
                notes.append(f"{member.label}: a copy of {original}, which is compared")
            elif member.path.endswith(".bias") and _is_zero(member):
                explained_elements += member.matrix.size
                other_side = _SIDE_NAMES[1 - side]
                notes.append(f"{member.label}: zeros, and the {other_side} has no such bias")
            else:
                absent[side].append(member.label)
    return UnpairedParameters(
        pairs=tuple(pairs),
        missing=tuple(absent[1]),
        unknown=tuple(absent[0]),
        notes=tuple(notes),
        explained_elements=explained_elements,
    )


def _is_zero(member: Member) -> bool:
    return not member.matrix.read_values(slice(0, member.matrix.shape[0])).any()


def _find_original(model: WholeModel, copy: Member, unpaired: Sequence[Member]) -> str | None:
    """Return the paired tensor of the same side that a member outside of layers is a copy of.

    Encoder and decoder share an embedding, and some files have it under each of its names.
    """
    if get_layer_path(copy.path):
        return None
    unpaired_names = {member.name for member in unpaired}
    for name, tensor in model.tensors.items():
        matrix = tensor.matrix
        has_type = matrix.shape == copy.matrix.shape and matrix.dtype == copy.matrix.dtype
        if not has_type or min(matrix.shape) < 2 or name in unpaired_names:
            continue
        if measure_distance(copy.matrix, matrix).classify() == "identical":
            return name
    return None


def _compare_head(models: tuple[WholeModel, WholeModel], side: int, head: Member) -> Pair | None:
    """Compare the head of one side with the embedding of the other side, which has no head.

    Returns None if there is no embedding of that width.
    """
    other = models[1 - side]
    name = other.canonical.get(_EMBEDDING)
    if name is None:
        return None
    embedding = other.tensors[name].matrix
    if head.matrix.shape[1] != embedding.shape[1]:
        return None
    n_rows = min(head.matrix.shape[0], embedding.shape[0])
    matrices = [head.matrix.slice_rows(0, n_rows), embedding.slice_rows(0, n_rows)]
    names = [head.label, name]
    if side == 1:
        matrices.reverse()
        names.reverse()
    target, reference = matrices
    distance = measure_distance(target, reference)
    relation = distance.classify()
    rows = np.arange(n_rows)
    parameter = ParameterRows(_HEAD, names[0], names[1], target, reference, rows, rows)
    mistake = None
    if not parameter.allows(relation):
        message = (
            f"the {_SIDE_NAMES[side]} has a separate head, but the other side uses its embedding"
        )
        if not len(distance.wrong_rows):
            message += f": {measure_drift(parameter).describe()}"
        mistake, relation = Mistake("tied-head", message), "different"
    return Pair(
        path=_HEAD,
        target=names[0],
        reference=names[1],
        evidence="rule",
        shape=target.shape,
        dtypes=(target.dtype, reference.dtype),
        relation=relation,
        error=distance.relative,
        differing_elements=int(distance.unequal.sum()),
        elements=target.size,
        mistake=mistake,
    )
