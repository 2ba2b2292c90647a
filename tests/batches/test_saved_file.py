"""Batches that users save, as NumPy, torch and safetensors write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dumpdiff.batches import read_batches
from dumpdiff.model.errors import DumpError

TEXT = np.random.default_rng(5).integers(0, 90, (4, 17))
MEGATRON = {
    "tokens": TEXT[:, :-1],
    "labels": TEXT[:, 1:],
    "loss_mask": np.ones((4, 16), np.float32),
}
TRANSFORMERS = {
    "input_ids": TEXT[:, :-1],
    "labels": TEXT[:, :-1],
    "attention_mask": np.ones((4, 16), np.int64),
}


def save_torch(path: Path, arrays: dict[str, np.ndarray]) -> None:
    torch.save(
        {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()},
        path,
    )


def save_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("batch.npz", lambda path, arrays: np.savez(path, **arrays)),
        ("batch.pt", save_torch),
        ("batch.safetensors", save_safetensors),
    ],
)
@pytest.mark.parametrize("arrays", [MEGATRON, TRANSFORMERS])
def test_fields_are_recognized_by_the_names_that_frameworks_use(
    tmp_path: Path, name: str, save: Callable[[Path, Any], None], arrays: dict[str, np.ndarray]
) -> None:
    save(tmp_path / name, arrays)
    batch = read_batches(tmp_path / name)
    np.testing.assert_array_equal(batch.tokens, TEXT[:, :-1])
    np.testing.assert_array_equal(batch.labels, arrays["labels"])
    assert ("loss_mask" in batch.arrays) == ("loss_mask" in arrays)


def test_one_array_of_integers_is_the_tokens(tmp_path: Path) -> None:
    np.save(tmp_path / "first.npy", TEXT.astype(np.int32))
    np.testing.assert_array_equal(read_batches(tmp_path / "first.npy").tokens, TEXT)


def test_a_folder_of_arrays_is_a_batch(tmp_path: Path) -> None:
    for name, array in MEGATRON.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert set(read_batches(tmp_path).arrays) == set(MEGATRON)


def test_megatrons_text_contains_tokens_and_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", text=TEXT)
    batch = read_batches(tmp_path / "x.npz")
    np.testing.assert_array_equal(batch.tokens, TEXT[:, :-1])
    np.testing.assert_array_equal(batch.labels, TEXT[:, 1:])


def test_micro_batches_are_joined_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"0.tokens": TEXT[:2], "1.tokens": TEXT[2:]})
    np.testing.assert_array_equal(read_batches(tmp_path / "x.npz").tokens, TEXT)


def test_one_row_of_positions_serves_all_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", tokens=TEXT, position_ids=np.arange(17))
    positions = read_batches(tmp_path / "x.npz").positions
    assert positions is not None
    assert positions.shape == TEXT.shape


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": TEXT, "y": TEXT}, "no token ids among x, y; expected one of tokens, input_ids"),
        ({"x": TEXT + 0.5}, "no token ids among x"),
        ({"tokens": TEXT + 0.5}, "tokens holds fractions, which are no ids"),
        (
            {"tokens": np.zeros((2, 3, 4), int)},
            r"tokens has shape \(2, 3, 4\), expected \(samples, length\)",
        ),
        ({"tokens": np.zeros((0, 4), int)}, r"tokens has shape \(0, 4\)"),
        ({"tokens": TEXT, "labels": TEXT[:3]}, "labels has 3 rows, the tokens have 4"),
        ({"a.tokens": TEXT, "b.tokens": TEXT[:, 1:]}, "a.tokens and b.tokens differ in length"),
    ],
)
def test_arrays_that_are_no_batch_are_rejected(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DumpError, match=message):
        read_batches(tmp_path / "x.npz")


def test_paths_without_a_batch_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"no such file or folder, and no gone\.idx next to it"):
        read_batches(tmp_path / "gone")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(DumpError, match=r"x\.txt: neither a saved batch .* nor a dump: "):
        read_batches(tmp_path / "x.txt")
    with pytest.raises(DumpError, match="no dump in this folder"):
        read_batches(tmp_path)
