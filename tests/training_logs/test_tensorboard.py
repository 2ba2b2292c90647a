"""Event files of TensorBoard are read without TensorBoard."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.training_logs import read_log


def encode_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def encode_record(event: bytes) -> bytes:
    return struct.pack("<QI", len(event), 0) + event + bytes(4)


def encode_scalar(step: int, tag: str, value: float, *, as_tensor: bool = False) -> bytes:
    number = bytes([2 << 3 | 5]) + struct.pack("<f", value)
    if as_tensor:
        tensor = bytes([1 << 3 | 0, 1]) + encode_field(5, struct.pack("<f", value))
        number = encode_field(8, tensor)
    summary = encode_field(1, encode_field(1, tag.encode()) + number)
    head = bytes([1 << 3 | 1]) + struct.pack("<d", 0.0) + bytes([2 << 3 | 0, step])
    return encode_record(head + encode_field(5, summary))


VERSION = encode_record(
    bytes([1 << 3 | 1]) + struct.pack("<d", 0.0) + encode_field(3, b"brain.Event:2")
)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_scalars_are_read_by_their_tags(tmp_path: Path, as_tensor: bool) -> None:
    data = VERSION
    for step, loss in ((1, 8.25), (2, 8.125), (3, 8.0)):
        data += encode_scalar(step, "lm loss", loss, as_tensor=as_tensor)
        data += encode_scalar(step, "learning-rate", 1e-5 * step, as_tensor=as_tensor)
        data += encode_scalar(step, "lm loss vs samples", 99.0)
    file = tmp_path / "events.out.tfevents.1700000000.host"
    file.write_bytes(data + b"\x40\x00")  # a record that is still written
    for path in (file, tmp_path):
        curves = read_log(path)
        assert (curves.format, curves.rate_of) == ("tensorboard", "next")
        assert curves.steps.tolist() == [1, 2, 3]
        assert curves.loss.tolist() == [8.25, 8.125, 8.0]
        assert curves.rate.tolist() == pytest.approx([1e-5, 2e-5, 3e-5])


def test_a_run_that_was_resumed_has_two_files(tmp_path: Path) -> None:
    for name, steps in (("1", (1, 2, 3)), ("2", (3, 4))):
        data = VERSION + b"".join(encode_scalar(step, "train/loss", 9.0 - step) for step in steps)
        (tmp_path / f"events.out.tfevents.{name}.host").write_bytes(data)
    curves = read_log(tmp_path)
    assert curves.steps.tolist() == [1, 2, 3, 4]
    assert curves.restarts == (3,)


def test_a_file_without_a_loss_is_refused_with_its_tags(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(VERSION + encode_scalar(1, "acc", 1.0))
    with pytest.raises(DumpError, match=r"no scalar in it is a training loss \(its tags: acc\)"):
        read_log(tmp_path)
