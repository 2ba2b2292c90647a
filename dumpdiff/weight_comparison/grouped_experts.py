"""Split the grouped, sharded experts of a layer into single experts.

GroupedMLP of Megatron-core (megatron/core/transformer/moe/experts.py) declares ``weight1`` as [H, E
* 2I / TP] and ``weight2`` as [E * I / TP, H], with the E experts of the rank, but reads their bytes
as [E, H, 2I / TP] (for each rank its share of the gate, then of the up projection) and [E, I / TP,
H]. Therefore the shards cannot be joined as one matrix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ..model.arrays import AnyArray
from .matrix import Matrix, concatenate_columns, concatenate_rows
from .whole_model import Tensor

_WEIGHT = re.compile(r"^(.*\.experts)\.weight([12])$")

Place = tuple[int, int]  #: expert-parallel and tensor-parallel rank


def is_grouped_weight(name: str) -> bool:
    """Whether a name is that of one of the two weights of GroupedMLP."""
    return _WEIGHT.match(name) is not None


def get_sibling_name(name: str) -> str:
    """Return the name of the other one of the two weights."""
    return name[:-1] + ("2" if name.endswith("1") else "1")


def split_experts(
    name: str, dtype: str, raws: Mapping[Place, AnyArray], widths: tuple[int, int], n_experts: int
) -> list[Tensor] | None:
    """Return the experts of a layer, named as single experts of Megatron-core.

    ``raws`` holds the array of each rank for ``name``. ``widths`` are the columns of weight1 and
    the rows of weight2 of any rank, ``n_experts`` the experts of the whole layer. Returns None if
    shapes do not fit.
    """
    match = _WEIGHT.match(name)
    n_expert_ranks = 1 + max(expert_rank for expert_rank, _ in raws)
    n_tensor_ranks = 1 + max(tensor_rank for _, tensor_rank in raws)
    shapes = {raw.shape for raw in raws.values()}
    is_complete = len(raws) == n_expert_ranks * n_tensor_ranks
    if match is None or not is_complete or len(shapes) > 1 or n_experts % n_expert_ranks:
        return None
    n_local = n_experts // n_expert_ranks
    shape = shapes.pop()
    is_first = match[2] == "1"
    if len(shape) != 2 or shape[1 if is_first else 0] % n_local:
        return None
    has_gate = widths[0] == 2 * widths[1]
    if is_first:
        local_shape = (n_local, shape[0], shape[1] // n_local)
    else:
        local_shape = (n_local, shape[0] // n_local, shape[1])
    experts = []
    for number in range(n_experts):
        rank, local_number = divmod(number, n_local)
        shares = [
            raws[rank, shard].reshape(local_shape)[local_number].T
            for shard in range(n_tensor_ranks)
        ]
        if is_first:
            matrix = _join_first(shares, dtype, has_gate)
        else:
            matrix = concatenate_columns([Matrix.from_array(share, dtype) for share in shares])
        expert_name = f"{match[1]}.local_experts.{number}.linear_fc{match[2]}.weight"
        experts.append(Tensor(expert_name, matrix, matrix.shape))
    return experts


def _join_first(shares: list[AnyArray], dtype: str, has_gate: bool) -> Matrix:
    """Join [2I / TP, H] shares: the gates of all ranks, then the up projections."""
    n_parts = 2 if has_gate else 1
    split_shares = [np.split(share, n_parts) for share in shares]
    matrices = []
    for part in range(n_parts):
        matrices += [Matrix.from_array(parts[part], dtype) for parts in split_shares]
    return concatenate_rows(matrices)
