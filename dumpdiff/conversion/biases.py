"""Biases of linear layers: those that a target wants and the source has not, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..checkpoints.elements import RAW_DTYPES, decode
from ..model.errors import DumpError
from ..weight_comparison.matrix import Matrix
from .rows import Rows

_LINEAR = frozenset({"q", "k", "v", "out", "gate_proj", "up_proj", "gate_up_proj", "down_proj"})


def add_zero_biases(parameters: Mapping[str, Rows]) -> dict[str, Rows]:
    """Every linear layer of attention and MLP with a bias, of zeros where it has none."""
    made = dict(parameters)
    for path, rows in parameters.items():
        stem, _, leaf = path.rpartition(".")
        if leaf == "weight" and stem.split(".")[-1] in _LINEAR and f"{stem}.bias" not in made:
            nothing = Matrix.from_array(np.zeros(1, RAW_DTYPES[rows.dtype]), rows.dtype)
            made[f"{stem}.bias"] = Rows(nothing, np.full(rows.shape[0], -1), vector=True)
    return made


def drop_zero_biases(parameters: Mapping[str, Rows]) -> dict[str, Rows]:
    """No linear layer with a bias. Raises DumpError if one is not of zeros: it cannot be left out."""
    made = {}
    for path, rows in parameters.items():
        stem, _, leaf = path.rpartition(".")
        if leaf != "bias" or stem.split(".")[-1] not in _LINEAR:
            made[path] = rows
        elif any(decode(chunk, rows.dtype).any() for chunk in rows.read_chunks()):
            raise DumpError(f"--no-bias: {path} is not zero, so that the model needs it")
    return made
