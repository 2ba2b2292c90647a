"""Write seeds.tar.xz: one small checkpoint of every format, and a dataset of Megatron.

``python tests/fuzz/record_seeds.py``, with torch, mindspore and safetensors installed.
"""

from __future__ import annotations

import io
import struct
import tarfile
import tempfile
from argparse import Namespace
from pathlib import Path

import mindspore
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save_file

ARCHIVE = Path(__file__).with_name("seeds.tar.xz")


def main() -> None:
    """Write the archive."""
    draw = np.random.default_rng(0)
    arrays = {
        "layers.0.weight": draw.standard_normal((4, 3)).astype(np.float32),
        "layers.0.bias": draw.standard_normal(4).astype(np.float32),
        "steps": np.array([1, 2], np.int64),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file(arrays, folder / "model.safetensors")
        np.savez(folder / "model.npz", **arrays)
        np.savez(folder / "batch.npz", tokens=np.arange(32).reshape(2, 16))
        np.save(folder / "weight.npy", arrays["layers.0.weight"])
        torch.save(tensors, folder / "model.pt")
        torch.save(tensors["layers.0.weight"].bfloat16(), folder / "tensor.pt")
        mindspore.save_checkpoint(
            [{"name": name, "data": mindspore.Tensor(array)} for name, array in arrays.items()],
            str(folder / "model.ckpt"),
        )
        rank_folder = folder / "megatron" / "iter_0000001" / "mp_rank_00"
        rank_folder.mkdir(parents=True)
        (folder / "megatron" / "latest_checkpointed_iteration.txt").write_text("1")
        arguments = Namespace(num_layers=1, hidden_size=4, tensor_model_parallel_size=1)
        torch.save(
            {"args": arguments, "iteration": 1, "model": tensors},
            rank_folder / "model_optim_rng.pt",
        )
        dcp.save({"model": tensors}, checkpoint_id=folder / "torch_dist", no_dist=True)
        write_dataset(folder)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    add_file(archive, path, folder)


def write_dataset(folder: Path) -> None:
    """Write data.bin and data.idx as Megatron-LM does: two sequences of token ids."""
    lengths = np.array([40, 50], "<i4")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 2, 3)
    offsets, borders = np.array([0, 80], "<i8"), np.array([0, 1, 2], "<i8")
    index = header + lengths.tobytes() + offsets.tobytes() + borders.tobytes()
    (folder / "data.idx").write_bytes(index)
    (folder / "data.bin").write_bytes(np.arange(90, dtype="<u2").tobytes())


def add_file(archive: tarfile.TarFile, path: Path, folder: Path) -> None:
    """Add a file without the time and owner of the recording."""
    info = tarfile.TarInfo(str(path.relative_to(folder)))
    content = path.read_bytes()
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main()
