"""One checkpoint as a whole model: every tensor under its global name, with its shards joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..checkpoints import Checkpoint
from ..model.arrays import AnyArray
from ..model.trace import Problem
from ..rulebook import Rules
from .families import ModelConfig, Naming
from .matrix import Matrix


@dataclass(frozen=True)
class Tensor:
    """A whole tensor: its rows as a matrix, and its shape."""

    name: str  #: with global numbers of layers and experts
    matrix: Matrix
    shape: tuple[int, ...]
    #: The raw elements, if the tensor was not split; those of equal slices along its first axis.
    stack: tuple[AnyArray, ...] = ()

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return self.matrix.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.matrix.size


@dataclass(frozen=True)
class WholeModel:
    """The tensors of one model, by name."""

    checkpoint: Checkpoint
    naming: Naming
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    problems: tuple[Problem, ...]
    rules: Rules
    notes: tuple[str, ...] = ()  #: how tensors were read, if not as they are stored

    @cached_property
    def canonical(self) -> Mapping[str, str]:
        """Canonical name -> own name, of the parameters whose canonical name is unique."""
        return {path: name for name, path in self.rules.resolve_parameters(self.tensors).items()}

    def resolve_name(self, name: str) -> str:
        """Return the canonical name, or the name itself if no rule matches."""
        return self.rules.resolve_parameter(name) or name

    @cached_property
    def hidden(self) -> int:
        """Width of the model: of its embedding, or from the settings; 0 if unknown."""
        name = self.canonical.get("embedding.weight") or self.canonical.get("head.weight")
        if name is not None:
            return self.tensors[name].shape[-1]
        return self.config.hidden or 0

    def release(self) -> None:
        """Release the memory of what was read."""
        self.checkpoint.release()


def make_unsplit_tensor(name: str, dtype: str, raw: AnyArray) -> Tensor:
    """Return a tensor that was not split."""
    return Tensor(name, Matrix.from_array(raw, dtype), raw.shape, (raw,))


def are_identical(arrays: Sequence[AnyArray]) -> bool:
    """Whether raw arrays are equal bit for bit."""
    first = arrays[0]
    return all(array.shape == first.shape and np.array_equal(array, first) for array in arrays[1:])
