"""One small network, its weights and its batches, as arrays: the same for every framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np

INPUTS, HIDDEN, OUTPUTS, BATCH, STEPS = 24, 48, 8, 32, 3
SHAPES = {
    "first.weight": (HIDDEN, INPUTS), "first.bias": (HIDDEN,), "norm.weight": (HIDDEN,), "norm.bias": (HIDDEN,),
    "second.weight": (OUTPUTS, HIDDEN), "second.bias": (OUTPUTS,),
}  # fmt: skip
MATRICES = ("first.weight", "second.weight")


def weights() -> dict[str, np.ndarray]:
    made = np.random.default_rng(0)
    drawn = {
        name: 0.2 * made.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    return {**drawn, "norm.weight": 1 + drawn["norm.weight"]}


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    made = np.random.default_rng(step + 1)
    inputs, wanted = made.standard_normal((BATCH, INPUTS)), made.standard_normal((BATCH, OUTPUTS))
    return inputs.astype(np.float32), wanted.astype(np.float32)


def save(folder: Path, kind: str, number: int, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{kind}_{number}.npz", **arrays)
