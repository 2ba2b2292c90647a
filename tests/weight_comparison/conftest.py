"""Real checkpoints, created once per session: tiny models, saved by several frameworks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dumpdiff import checkpoints
from dumpdiff.rulebook import load_rules
from dumpdiff.weight_comparison import WeightsResult, compare

from .layouts import Weights, convert_to_mcore, shard_weights

HERE = Path(__file__).parent
RULES = load_rules()


def run_script(name: str, *arguments: object) -> None:
    """Run a script of this folder in a separate process: imports are slow, and share no state."""
    process = subprocess.run(
        [sys.executable, HERE / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Hugging Face checkpoints of models.py, and NAME.pt with the memory."""
    folder = tmp_path_factory.mktemp("models")
    run_script("models.py", folder)
    return folder


@pytest.fixture(scope="session")
def hugging_face(models: Path) -> Callable[[str], tuple[Weights, Mapping[str, object]]]:
    """``hugging_face("llama")``: weights by name, read with safetensors, and the config."""

    @cache
    def read(name: str) -> tuple[Weights, Mapping[str, object]]:
        weights: Weights = {}
        for file in sorted((models / name).glob("*.safetensors")):
            weights |= load_file(file)
        return weights, json.loads((models / name / "config.json").read_text())

    return read


@pytest.fixture(scope="session")
def mindspore_files(
    tmp_path_factory: pytest.TempPathFactory, hugging_face: Callable[..., tuple]
) -> Path:
    """The Llama written by MindSpore, in the layout of MindSpore Transformers."""
    from .layouts import interleave_rows

    folder = tmp_path_factory.mktemp("mindspore")
    weights, config = hugging_face("llama")
    np.savez(folder / "weights.npz", **convert_to_mcore(weights, config, gate_up=interleave_rows))
    run_script("mindspore_files.py", folder / "weights.npz", folder)
    return folder


@pytest.fixture(scope="session")
def megatron_files(
    tmp_path_factory: pytest.TempPathFactory, hugging_face: Callable[..., tuple]
) -> Path:
    """The Llama written by Megatron-core on two tensor-parallel ranks."""
    import torch

    folder = tmp_path_factory.mktemp("megatron")
    weights, config = hugging_face("llama")
    for (rank, _), shard in shard_weights(
        pad_vocabulary(convert_to_mcore(weights, config)), 2, 1
    ).items():
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in shard.items()
        }
        torch.save(tensors, folder / f"shard_{rank}.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, HERE / "megatron_files.py", folder, str(port)]
    ranks = [
        subprocess.Popen([*command, str(rank), "2"], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for rank in ranks:
        _, error_output = rank.communicate(timeout=300)
        assert rank.returncode == 0, error_output[-2000:]
    return folder


def pad_vocabulary(weights: Weights, rows: int = 6) -> Weights:
    """Append rows of zeros to embedding and head, as Megatron pads a vocabulary."""
    padded_weights = dict(weights)
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        padded_weights[name] = np.concatenate(
            [padded_weights[name], np.zeros((rows, padded_weights[name].shape[1]), np.float32)]
        )
    return padded_weights


def save_weights(file: Path, weights: Weights) -> Path:
    """Write a safetensors file with the package of that name."""
    save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, file)
    return file


def compare_files(target: Path, reference: Path) -> WeightsResult:
    return compare(checkpoints.open(target), checkpoints.open(reference), RULES)
