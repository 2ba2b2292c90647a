"""The experts of a layer in one weight, split over tensor and expert parallelism, one by one again.

Megatron-core's GroupedMLP (megatron/core/transformer/moe/experts.py) declares ``weight1`` as [H, E * 2I / TP] and
``weight2`` as [E * I / TP, H], E experts of the rank, and reads their bytes as [E, H, 2I / TP] (of each rank its share
of the gate, then of the up projection) and [E, I / TP, H]: what looks like one matrix cannot be joined as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from ..model.arrays import AnyArray
from .matrix import Matrix, stack_rows, stack_columns
from .whole_model import Tensor

_WEIGHT = re.compile(r"^(.*\.experts)\.weight([12])$")

Place = tuple[int, int]  #: expert-parallel and tensor-parallel rank


def is_grouped_weight(name: str) -> bool:
    """Whether a name is that of one of the two weights of GroupedMLP."""
    return _WEIGHT.match(name) is not None


def get_sibling_name(name: str) -> str:
    """The name of the other of the two."""
    return name[:-1] + ("2" if name.endswith("1") else "1")


def split_experts(
    name: str, dtype: str, raws: Mapping[Place, AnyArray], widths: tuple[int, int], experts: int
) -> Iterator[Tensor] | None:
    """The experts of a layer, named as Megatron-core's own single ones; None if the shapes do not fit.

    ``raws`` has what each rank holds of ``name``, ``widths`` are the columns of weight1 and the rows of weight2 of any
    rank, ``experts`` those of the whole layer.
    """
    matched = _WEIGHT.match(name)
    ranks, shards = (1 + max(place[axis] for place in raws) for axis in (0, 1))
    shapes = {raw.shape for raw in raws.values()}
    if matched is None or experts % ranks or len(raws) != ranks * shards or len(shapes) > 1:
        return None
    local = experts // ranks
    shape = shapes.pop()
    if len(shape) != 2 or shape[int(matched[2]) % 2] % local:
        return None
    first = matched[2] == "1"
    parts = 2 if first and widths[0] == 2 * widths[1] else 1  # gate and up
    hidden = shape[0] if first else shape[1]

    def expert(number: int) -> Matrix:
        rank, own = divmod(number, local)
        kept = [raws[rank, shard].reshape(local, hidden if first else -1, shape[1] // local if first else hidden)[own].T
                for shard in range(shards)]  # fmt: skip
        if first:  # [2I / TP, H] of each rank
            return stack_rows(
                [
                    Matrix.from_array(half, dtype)
                    for part in range(parts)
                    for half in _part(kept, part, parts)
                ]
            )
        return stack_columns([Matrix.from_array(share, dtype) for share in kept])

    stem = f"{matched[1]}.local_experts.{{}}.linear_fc{matched[2]}.weight"
    made = ((stem.format(number), expert(number)) for number in range(experts))
    return (Tensor(name, matrix, matrix.shape) for name, matrix in made)


def _part(shares: list[AnyArray], part: int, parts: int) -> list[AnyArray]:
    """The gate, or the up projection, of every rank's share."""
    return [np.split(share, parts)[part] for share in shares]
