"""A run of SGD, saved as ``dumpdiff optimizer`` reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SHAPES = {"layers.0.weight": (24, 16), "layers.0.bias": (24,)}


def save_sgd_run(
    folder: Path,
    *,
    rate: float = 0.1,
    momentum: float = 0.0,
    steps: int = 2,
    with_other_gradients: bool = False,
) -> Path:
    """Save steps of SGD in float32, optionally with other gradients than were used."""
    generator = np.random.default_rng(0)
    folder.mkdir()

    def draw_tensors() -> dict[str, np.ndarray]:
        return {
            name: generator.standard_normal(shape).astype(np.float32)
            for name, shape in SHAPES.items()
        }

    weights = draw_tensors()
    buffer = {name: np.float32(0) for name in SHAPES}
    np.savez(folder / "weights_0.npz", **weights)
    for step in range(1, steps + 1):
        gradients = draw_tensors()
        buffer = {name: np.float32(momentum) * buffer[name] + gradients[name] for name in SHAPES}
        weights = {name: weights[name] - np.float32(rate) * buffer[name] for name in SHAPES}
        saved_gradients = draw_tensors() if with_other_gradients else gradients
        np.savez(folder / f"gradients_{step}.npz", **saved_gradients)
        np.savez(folder / f"weights_{step}.npz", **weights)
    return folder
