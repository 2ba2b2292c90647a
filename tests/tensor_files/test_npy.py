"""npy files of untrusted folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dumpdiff.model.errors import DumpError
from dumpdiff.tensor_files import npy

HEADER = npy.MAGIC + b"\x01\x00\x76\x00"  #: version 1.0, 118 bytes follow


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int32", "int64", "uint8", "bool", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0, 3)])
def test_reads_what_numpy_wrote(tmp_path: Path, dtype: str, shape: tuple[int, ...]):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    header = npy.read_header(tmp_path / "a.npy")
    assert (header.dtype, header.shape, header.n_elements) == (dtype, shape, array.size)
    np.testing.assert_array_equal(npy.open_array(tmp_path / "a.npy"), array)


def test_large_arrays_are_mapped_not_read(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.ones((npy.MEMORY_MAP_BYTES // 4, 1), np.float32))
    array = npy.open_array(tmp_path / "a.npy")
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable


def test_small_arrays_cannot_be_written_either(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float32))
    assert not npy.open_array(tmp_path / "a.npy").flags.writeable


def test_fortran_order(tmp_path: Path):
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(npy.open_array(tmp_path / "a.npy"), array)


def write_bfloat16(path: Path, values: np.ndarray) -> None:
    """As MindSpore on CPU does: the descriptor <E2, upper halves of float32."""
    text = (
        f"{{'descr': '<E2', 'fortran_order': False, 'shape': {values.shape!r}, }}".ljust(117) + "\n"
    )
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    path.write_bytes(
        npy.MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bits.tobytes()
    )


def test_bfloat16_becomes_float32(tmp_path: Path):
    values = np.array([[1.0, -2.5, np.inf], [0.0, -0.0, 3.0e38]], np.float32)
    write_bfloat16(tmp_path / "a.npy", values)
    with pytest.raises(ValueError, match="E2"):
        np.load(tmp_path / "a.npy")
    assert npy.read_header(tmp_path / "a.npy").dtype == "bfloat16"
    array = npy.open_array(tmp_path / "a.npy")
    assert array.dtype == np.float32
    np.testing.assert_allclose(array, values, rtol=2**-7)


@given(npst.arrays(np.uint16, st.integers(1, 20)))
def test_decoding_bfloat16_is_exact(bits: np.ndarray):
    decoded = npy.decode_bfloat16(bits)
    np.testing.assert_array_equal(decoded.view(np.uint32) >> 16, bits)
    assert not (decoded.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"hello, this is text", "not an .npy file"),
        (HEADER + b"{'descr': 'O', 'fortran_order': False, 'shape': (1,), }".ljust(118), "broken"),
        (HEADER + b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }".ljust(118),
         "broken"),
        (HEADER + b"{'descr': '<f4', 'fortran_order': False, 'shape': ('1',), }".ljust(118),
         "broken"),
        (HEADER + b"__import__('os').abort()".ljust(118), "broken"),
        (HEADER + b"(" * 118, "broken"),
        (npy.MAGIC + b"\x02\x00" + (2**31).to_bytes(4, "little") + b" " * 50, "claims"),
    ],
)  # fmt: skip
def test_other_content_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(DumpError, match=message) as refusal:
        npy.open_array(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_cut_short_is_refused(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.ones(100))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-1])
    with pytest.raises(DumpError, match=f"cut short, {len(content) - 1} of {len(content)} bytes"):
        npy.read_header(tmp_path / "a.npy")


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(DumpError, match="No such file"):
        npy.read_header(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "name", ["../secret.npy", "/etc/passwd", "link.npy", "sub/../../secret.npy"]
)
def test_no_name_leaves_the_folder(tmp_path: Path, name: str):
    np.save(tmp_path / "secret.npy", np.ones(1))
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "link.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(DumpError, match="outside the dump folder"):
        npy.make_loader(tmp_path / "dump")(name)


def test_a_relative_folder_is_that_of_the_present_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook goes from one run to the next; their dumps have equal names."""
    for number in (1, 2):
        folder = tmp_path / f"run{number}" / "dump"
        folder.mkdir(parents=True)
        np.save(folder / "x.npy", np.full(2, number))
        monkeypatch.chdir(folder.parent)
        path = npy.resolve_inside(Path("dump"), "x.npy")
        np.testing.assert_array_equal(npy.open_array(path), [number, number])
