"""Norms of saved gradients: a folder of ``.npy`` files, an archive, or a checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import checkpoints
from ...model.dtypes import is_floating
from ...model.errors import DumpError
from ...optimizers.inputs import strip_wrappers
from ...rulebook import Rules
from ...weight_comparison.groups import is_state
from ...weight_comparison.matrix import Matrix
from ...weight_comparison.shards import join_shards
from ..norms import Norms, build_norms

_STEP_NAME = re.compile(r"gradients[_-]?(\d+)(\.\w+)?")
#: Steps that are listed in a message, at most.
_MAX_LISTED_STEPS = 12


def find_steps(folder: Path) -> dict[int, Path]:
    """Map steps to the files or folders ``gradients_STEP`` in a folder; empty if there are none."""
    locations = {}
    for location in folder.iterdir():
        match = _STEP_NAME.fullmatch(location.name)
        if match is not None:
            locations[int(match[1])] = location
    return dict(sorted(locations.items()))


def read_gradients(path: str, step: int | None, rules: Rules) -> Norms:
    """Compute the norm of every gradient of a checkpoint, reading some rows at a time.

    Raises DumpError if it cannot be read.
    """
    location, step = _select_step(path, step)
    model = join_shards(checkpoints.open(location), rules)
    names, values, sizes, vector_flags = [], [], [], []
    for name, tensor in model.tensors.items():
        if not is_floating(tensor.dtype) or is_state(rules.resolve_parameter(name) or name, tensor):
            continue
        names.append(strip_wrappers(name))
        values.append(_compute_norm(tensor.matrix))
        sizes.append(tensor.size)
        vector_flags.append(int(len(tensor.shape) < 2))
        model.release()
    if not names:
        raise DumpError(
            f"{location}: holds no floating-point tensors; expected the gradient of every parameter"
        )
    norms = build_norms(
        path,
        f"saved gradients ({model.checkpoint.format})",
        tuple(names),
        np.array(values),
        sizes=np.array(sizes),
        vector_flags=np.array(vector_flags),
        squared=False,
        squared_reason="norms of the gradients themselves",
    )
    return replace(norms, step=step, problems=model.problems)


def _select_step(path: str, step: int | None) -> tuple[Path, int | None]:
    """Return the location of the gradients of a step, and its number if it is known."""
    location = Path(path)
    locations = find_steps(location) if location.is_dir() else {}
    if not locations:
        return location, None
    step = min(locations) if step is None else step
    if step not in locations:
        steps = ", ".join(map(str, list(locations)[:_MAX_LISTED_STEPS]))
        raise DumpError(f"{path}: has no gradients_{step}; it has steps {steps}")
    return locations[step], step


def _compute_norm(matrix: Matrix) -> float:
    """Return the L2 norm, summed in float64, some rows at a time."""
    square = 0.0
    for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
        values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
        square += float(np.vdot(values, values))
    return float(np.sqrt(square))
