"""torch.save files of one tensor, read without torch and without unpickling."""

import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.tensor_files import torch_pt
from dumpdiff.tensor_files.npy import MEMORY_MAP_BYTES

torch = pytest.importorskip("torch")

BASE = np.arange(24, dtype=np.float32).reshape(4, 6) / 7 - 1


def save_tensor(folder: Path, value: object, **options: object) -> Path:
    file = folder / "tensor.pt"
    torch.save(value, file, **options)
    return file


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, reason: str) -> np.ndarray:
        raise AssertionError(f"torch was asked: {reason}")

    monkeypatch.setattr(torch_pt, "_load_with_torch", refuse)


@pytest.mark.usefixtures("without_torch")
class TestPlainTensors:
    @pytest.mark.parametrize(
        "view",
        [
            lambda t: t,
            lambda t: t.T,
            lambda t: t[1:, 2:5],
            lambda t: t[:1].expand(5, 6),
            lambda t: t[2, 3],
            lambda t: t[:0],
            lambda t: t.clone().requires_grad_(),
        ],
        ids=["whole", "transposed", "slice", "expanded", "scalar", "empty", "with gradient"],
    )
    def test_offset_shape_and_strides_are_respected(self, tmp_path: Path, view):
        tensor = view(torch.from_numpy(BASE))
        array = torch_pt.load_torch_tensor(save_tensor(tmp_path, tensor))

        assert array.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(array, tensor.detach().numpy())

    @pytest.mark.parametrize(
        "dtype",
        [
            "float64",
            "float32",
            "float16",
            "int64",
            "int32",
            "int16",
            "int8",
            "uint8",
            "bool",
            "complex64",
            "complex128",
        ],
    )
    def test_every_common_dtype_keeps_its_type(self, tmp_path: Path, dtype: str):
        tensor = torch.from_numpy(BASE).to(getattr(torch, dtype))
        array = torch_pt.load_torch_tensor(save_tensor(tmp_path, tensor))

        assert array.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(array, tensor.numpy())

    def test_bfloat16_becomes_float32_exactly(self, tmp_path: Path):
        tensor = torch.from_numpy(BASE).bfloat16().T
        array = torch_pt.load_torch_tensor(save_tensor(tmp_path, tensor))

        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, tensor.float().numpy())

    def test_a_large_file_is_mapped_and_not_read(self, tmp_path: Path):
        array = torch_pt.load_torch_tensor(save_tensor(tmp_path, torch.ones(MEMORY_MAP_BYTES // 4)))

        while isinstance(array.base, np.ndarray) and not isinstance(array, np.memmap):
            array = array.base
        assert isinstance(array, np.memmap)


class TestOtherFiles:
    def test_a_parameter_is_left_to_torch(self, tmp_path: Path):
        file = save_tensor(tmp_path, torch.nn.Parameter(torch.from_numpy(BASE)))

        np.testing.assert_array_equal(torch_pt.load_torch_tensor(file), BASE)

    def test_a_state_dict_is_no_tensor(self, tmp_path: Path):
        with pytest.raises(DumpError, match="expected one tensor, found a OrderedDict"):
            torch_pt.load_torch_tensor(save_tensor(tmp_path, OrderedDict(weight=torch.zeros(2))))

    def test_code_in_the_pickle_is_never_run(self, tmp_path: Path):
        marker = tmp_path / "ran"

        class Payload:
            def __reduce__(self) -> tuple[object, ...]:
                return marker.write_text, ("ran",)

        file = tmp_path / "tensor.pt"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("tensor/data.pkl", pickle.dumps(Payload(), protocol=2))
            archive.writestr("tensor/data/0", b"\0" * 8)

        with pytest.raises(DumpError):
            torch_pt.load_torch_tensor(file)
        assert not marker.exists()

    def test_without_torch_the_reason_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        file = save_tensor(tmp_path, {"a": torch.zeros(2)})
        monkeypatch.setitem(sys.modules, "torch", None)

        with pytest.raises(DumpError, match="torch is not installed"):
            torch_pt.load_torch_tensor(file)

    @pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
    def test_a_cut_file_is_damaged(self, tmp_path: Path, share: float):
        file = save_tensor(tmp_path, torch.from_numpy(BASE))
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * share)])

        with pytest.raises(DumpError, match="damaged torch file"):
            torch_pt.load_torch_tensor(file)

    def test_a_shape_beyond_the_data_is_damage_and_no_crash(self, tmp_path: Path):
        file = save_tensor(tmp_path, torch.from_numpy(BASE))
        damaged_file = tmp_path / "damaged.pt"
        with zipfile.ZipFile(file) as source, zipfile.ZipFile(damaged_file, "w") as target:
            for entry in source.infolist():
                content = source.read(entry)
                if entry.filename.endswith("data.pkl"):
                    assert b"K\x04K\x06\x86" in content  # the shape (4, 6)
                    content = content.replace(b"K\x04K\x06\x86", b"K\xffK\x06\x86")
                target.writestr(entry.filename, content)

        with pytest.raises(DumpError, match="damaged torch file"):
            torch_pt.load_torch_tensor(damaged_file)
