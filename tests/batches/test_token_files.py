"""Megatron's token files are read; invalid ones are rejected in one line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumpdiff.batches import Packing, read_batches
from dumpdiff.batches.token_files import find_prefix, open_token_file
from dumpdiff.model.errors import DumpError

from .input_files import write_index, write_token_files

PACKING = Packing(3, split="1,0,0")


def test_lengths_documents_and_tokens_equal_those_of_megatron(tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = write_token_files(tmp_path / "corpus", documents=12)
    token_file, dataset = open_token_file(prefix), IndexedDataset(str(prefix))
    assert token_file.documents == 12
    np.testing.assert_array_equal(token_file.lengths, dataset.sequence_lengths)
    for i in range(len(dataset)):
        np.testing.assert_array_equal(
            token_file.read_tokens(i, 0, int(token_file.lengths[i])), dataset[i]
        )
    np.testing.assert_array_equal(
        token_file.read_tokens(1, 2, 4), dataset.get(1, offset=2, length=2)
    )


@pytest.mark.parametrize("ending", ["", ".idx", ".bin"])
def test_a_dataset_is_named_by_its_prefix_or_either_file(tmp_path: Path, ending: str) -> None:
    prefix = write_index(tmp_path / "v1.2_text_document")
    assert find_prefix(f"{prefix}{ending}") == prefix


def test_modes_of_a_multimodal_dataset_are_accepted(tmp_path: Path) -> None:
    batch = read_batches(write_index(tmp_path / "x", end=b"\x00\x01"), PACKING)
    assert "multimodal" in batch.notes[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"magic": b"TNTIDX\x00\x00\x00"}, "has the old format"),
        ({"magic": b"MMIDIDX\x00\x01"}, "expected an index of Megatron"),
        ({"version": 2}, "has version 2; only version 1 is supported"),
        ({"code": 7}, "its elements have dtype code 7, which is no token id"),
        ({"code": 0}, "its elements have dtype code 0"),
        ({"lengths": (), "sequences": 0}, "holds no sequences"),
        ({"sequences": 2**62}, "its header .* requires"),
        ({"borders": 2**63}, "its header .* requires"),
        ({"sequences": 1}, "its header .* requires"),
        ({"end": b"x"}, "its header .* requires"),
        ({"lengths": (9, -5)}, "holds a negative length"),
        ({"places": (0, 2**60)}, "is outside of them"),
        ({"places": (-8, -8)}, "is outside of them"),
        ({"lengths": (2**31 - 1, 4), "places": (0, 8)}, "cut short, 198 of 4,294,967,302 bytes"),
    ],
)
def test_an_invalid_index_is_rejected(tmp_path: Path, damage: dict[str, Any], message: str) -> None:
    prefix = write_index(tmp_path / "x", **damage)
    with pytest.raises(DumpError, match=message):
        read_batches(
            prefix,
            Packing(
                8 if "lengths" in damage or "places" in damage else 3, split="1,0,0", samples=3
            ),
        )


def test_an_index_without_its_tokens_is_rejected(tmp_path: Path) -> None:
    write_index(tmp_path / "x")
    (tmp_path / "x.bin").unlink()
    with pytest.raises(DumpError, match=r"x\.bin: is missing"):
        read_batches(tmp_path / "x", PACKING)


def test_a_missing_dataset_of_a_blend_is_rejected(tmp_path: Path) -> None:
    prefix = write_index(tmp_path / "x")
    with pytest.raises(DumpError, match=r"gone\.idx: no such file"):
        read_batches(f"0.5 {prefix} 0.5 {tmp_path}/gone", PACKING)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_index_results_in_a_batch_or_an_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    prefix = write_index(tmp_path / "x", (4, 5, 6, 7))
    content = bytearray((tmp_path / "x.idx").read_bytes())
    for offset, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=6)
    ):
        content[offset] = byte
    (tmp_path / "x.idx").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(DumpError):
        batch = read_batches(prefix, PACKING)
        assert batch.tokens is not None
        assert batch.tokens.shape == (1, 3)
