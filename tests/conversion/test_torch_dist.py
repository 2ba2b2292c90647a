"""Distributed checkpoints as a target: read by torch, by Megatron-core on two ranks, and here."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from weight_comparison.layouts import Weights

from dumpdiff.conversion import ParallelSizes, TargetOptions, torch_dist_writer
from dumpdiff.conversion.rows import OutputTensor, Rows
from dumpdiff.model.errors import DumpError
from dumpdiff.weight_comparison.matrix import Matrix

from .conftest import Convert, convert_folder

torch = pytest.importorskip("torch")

HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "deepseek"])
@pytest.mark.parametrize("engine", [False, True], ids=["local", "transformer engine"])
def test_there_and_back(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, name: str, engine: bool
) -> None:
    megatron = convert_to("megatron", models / name, is_distributed=True, transformer_engine=engine)
    files = {file.name for file in (megatron / "release").iterdir()}
    assert files == {".metadata", "__0_0.distcp", "common.pt", "metadata.json"}
    assert (megatron / "latest_checkpointed_iteration.txt").read_text() == "release"
    written = load_file(convert_to("huggingface", megatron) / "model.safetensors")
    expected = hugging_face(name)[0]
    assert set(written) == set(expected)
    for key, value in expected.items():
        assert np.array_equal(written[key], value), key


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_loads_it(convert_to: Convert, models: Path, hugging_face: HuggingFace) -> None:
    """torch.distributed.checkpoint, into tensors that hold all layers."""
    from torch.distributed import checkpoint

    megatron = convert_to("megatron", models / "llama", is_distributed=True)
    weights, config = hugging_face("llama")
    n_layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    down = torch.empty(n_layers, hidden, config["intermediate_size"])
    norm = torch.empty(hidden)
    state = {"decoder.layers.mlp.linear_fc2.weight": down, "decoder.final_layernorm.weight": norm}
    checkpoint.load(state, checkpoint_id=str(megatron / "release"), no_dist=True)
    for layer in range(n_layers):
        expected = weights[f"model.layers.{layer}.mlp.down_proj.weight"]
        assert np.array_equal(down[layer].numpy(), expected)
    assert np.array_equal(norm.numpy(), weights["model.norm.weight"])


@pytest.mark.record
def test_two_ranks_of_megatron_core_load_their_shares(
    convert_to: Convert, models: Path, mamba: Path
) -> None:
    """Dense layers are one tensor; layers with experts or mixers are tensors of their own."""
    folders: list[Path] = []
    for source in (models / "llama", models / "mixtral", mamba):
        folders.append(convert_to("megatron", source, is_distributed=True, divisible_by=256))
        folders.append(convert_to("megatron", source, tensor=2))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).parent / "distributed_ranks.py"
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(port), str(rank), "2", *folders],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-2000:]
        assert all(int(count) > 20 for count in output.split())
        assert len(output.split()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TargetOptions("huggingface", is_distributed=True), "only Megatron-core has such files"),
        (TargetOptions("megatron", legacy=True, is_distributed=True), "only Megatron-core"),
        (
            TargetOptions("megatron", sizes=ParallelSizes(tensor=2), is_distributed=True),
            "its tensors are whole, .*leave out --tp",
        ),
    ],
)
def test_options_that_contradict_it_are_refused(
    models: Path, tmp_path: Path, options: TargetOptions, message: str
) -> None:
    with pytest.raises(DumpError, match=message):
        convert_folder(models / "llama", tmp_path / "out", options)


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    tensors = []
    for layer, n_rows in enumerate((4, 5)):
        rows = Rows.from_matrix(Matrix.from_array(np.ones((n_rows, 3), "f4"), "float32"), False)
        name = f"decoder.layers.{layer}.mlp.linear_fc2.weight"
        tensors.append(OutputTensor(name, "float32", (n_rows, 3), (rows,)))
    with pytest.raises(
        DumpError, match=r"decoder\.layers\.mlp\.linear_fc2\.weight: torch_dist has"
    ):
        torch_dist_writer.write_files(tmp_path / ".metadata", tensors, lambda size: None)
    assert not (tmp_path / ".metadata").exists()
