"""One checkpoint as a whole model: every tensor under its global name, as if nothing had ever been split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..checkpoints import Checkpoint
from ..model.arrays import AnyArray
from ..model.trace import Problem
from ..rulebook import Rules
from .families import ModelConfig
from .matrix import Matrix


@dataclass(frozen=True)
class Tensor:
    """A whole tensor: its rows as a matrix, and its shape."""

    name: str  #: with global numbers of layers and experts
    matrix: Matrix
    shape: tuple[int, ...]
    stack: AnyArray | None = None  #: the raw elements, where they lie in one piece

    @property
    def dtype(self) -> str:
        """Of its elements."""
        return self.matrix.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.matrix.size


@dataclass(frozen=True)
class WholeModel:
    """The tensors of one model, by name."""

    checkpoint: Checkpoint
    family: str
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    problems: tuple[Problem, ...]
    rules: Rules
    notes: tuple[str, ...] = ()  #: how its tensors were read, where not as they are stored

    @cached_property
    def canonical(self) -> Mapping[str, str]:
        """Canonical name -> own name, of the parameters that have one that no other has; optimizer states have none."""
        return {path: name for name, path in self.rules.resolve_parameters(self.tensors).items()}

    def canonical_of(self, name: str) -> str:
        """The canonical name, or the name itself where no rule knows it."""
        return self.rules.resolve_parameter(name) or name

    @cached_property
    def hidden(self) -> int:
        """Width of the model: of its embedding, or as the settings say; 0 if unknown."""
        for path in ("embedding.weight", "head.weight"):
            if path in self.canonical:
                return self.tensors[self.canonical[path]].shape[-1]
        return self.config.hidden or 0

    def release(self) -> None:
        """Give back the memory of what was read."""
        self.checkpoint.release()


def make_unsplit_tensor(name: str, dtype: str, raw: AnyArray) -> Tensor:
    """A tensor that was never split."""
    return Tensor(name, Matrix.from_array(raw, dtype), raw.shape, raw)


def are_identical(arrays: list[AnyArray]) -> bool:
    """Whether raw arrays are all the same, bit for bit."""
    return all(a.shape == arrays[0].shape and np.array_equal(a, arrays[0]) for a in arrays[1:])
