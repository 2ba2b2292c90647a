"""MindSpore's .ckpt, written as protobuf byte by byte, and its strategies.

tests/weight_comparison has real files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff import checkpoints
from dumpdiff.checkpoints.mindspore_ranks import Layout, _compute_window
from dumpdiff.model.errors import DumpError


def encode_varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def encode_field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return encode_varint(number << 3) + encode_varint(content)
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def encode_value(name: str, dtype: str, shape: tuple[int, ...], content: bytes) -> bytes:
    dims = b"".join(encode_field(1, length) for length in shape)
    return encode_field(
        1,
        encode_field(1, name.encode())
        + encode_field(2, dims + encode_field(2, dtype.encode()) + encode_field(3, content)),
    )


BFLOAT16 = np.array([0x3F80, 0x4000, 0xBF80, 0], np.uint16)  # 1, 2, -1, 0


def test_dtypes_scalars_and_texts(tmp_path: Path) -> None:
    data = encode_value("a", "BFloat16", (2, 2), BFLOAT16.tobytes()) + encode_value(
        "b", "Float32", (), np.float32(2.5).tobytes()
    )
    (tmp_path / "m.ckpt").write_bytes(data + encode_value("s", "str", (0,), b"h\0\0\0"))
    opened = checkpoints.open(tmp_path / "m.ckpt")
    assert opened.format == "mindspore"
    np.testing.assert_array_equal(opened.read_array("a"), [[1, 2], [-1, 0]])
    assert opened.read_array("b") == 2.5
    assert [entry.name for entry in opened.entries] == ["a", "b"]


def test_a_parameter_in_several_slices_and_a_checksum(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int32)
    slices = [encode_value("a", "Int32", (2, 3), part.tobytes()) for part in (array[:4], array[4:])]
    (tmp_path / "m.ckpt").write_bytes(b"".join(slices) + b"crc_num" + (1234).to_bytes(10, "big"))
    np.testing.assert_array_equal(
        checkpoints.open(tmp_path / "m.ckpt").read_array("a"), array.reshape(2, 3)
    )


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    data = 3 * encode_value("a", "Float32", (4,), bytes(16))
    (tmp_path / "m.ckpt").write_bytes(data[:-cut])
    with pytest.raises(DumpError, match=r"m\.ckpt: .*copy it again"):
        checkpoints.open(tmp_path / "m.ckpt")


def test_the_last_of_several_steps_is_read(tmp_path: Path) -> None:
    for step in (9, 10):
        (tmp_path / f"net-1_{step}.ckpt").write_bytes(
            encode_value("a", "Int32", (1,), np.int32(step).tobytes())
        )
    opened = checkpoints.open(tmp_path)
    assert opened.read_array("a") == [10]
    assert "the last of 2" in str(opened.problems[0])


def test_a_missing_rank_is_reported(tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "m.ckpt").write_bytes(
            encode_value("a", "Int32", (1,), bytes(4))
        )
    with pytest.raises(DumpError, match="rank_1 is missing"):
        checkpoints.open(tmp_path)


@pytest.mark.parametrize(
    ("layout", "rank", "start", "full_shape"),
    [
        (Layout((2, 4), ((-1,), (0,)), 0, 0), 1, (0, 8), (6, 32)),
        (Layout((2, 4), ((1,), (0,)), 0, 0), 6, (6, 16), (12, 32)),
        (Layout((2, 4), ((1, 0), (-1,)), 0, 0), 6, (36, 0), (48, 8)),
        (Layout((2, 4), ((0,), (-1,)), 4, 2), 5, (18, 0), (48, 8)),
        (Layout((2,), ((0,), (-1,)), 0, 0), 3, (6, 0), (12, 8)),
    ],
    ids=["columns", "both", "two device axes cut one", "optimizer shards", "second stage"],
)
def test_window_of_a_rank(
    layout: Layout, rank: int, start: tuple[int, ...], full_shape: tuple[int, ...]
) -> None:
    assert _compute_window(layout, (6, 8), rank) == (start, full_shape)
