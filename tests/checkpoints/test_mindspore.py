"""MindSpore's .ckpt, written byte by byte as protobuf has it, and its strategies; real ones are in tests/weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff import checkpoints
from dumpdiff.checkpoints.mindspore_ranks import Layout, _compute_window
from dumpdiff.model.errors import DumpError


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def value(name: str, dtype: str, shape: tuple[int, ...], content: bytes) -> bytes:
    dims = b"".join(field(1, length) for length in shape)
    return field(
        1, field(1, name.encode()) + field(2, dims + field(2, dtype.encode()) + field(3, content))
    )


BFLOAT16 = np.array([0x3F80, 0x4000, 0xBF80, 0], np.uint16)  # 1, 2, -1, 0


def test_dtypes_scalars_and_texts(tmp_path: Path) -> None:
    data = value("a", "BFloat16", (2, 2), BFLOAT16.tobytes()) + value(
        "b", "Float32", (), np.float32(2.5).tobytes()
    )
    (tmp_path / "m.ckpt").write_bytes(data + value("s", "str", (0,), b"h\0\0\0"))
    opened = checkpoints.open(tmp_path / "m.ckpt")
    assert opened.format == "mindspore"
    np.testing.assert_array_equal(opened.read_array("a"), [[1, 2], [-1, 0]])
    assert opened.read_array("b") == 2.5
    assert [entry.name for entry in opened.entries] == ["a", "b"]


def test_a_parameter_in_several_slices_and_a_checksum(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int32)
    slices = [value("a", "Int32", (2, 3), part.tobytes()) for part in (array[:4], array[4:])]
    (tmp_path / "m.ckpt").write_bytes(b"".join(slices) + b"crc_num" + (1234).to_bytes(10, "big"))
    np.testing.assert_array_equal(
        checkpoints.open(tmp_path / "m.ckpt").read_array("a"), array.reshape(2, 3)
    )


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_cut_file(tmp_path: Path, cut: int) -> None:
    data = 3 * value("a", "Float32", (4,), bytes(16))
    (tmp_path / "m.ckpt").write_bytes(data[:-cut])
    with pytest.raises(DumpError, match=r"m\.ckpt: .*copy it again"):
        checkpoints.open(tmp_path / "m.ckpt")


def test_of_several_steps_the_last(tmp_path: Path) -> None:
    for step in (9, 10):
        (tmp_path / f"net-1_{step}.ckpt").write_bytes(
            value("a", "Int32", (1,), np.int32(step).tobytes())
        )
    opened = checkpoints.open(tmp_path)
    assert opened.read_array("a") == [10]
    assert "the last of 2" in str(opened.problems[0])


def test_a_missing_rank(tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "m.ckpt").write_bytes(value("a", "Int32", (1,), bytes(4)))
    with pytest.raises(DumpError, match="rank_1 is missing"):
        checkpoints.open(tmp_path)


@pytest.mark.parametrize(
    ("layout", "rank", "start", "whole"),
    [
        (Layout((2, 4), ((-1,), (0,)), 0, 0), 1, (0, 8), (6, 32)),
        (Layout((2, 4), ((1,), (0,)), 0, 0), 6, (6, 16), (12, 32)),
        (Layout((2, 4), ((1, 0), (-1,)), 0, 0), 6, (36, 0), (48, 8)),
        (Layout((2, 4), ((0,), (-1,)), 4, 2), 5, (18, 0), (48, 8)),
        (Layout((2,), ((0,), (-1,)), 0, 0), 3, (6, 0), (12, 8)),
    ],
    ids=["columns", "both", "two device axes cut one", "optimizer shards", "second stage"],
)
def test_which_slice_a_rank_holds(
    layout: Layout, rank: int, start: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    assert _compute_window(layout, (6, 8), rank) == (start, whole)
