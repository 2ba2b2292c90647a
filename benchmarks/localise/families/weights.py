"""Weights of a family: float32 arrays, drawn in the order in which they are added."""

from __future__ import annotations

import numpy as np


class Weights(dict[str, np.ndarray]):
    """Weights by canonical name.

    Norm weights are near one but not equal to it: tensors of ones are no evidence for a pair.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def add_matrix(self, name: str, *shape: int) -> None:
        """Add a weight of a linear layer (out, in) or a convolution (out, in, height, width)."""
        fan_in = int(np.prod(shape[1:]))
        values = self.rng.standard_normal(shape) / np.sqrt(fan_in)
        self[f"{name}.weight"] = values.astype(np.float32)

    def add_linear(self, name: str, *shape: int) -> None:
        """Add a weight and a bias."""
        self.add_matrix(name, *shape)
        self.add_bias(name, shape[0])

    def add_bias(self, name: str, length: int) -> None:
        """Add a bias."""
        self[f"{name}.bias"] = (0.1 * self.rng.standard_normal(length)).astype(np.float32)

    def add_norm(self, name: str, length: int, *, has_bias: bool = True) -> None:
        """Add the weight of a norm, and its bias."""
        values = 1 + 0.1 * self.rng.standard_normal(length)
        self[f"{name}.weight"] = values.astype(np.float32)
        if has_bias:
            self.add_bias(name, length)

    def add_table(self, name: str, *shape: int, deviation: float = 1.0) -> None:
        """Add a table of embeddings."""
        values = deviation * self.rng.standard_normal(shape)
        self[f"{name}.weight"] = values.astype(np.float32)
