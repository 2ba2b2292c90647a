"""Megatron's token files are read as they lie on disk; wrong and hostile ones are refused in one line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumpdiff.batches import Packing, read_batches
from dumpdiff.batches.token_files import open_token_file, find_prefix
from dumpdiff.model.errors import DumpError

from .written import index, token_files

CUT = Packing(3, split="1,0,0")


def test_lengths_documents_and_tokens_are_those_that_megatron_wrote(tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = token_files(tmp_path / "corpus", documents=12)
    ours, theirs = open_token_file(prefix), IndexedDataset(str(prefix))
    assert ours.documents == 12
    np.testing.assert_array_equal(ours.lengths, theirs.sequence_lengths)
    for i in range(len(theirs)):
        np.testing.assert_array_equal(ours.read_tokens(i, 0, int(ours.lengths[i])), theirs[i])
    np.testing.assert_array_equal(ours.read_tokens(1, 2, 4), theirs.get(1, offset=2, length=2))


@pytest.mark.parametrize("ending", ["", ".idx", ".bin"])
def test_a_dataset_is_named_by_its_prefix_or_either_file(tmp_path: Path, ending: str) -> None:
    prefix = index(tmp_path / "v1.2_text_document")
    assert find_prefix(f"{prefix}{ending}") == prefix


def test_modes_of_a_multimodal_dataset_are_no_damage(tmp_path: Path) -> None:
    batch = read_batches(index(tmp_path / "x", end=b"\x00\x01"), CUT)
    assert "multimodal" in batch.notes[1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"magic": b"TNTIDX\x00\x00\x00"}, "is of the old kind"),
        ({"magic": b"MMIDIDX\x00\x01"}, "expected an index of Megatron"),
        ({"version": 2}, "is of version 2, version 1 is read"),
        ({"code": 7}, "its elements are of kind 7, which are no token ids"),
        ({"code": 0}, "its elements are of kind 0"),
        ({"lengths": (), "sequences": 0}, "holds no sequences"),
        ({"sequences": 2**62}, "its header .* asks for"),
        ({"borders": 2**63}, "its header .* asks for"),
        ({"sequences": 1}, "its header .* asks for"),
        ({"end": b"x"}, "its header .* asks for"),
        ({"lengths": (9, -5)}, "holds a negative length"),
        ({"places": (0, 2**60)}, "lies outside of them"),
        ({"places": (-8, -8)}, "lies outside of them"),
        ({"lengths": (2**31 - 1, 4), "places": (0, 8)}, "cut short, 198 of 4,294,967,302 bytes"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    prefix = index(tmp_path / "x", **wrong)
    with pytest.raises(DumpError, match=said):
        read_batches(
            prefix,
            Packing(8 if "lengths" in wrong or "places" in wrong else 3, split="1,0,0", samples=3),
        )


def test_an_index_without_its_tokens_is_refused(tmp_path: Path) -> None:
    index(tmp_path / "x")
    (tmp_path / "x.bin").unlink()
    with pytest.raises(DumpError, match=r"x\.bin: is missing"):
        read_batches(tmp_path / "x", CUT)


def test_one_missing_dataset_of_a_blend_is_named(tmp_path: Path) -> None:
    prefix = index(tmp_path / "x")
    with pytest.raises(DumpError, match=r"gone\.idx: no such file"):
        read_batches(f"0.5 {prefix} 0.5 {tmp_path}/gone", CUT)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_a_batch_or_a_refusal(tmp_path: Path, data: st.DataObject) -> None:
    prefix = index(tmp_path / "x", (4, 5, 6, 7))
    whole = bytearray((tmp_path / "x.idx").read_bytes())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=6)
    ):
        whole[at] = byte
    (tmp_path / "x.idx").write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(DumpError):
        batch = read_batches(prefix, CUT)
        assert batch.tokens is not None
        assert batch.tokens.shape == (1, 3)
