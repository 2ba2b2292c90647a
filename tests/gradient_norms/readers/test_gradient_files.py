"""Norms of saved gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import read_error


def save_npz(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    np.savez(folder / "g.npz", **gradients)
    return folder / "g.npz"


def save_npy(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    for name, values in gradients.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def save_safetensors(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    from safetensors.numpy import save_file

    save_file(gradients, folder / "g.safetensors")
    return folder / "g.safetensors"


def save_torch(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    import torch

    torch.save(
        {f"module.{name}": torch.from_numpy(values) for name, values in gradients.items()},
        folder / "g.pt",
    )
    return folder / "g.pt"


def save_steps(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    np.savez(folder / "gradients_1.npz", **gradients)
    np.savez(folder / "weights_0.npz", **{name: np.ones(3, np.float32) for name in gradients})
    return folder


@pytest.mark.parametrize("save", [save_npz, save_npy, save_safetensors, save_torch, save_steps])
def test_norms_of_saved_gradients_are_computed(
    tmp_path: Path, save: Callable[[Path, dict[str, np.ndarray]], Path]
) -> None:
    random = np.random.default_rng(3)
    gradients = {
        name: random.normal(0, 1, shape).astype(np.float32)
        for name, shape in (
            ("model.embed_tokens.weight", (7, 5)),
            ("lm_head.weight", (5, 7)),
            ("model.norm.bias", (5,)),
        )
    }
    norms = read_norms(save(tmp_path, gradients))
    assert set(norms.names) == set(gradients)
    for name, value, size in zip(norms.names, norms.values, norms.sizes, strict=True):
        assert value == pytest.approx(
            float(np.linalg.norm(gradients[name].astype(np.float64))), rel=1e-12
        )
        assert size == gradients[name].size


def test_integers_are_no_gradients(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", a=np.arange(4))
    assert "holds no floating-point tensors" in read_error(tmp_path / "g.npz")


def test_a_torch_file_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "g.pt").write_bytes(pickle.dumps({"a": print}))
    assert "expected a checkpoint" in read_error(tmp_path / "g.pt")
