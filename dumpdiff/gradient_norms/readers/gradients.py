"""Norms of saved gradients: a folder of ``.npy``, an archive, a checkpoint of gradients; read a piece at a time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import checkpoints
from ...model.dtypes import is_floating
from ...model.errors import DumpError
from ...optimizers.inputs import clean
from ...rulebook import Rules
from ...weight_comparison.groups import is_state
from ...weight_comparison.matrix import Matrix
from ...weight_comparison.shards import side_of
from ..side import Norms, norms_of

_NUMBERED = re.compile(r"gradients[_-]?(\d+)(\.\w+)?")


def numbered(folder: Path) -> dict[int, Path]:
    """``gradients_N`` of a folder, by number; empty if it has none."""
    found = {
        int(match[1]): place
        for place in folder.iterdir()
        if (match := _NUMBERED.fullmatch(place.name))
    }
    return dict(sorted(found.items()))


def read(path: str, step: int | None, rules: Rules) -> Norms:
    """The norms of every tensor of a checkpoint of gradients. Raises DumpError if it cannot be read."""
    place, at = Path(path), None
    steps = numbered(place) if place.is_dir() else {}
    if steps:
        at = min(steps) if step is None else step
        if at not in steps:
            raise DumpError(
                f"{path}: has no gradients_{at}; it has steps {', '.join(map(str, list(steps)[:12]))}"
            )
        place = steps[at]
    side = side_of(checkpoints.open(place), rules)
    names, values, sizes, vectors = [], [], [], []
    for name, tensor in side.tensors.items():
        if is_floating(tensor.dtype) and not is_state(rules.parameter(name) or name, tensor):
            names.append(clean(name))
            values.append(_norm(tensor.matrix))
            sizes.append(tensor.size)
            vectors.append(int(len(tensor.shape) < 2))
            side.release()
    if not names:
        raise DumpError(
            f"{place}: holds no floating-point tensors; expected the gradient of every parameter"
        )
    norms = norms_of(
        path,
        f"saved gradients ({side.checkpoint.format})",
        tuple(names),
        np.array(values),
        sizes=np.array(sizes),
        vectors=np.array(vectors),
        squared=False,
        because="norms of the gradients themselves",
    )
    return replace(norms, step=at, problems=side.problems)


def _norm(matrix: Matrix) -> float:
    """The L2 norm, summed in float64, some rows at a time."""
    square = 0.0
    for start in range(0, matrix.shape[0], matrix.chunk):
        values = matrix.values(slice(start, start + matrix.chunk))
        square += float(np.vdot(values, values))
    return float(np.sqrt(square))
