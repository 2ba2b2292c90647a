"""From Hugging Face to every other layout and back: the files that come back hold the bits that went in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from weight_comparison import layouts
from weight_comparison.layouts import Weights

from dumpdiff import checkpoints
from dumpdiff.conversion import SourceOptions

from .conftest import To

torch = pytest.importorskip("torch")

FAMILIES = ("llama", "qwen3", "gpt2", "mixtral", "deepseek")
HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]


def written(folder: Path) -> Weights:
    return load_file(folder / "model.safetensors")


def assert_same_bits(found: Weights, wanted: Weights) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("engine", [False, True], ids=["local", "transformer engine"])
@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 2)])
def test_megatron_and_back(
    to: To,
    models: Path,
    hugging_face: HuggingFace,
    name: str,
    engine: bool,
    tensor: int,
    stages: int,
) -> None:
    megatron = to(
        "megatron", models / name, tensor=tensor, stages=stages, transformer_engine=engine
    )
    assert_same_bits(written(to("huggingface", megatron)), hugging_face(name)[0])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("qkv", "gate_up"), [("grouped", "interleaved"), ("concatenated", "concatenated")]
)
def test_mindspore_transformers_and_back(
    to: To, models: Path, hugging_face: HuggingFace, name: str, qkv: str, gate_up: str
) -> None:
    mindspore = to("mindspore", models / name, qkv=qkv, gate_up=gate_up)
    back = to("huggingface", mindspore, SourceOptions(qkv=qkv, gate_up=gate_up))
    assert_same_bits(written(back), hugging_face(name)[0])


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_older_names_and_back(to: To, models: Path, hugging_face: HuggingFace, name: str) -> None:
    mindspore = to("mindspore", models / name, legacy=True)
    megatron = to("megatron", mindspore, legacy=True, tensor=2, stages=2)
    assert_same_bits(written(to("huggingface", megatron)), hugging_face(name)[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_straight_from_megatron_to_mindspore(
    to: To, models: Path, hugging_face: HuggingFace, name: str
) -> None:
    megatron = to("megatron", models / name, tensor=2, stages=2)
    assert_same_bits(written(to("huggingface", to("mindspore", megatron))), hugging_face(name)[0])


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "deepseek", "gpt2"])
def test_shards_are_as_megatron_keeps_them(
    to: To, models: Path, hugging_face: HuggingFace, name: str
) -> None:
    """Name by name what an independent cut of the weights gives: tests/weights/layouts.py; read by torch itself."""
    weights, config = hugging_face(name)
    whole = (
        layouts.convert_gpt2_to_mcore(weights, config) if name == "gpt2" else layouts.convert_to_mcore(weights, config)
    )
    layers = {int(path.split(".")[2]) for path in whole if path.startswith("decoder.layers.")}
    table = whole["embedding.word_embeddings.weight"]
    rows = 256 - len(table)
    for path in ("embedding.word_embeddings.weight", "output_layer.weight"):
        if path in whole:
            whole[path] = np.concatenate(
                [whole[path], np.zeros((rows, table.shape[1]), np.float32)]
            )
    ranks = layouts.shard_weights(whole, 2, 2, gated=name != "gpt2")
    if name in ("qwen3", "gpt2"):  # tied: the last stage has a copy of its own
        for rank in (0, 1):
            ranks[rank, 1]["output_layer.weight"] = ranks[rank, 0][
                "embedding.word_embeddings.weight"
            ]

    folder = to("megatron", models / name, tensor=2, stages=2)

    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "release"
    for (rank, stage), wanted in ranks.items():
        file = folder / "release" / f"mp_rank_{rank:02d}_{stage:03d}" / "model_optim_rng.pt"
        saved = torch.load(file, weights_only=False)
        found = {path: value.numpy() for path, value in saved["model"].items()}
        local = {
            path: value for path, value in wanted.items() if "_down_proj" not in path
        }  # the local spec cuts these
        assert set(found) == set(wanted)
        for path, value in local.items():
            assert np.array_equal(found[path], value), path
        assert saved["args"].num_layers == len(layers)
        assert saved["args"].padded_vocab_size == 256
        assert saved["args"].vocab_size == 250


@pytest.mark.record
def test_megatron_core_itself_has_these_shards(to: To, models: Path, megatron_files: Path) -> None:
    """A GPTModel on two ranks loaded and saved the Llama: the same names, the same bits."""
    folder = to("megatron", models / "llama", tensor=2)
    for rank in (0, 1):
        theirs = checkpoints.open(
            megatron_files / "legacy" / "iter_0000001" / f"mp_rank_{rank:02d}/model_optim_rng.pt"
        )
        ours = checkpoints.open(folder / "release" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
        wanted = {
            entry.name: theirs.read_array(entry)
            for entry in theirs.entries
            if "_extra_state" not in entry.name
        }
        assert_same_bits({entry.name: ours.read_array(entry) for entry in ours.entries}, wanted)


def test_layout_of_mindspore_transformers(to: To, models: Path, hugging_face: HuggingFace) -> None:
    """Name by name, bit by bit: gate and up row by row; experts as [experts * hidden, 2 * ffn], gate before up."""
    llama = layouts.convert_to_mcore(*hugging_face("llama"), gate_up=layouts.interleave_rows)
    assert_same_bits(written(to("mindspore", models / "llama")), llama)
    mixtral = layouts.convert_to_mcore(*hugging_face("mixtral"), grouped_experts=True)
    flat = {
        n: v.reshape(-1, v.shape[-1]) if ".experts.weight" in n else v for n, v in mixtral.items()
    }
    assert_same_bits(written(to("mindspore", models / "mixtral")), flat)


def test_metas_rope_pairs_become_halves(
    tmp_path: Path, to: To, models: Path, hugging_face: HuggingFace
) -> None:
    weights, config = hugging_face("llama")
    meta = {
        n: torch.from_numpy(np.ascontiguousarray(v))
        for n, v in layouts.convert_to_meta(weights, config).items()
    }
    torch.save(meta, tmp_path / "consolidated.pt")
    back = to("huggingface", tmp_path / "consolidated.pt", SourceOptions(heads=8, groups=4))
    assert_same_bits(written(back), weights)


def test_bfloat16_stays_as_it_is(tmp_path: Path, to: To, models: Path) -> None:
    import safetensors.torch

    source = tmp_path / "source"
    source.mkdir()
    half = {
        name: value.bfloat16()
        for name, value in torch.load(models / "llama.pt", weights_only=True).items()
    }
    safetensors.torch.save_file(half, source / "model.safetensors")
    (source / "config.json").write_text((models / "llama" / "config.json").read_text())

    back = to("huggingface", to("megatron", source, tensor=2))
    found = safetensors.torch.load_file(back / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in half.items())
    assert json.loads((back / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_padding_is_dropped_where_the_true_size_is_given(
    tmp_path: Path, to: To, hugging_face: HuggingFace
) -> None:
    weights, _ = hugging_face("llama")
    padded = {
        n: np.concatenate([v, np.zeros((6, v.shape[1]), np.float32)])
        if "embed" in n or "lm_head" in n
        else v
        for n, v in weights.items()
    }
    save_file(padded, tmp_path / "model.safetensors")
    assert_same_bits(written(to("huggingface", tmp_path / "model.safetensors")), padded)
    back = to("huggingface", tmp_path / "model.safetensors", SourceOptions(vocabulary=250))
    assert_same_bits(written(back), weights)
