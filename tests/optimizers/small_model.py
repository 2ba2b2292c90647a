"""A small network as arrays: its weights and batches are the same for every framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np

INPUTS, HIDDEN, OUTPUTS, BATCH, STEPS = 24, 48, 8, 32, 3
SHAPES = {
    "first.weight": (HIDDEN, INPUTS),
    "first.bias": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    "norm.bias": (HIDDEN,),
    "second.weight": (OUTPUTS, HIDDEN),
    "second.bias": (OUTPUTS,),
}
MATRICES = ("first.weight", "second.weight")


def draw_weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = {
        name: 0.2 * generator.standard_normal(shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    return {**arrays, "norm.weight": 1 + arrays["norm.weight"]}


def draw_batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(step + 1)
    inputs, targets = (
        generator.standard_normal((BATCH, INPUTS)),
        generator.standard_normal((BATCH, OUTPUTS)),
    )
    return inputs.astype(np.float32), targets.astype(np.float32)


def save_arrays(folder: Path, kind: str, number: int, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{kind}_{number}.npz", **arrays)
