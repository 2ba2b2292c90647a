"""Every format is recognized by content and read element by element; nothing is unpickled."""

from __future__ import annotations

import json
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff import checkpoints
from dumpdiff.checkpoints import Checkpoint, Rank
from dumpdiff.model.errors import DumpError

torch = pytest.importorskip("torch")

DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int8",
    "uint8",
    "bool",
)


def draw_tensors() -> dict[str, torch.Tensor]:
    values = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)) * 3
    return {f"layer.{dtype}": values.to(getattr(torch, dtype)) for dtype in DTYPES}


def assert_holds(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert {entry.name for entry in checkpoint.entries} == set(expected)
    for name, tensor in expected.items():
        entry = checkpoint.get_entry(name)
        assert entry.shape == tuple(tensor.shape)
        assert entry.dtype == str(tensor.dtype).removeprefix("torch.")
        wide = tensor.detach()
        if tensor.dtype.itemsize < 4 and tensor.is_floating_point():
            wide = wide.float()
        np.testing.assert_array_equal(checkpoint.read_array(name), wide.numpy())
        assert checkpoint.read_raw(name).dtype.itemsize == tensor.dtype.itemsize


class TestSafetensors:
    def test_all_dtypes(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        save_file(draw_tensors(), tmp_path / "m.bin", {"format": "pt"})
        opened = checkpoints.open(tmp_path / "m.bin")
        assert opened.format == "safetensors"
        assert_holds(opened, draw_tensors())

    def test_a_folder_with_an_index_and_a_configuration(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        named = draw_tensors()
        halves = (list(named)[:5], list(named)[5:])
        for number, names in enumerate(halves):
            save_file(
                {name: named[name] for name in names}, tmp_path / f"model-{number}.safetensors"
            )
        index = dict.fromkeys(halves[0], "model-0.safetensors")
        index |= dict.fromkeys(halves[1], "model-1.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        (tmp_path / "config.json").write_text('{"num_attention_heads": 8}')

        opened = checkpoints.open(tmp_path)
        assert_holds(opened, named)
        assert opened.settings == {"num_attention_heads": 8}
        assert_holds(checkpoints.open(tmp_path / "model.safetensors.index.json"), named)

    @pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b", "gone.safetensors"])
    def test_an_index_names_files_of_its_folder_only(self, tmp_path: Path, file: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": file}})
        )
        with pytest.raises(DumpError, match=r"no file of its folder|is missing"):
            checkpoints.open(tmp_path)

    def test_a_link_out_of_the_folder_is_not_followed(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        (tmp_path / "inner").mkdir()
        save_file({"a": torch.ones(3)}, tmp_path / "outside.safetensors")
        (tmp_path / "inner" / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
        opened = checkpoints.open(tmp_path / "inner")
        with pytest.raises(DumpError, match="outside"):
            opened.read_array("a")

    def test_a_snapshot_of_hugging_faces_cache_links_to_its_blobs(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        snapshot, blobs = (
            tmp_path / "models--a--b" / "snapshots" / "0123",
            tmp_path / "models--a--b" / "blobs",
        )
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        save_file(draw_tensors(), blobs / "89ab")
        (snapshot / "model.safetensors").symlink_to("../../blobs/89ab")
        assert_holds(checkpoints.open(snapshot), draw_tensors())

    @pytest.mark.parametrize(
        "header",
        [{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
         {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
         {"a": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}},
         {"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
         {"a": 3}],
    )  # fmt: skip
    def test_a_wrong_header_is_refused(self, tmp_path: Path, header: dict[str, object]) -> None:
        text = json.dumps(header).encode()
        (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        with pytest.raises(DumpError, match=r"m\.safetensors"):
            checkpoints.open(tmp_path / "m.safetensors")


class TestTorch:
    @pytest.mark.parametrize(
        "wrap", [lambda d: d, lambda d: {"state_dict": d, "epoch": 3}, lambda d: {"model": d}]
    )
    def test_state_dicts_in_containers(self, tmp_path: Path, wrap: Callable) -> None:
        torch.save(wrap(draw_tensors()), tmp_path / "m.pt")
        opened = checkpoints.open(tmp_path / "m.pt")
        assert opened.format == "torch"
        assert_holds(opened, draw_tensors())

    def test_views_parameters_and_shared_storages(self, tmp_path: Path) -> None:
        matrix = torch.arange(24.0).reshape(4, 6)
        named = {
            "matrix": matrix,
            "T": matrix.T,
            "part": matrix[1:3, 2:],
            "p": torch.nn.Parameter(matrix),
            "scalar": matrix[2, 3],
        }
        torch.save(named, tmp_path / "m.pt")
        assert_holds(checkpoints.open(tmp_path / "m.pt"), named)

    def test_a_module_and_its_optimizer_are_read(self, tmp_path: Path) -> None:
        module = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(module.parameters())
        module(torch.ones(3)).sum().backward()
        optimizer.step()
        torch.save(
            {"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "m.pt"
        )
        names = {entry.name for entry in checkpoints.open(tmp_path / "m.pt").entries}
        assert names >= {
            "weight",
            "bias",
            "optimizer.state.0.exp_avg",
            "optimizer.state.1.exp_avg_sq",
        }

    def test_code_in_a_pickle_is_not_run(self, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

        torch.save({"model": {"a": torch.ones(2)}, "args": Trap()}, tmp_path / "m.pt")
        assert [entry.name for entry in checkpoints.open(tmp_path / "m.pt").entries] == ["a"]
        assert not (tmp_path / "ran").exists()

    def test_a_cut_file_is_refused(self, tmp_path: Path) -> None:
        torch.save(draw_tensors(), tmp_path / "m.pt")
        data = (tmp_path / "m.pt").read_bytes()
        (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
        with pytest.raises(DumpError, match=r"cut\.pt: expected a checkpoint"):
            checkpoints.open(tmp_path / "cut.pt")

    def test_missing_data_are_reported(self, tmp_path: Path) -> None:
        torch.save({"a": torch.ones(2)}, tmp_path / "m.pt")
        with (
            zipfile.ZipFile(tmp_path / "m.pt") as complete,
            zipfile.ZipFile(tmp_path / "reduced.pt", "w") as reduced,
        ):
            for member in complete.infolist():
                if "/data/" not in member.filename:
                    reduced.writestr(member.filename, complete.read(member))
        with pytest.raises(DumpError, match="data of a are missing"):
            checkpoints.open(tmp_path / "reduced.pt")

    @pytest.mark.parametrize("shape", [(64,), (6, 6, 6)])
    def test_a_shape_larger_than_the_data_is_refused(
        self, tmp_path: Path, shape: tuple[int, ...]
    ) -> None:
        from dataclasses import replace

        torch.save({"a": torch.ones(36)}, tmp_path / "m.pt")
        opened = checkpoints.open(tmp_path / "m.pt")
        for strides in (None, (1,) * len(shape)):
            wrong_entry = replace(opened.get_entry("a"), shape=shape, strides=strides, start=30)
            with pytest.raises(DumpError, match="reaches beyond its data"):
                opened.read_raw(wrong_entry)

    def test_only_the_model_of_a_trainers_folder_is_read(self, tmp_path: Path) -> None:
        torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
        torch.save({"a": torch.zeros(2), "state": {0: torch.ones(1)}}, tmp_path / "optimizer.pt")
        assert_holds(checkpoints.open(tmp_path), {"a": torch.ones(2)})


class TestMegatron:
    def save_ranks(
        self, folder: Path, ranks: dict[str, dict[str, object]], **arguments: object
    ) -> Path:
        for name, models in ranks.items():
            (folder / "iter_0000007" / name).mkdir(parents=True)
            state = {"args": Namespace(**arguments, kind=object), "iteration": 7, **models}
            torch.save(state, folder / "iter_0000007" / name / "model_optim_rng.pt")
        (folder / "latest_checkpointed_iteration.txt").write_text("7\n")
        return folder

    @pytest.mark.parametrize(
        ("name", "stages", "rank"),
        [
            ("mp_rank_01", 1, Rank(1)),
            ("mp_rank_01_002", 4, Rank(1, 2)),
            ("mp_rank_01_002", 1, Rank(1, 0, 2)),
            ("mp_rank_01_002_003", 4, Rank(1, 2, 3)),
        ],
    )
    def test_ranks_follow_from_the_folder_name(
        self, tmp_path: Path, name: str, stages: int, rank: Rank
    ) -> None:
        from dumpdiff.checkpoints import megatron

        assert megatron._parse_rank(name, {"pipeline_model_parallel_size": stages}) == rank

    def test_nested_names_virtual_stages_and_arguments(self, tmp_path: Path) -> None:
        legacy = {"language_model": {"encoder": {"layers.0.input_norm.weight": torch.ones(3)}}}
        chunk = {"language_model": {"encoder": {"layers.0.input_norm.weight": torch.zeros(3)}}}
        folder = self.save_ranks(
            tmp_path, {"mp_rank_00": {"model0": legacy, "model1": chunk}}, num_attention_heads=8,
            pipeline_model_parallel_size=1,
        )  # fmt: skip
        opened = checkpoints.open(folder)
        assert opened.format == "megatron"
        assert opened.settings == {"num_attention_heads": 8, "pipeline_model_parallel_size": 1}
        assert [(e.name, e.rank) for e in opened.entries] == [
            ("language_model.encoder.layers.0.input_norm.weight", Rank()),
            ("language_model.encoder.layers.0.input_norm.weight", Rank(chunk=1)),
        ]
        with pytest.raises(KeyError, match="split over 2 ranks"):
            opened.read_raw("language_model.encoder.layers.0.input_norm.weight")

    def test_a_missing_rank_is_reported(self, tmp_path: Path) -> None:
        ranks = {f"mp_rank_0{rank}": {"model": {"a": torch.ones(2)}} for rank in (0, 2)}
        with pytest.raises(DumpError, match="tensor-parallel rank 1 is missing"):
            checkpoints.open(self.save_ranks(tmp_path, ranks))

    def test_a_tracker_that_names_a_path_is_refused(self, tmp_path: Path) -> None:
        folder = self.save_ranks(tmp_path / "c", {"mp_rank_00": {"model": {"a": torch.ones(2)}}})
        (folder / "latest_checkpointed_iteration.txt").write_text("../c")
        with pytest.raises(DumpError, match="no such iteration"):
            checkpoints.open(folder)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
class TestTorchDistributed:
    def test_checkpoints_of_torch(self, tmp_path: Path) -> None:
        from torch.distributed import checkpoint

        named = {name: value for name, value in draw_tensors().items() if "float8" not in name}
        checkpoint.save(dict(named), checkpoint_id=str(tmp_path / "d"), no_dist=True)
        opened = checkpoints.open(tmp_path / "d")
        assert opened.format == "torch_dist"
        assert_holds(opened, named)

    def test_metadata_that_names_a_path_is_refused(self, tmp_path: Path) -> None:
        from torch.distributed import checkpoint

        checkpoint.save({"a": torch.ones(3)}, checkpoint_id=str(tmp_path / "d"), no_dist=True)
        path = tmp_path / "d" / ".metadata"
        path.write_bytes(path.read_bytes().replace(b"__0_0.distcp", b"../_0.distcp"))
        with pytest.raises(DumpError, match="no file of its folder"):
            checkpoints.open(tmp_path / "d")


class TestNumPy:
    def test_folders_and_archives(self, tmp_path: Path) -> None:
        arrays = {
            "a.weight": np.arange(6.0).reshape(2, 3),
            "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        }
        np.savez(tmp_path / "m.npz", **arrays)
        (tmp_path / "folder").mkdir()
        for name, array in arrays.items():
            np.save(tmp_path / "folder" / f"{name}.npy", array)
        for place in ("m.npz", "folder"):
            opened = checkpoints.open(tmp_path / place)
            assert opened.format == "numpy"
            for name, array in arrays.items():
                np.testing.assert_array_equal(opened.read_array(name), array)

    def test_npy_files_named_model_are_parameters(self, tmp_path: Path) -> None:
        for name in ("model.norm.weight", "lm_head.weight"):
            np.save(tmp_path / f"{name}.npy", np.ones(3))
        assert set(checkpoints.open(tmp_path).entries_by_name) == {
            "model.norm.weight",
            "lm_head.weight",
        }

    def test_a_compressed_archive_is_refused(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "m.npz", a=np.ones(3))
        with pytest.raises(DumpError, match="compressed"):
            checkpoints.open(tmp_path / "m.npz")


class TestWrongInput:
    def test_a_missing_path(self, tmp_path: Path) -> None:
        with pytest.raises(DumpError, match="no such file or folder"):
            checkpoints.open(tmp_path / "gone")

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "readme.txt").write_text("hello")
        with pytest.raises(DumpError, match=r"expected a checkpoint \(safetensors"):
            checkpoints.open(tmp_path)

    @pytest.mark.parametrize(
        "content", [b"", b"\n", b"hello", b"PK\x03\x04", b"\x93NUMPY", bytes(100), b"\n\x03abc"]
    )
    def test_files_of_something_else(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(DumpError):
            checkpoints.open(tmp_path / "m")

    def test_a_name_in_two_files(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
        save_file({"a": torch.ones(2)}, tmp_path / "y.safetensors")
        with pytest.raises(DumpError, match="holds a more than once"):
            checkpoints.open(tmp_path)


def test_memory_can_be_released_and_read_again(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.arange(1000.0)}, tmp_path / "m.safetensors")
    opened = checkpoints.open(tmp_path / "m.safetensors")
    view = opened.read_raw("a")
    before = view.sum()
    opened.release()
    assert view.sum() == before
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
