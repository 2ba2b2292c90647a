"""From Hugging Face to every other layout and back: the final files hold the original bits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from weight_comparison import layouts
from weight_comparison.layouts import Weights

from dumpdiff import checkpoints
from dumpdiff.conversion import SourceOptions
from dumpdiff.model.errors import DumpError
from dumpdiff.weight_comparison import compare

from .conftest import RULES, Convert

torch = pytest.importorskip("torch")

FAMILIES = ("llama", "qwen3", "gpt2", "mixtral", "deepseek")
HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]


def load_written(folder: Path) -> Weights:
    """Return the weights that a conversion to one safetensors file has written."""
    return load_file(folder / "model.safetensors")


def assert_same_bits(weights: Weights, expected: Weights) -> None:
    assert set(weights) == set(expected)
    for name, value in expected.items():
        assert weights[name].dtype == value.dtype
        assert np.array_equal(weights[name], value), name


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("engine", [False, True], ids=["local", "transformer engine"])
@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 2)])
def test_megatron_and_back(
    convert_to: Convert,
    models: Path,
    hugging_face: HuggingFace,
    name: str,
    engine: bool,
    tensor: int,
    stages: int,
) -> None:
    megatron = convert_to(
        "megatron", models / name, tensor=tensor, pipeline=stages, transformer_engine=engine
    )
    assert_same_bits(load_written(convert_to("huggingface", megatron)), hugging_face(name)[0])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("qkv", "gate_up"), [("grouped", "interleaved"), ("concatenated", "concatenated")]
)
def test_mindspore_transformers_and_back(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, name: str, qkv: str, gate_up: str
) -> None:
    mindspore = convert_to("mindspore", models / name, qkv=qkv, gate_up=gate_up)
    back = convert_to("huggingface", mindspore, SourceOptions(qkv=qkv, gate_up=gate_up))
    assert_same_bits(load_written(back), hugging_face(name)[0])


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_older_names_and_back(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, name: str
) -> None:
    mindspore = convert_to("mindspore", models / name, legacy=True)
    megatron = convert_to("megatron", mindspore, legacy=True, tensor=2, pipeline=2)
    assert_same_bits(load_written(convert_to("huggingface", megatron)), hugging_face(name)[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_directly_from_megatron_to_mindspore(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, name: str
) -> None:
    megatron = convert_to("megatron", models / name, tensor=2, pipeline=2)
    assert_same_bits(
        load_written(convert_to("huggingface", convert_to("mindspore", megatron))),
        hugging_face(name)[0],
    )


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "deepseek", "gpt2"])
def test_shards_are_those_of_megatron(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, name: str
) -> None:
    """Every tensor is as an independent split gives it (layouts.py); torch reads the files."""
    weights, config = hugging_face(name)
    unsplit = (
        layouts.convert_gpt2_to_mcore(weights, config)
        if name == "gpt2"
        else layouts.convert_to_mcore(weights, config)
    )
    layers = {int(path.split(".")[2]) for path in unsplit if path.startswith("decoder.layers.")}
    embedding = unsplit["embedding.word_embeddings.weight"]
    n_rows = 256 - len(embedding)
    for path in ("embedding.word_embeddings.weight", "output_layer.weight"):
        if path in unsplit:
            unsplit[path] = np.concatenate(
                [unsplit[path], np.zeros((n_rows, embedding.shape[1]), np.float32)]
            )
    ranks = layouts.shard_weights(unsplit, 2, 2, gated=name != "gpt2")
    if name in ("qwen3", "gpt2"):  # tied: the last stage has its own copy
        for rank in (0, 1):
            ranks[rank, 1]["output_layer.weight"] = ranks[rank, 0][
                "embedding.word_embeddings.weight"
            ]

    folder = convert_to("megatron", models / name, tensor=2, pipeline=2)

    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "release"
    for (rank, stage), expected in ranks.items():
        file = folder / "release" / f"mp_rank_{rank:02d}_{stage:03d}" / "model_optim_rng.pt"
        saved = torch.load(file, weights_only=False)
        weights_of_rank = {path: value.numpy() for path, value in saved["model"].items()}
        assert set(weights_of_rank) == set(expected)
        for path, value in expected.items():
            if "_down_proj" not in path:  # the local spec splits these
                assert np.array_equal(weights_of_rank[path], value), path
        assert saved["args"].num_layers == len(layers)
        assert saved["args"].padded_vocab_size == 256
        assert saved["args"].vocab_size == 250


@pytest.mark.record
def test_megatron_core_has_these_shards(
    convert_to: Convert, models: Path, megatron_files: Path
) -> None:
    """A GPTModel on two ranks loaded and saved the Llama: same names, same bits."""
    folder = convert_to("megatron", models / "llama", tensor=2)
    for rank in (0, 1):
        megatron = checkpoints.open(
            megatron_files / "legacy" / "iter_0000001" / f"mp_rank_{rank:02d}/model_optim_rng.pt"
        )
        converted = checkpoints.open(
            folder / "release" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
        )
        expected = {
            entry.name: megatron.read_array(entry)
            for entry in megatron.entries
            if "_extra_state" not in entry.name
        }
        weights = {entry.name: converted.read_array(entry) for entry in converted.entries}
        assert_same_bits(weights, expected)


def test_layout_of_mindspore_transformers(
    convert_to: Convert, models: Path, hugging_face: HuggingFace
) -> None:
    """Gate and up are interleaved; experts are [experts * hidden, 2 * ffn] with gate before up."""
    llama = layouts.convert_to_mcore(*hugging_face("llama"), gate_up=layouts.interleave_rows)
    assert_same_bits(load_written(convert_to("mindspore", models / "llama")), llama)
    mixtral = layouts.convert_to_mcore(*hugging_face("mixtral"), grouped_experts=True)
    flat = {
        n: v.reshape(-1, v.shape[-1]) if ".experts.weight" in n else v for n, v in mixtral.items()
    }
    assert_same_bits(load_written(convert_to("mindspore", models / "mixtral")), flat)


def test_metas_rope_pairs_become_halves(
    tmp_path: Path, convert_to: Convert, models: Path, hugging_face: HuggingFace
) -> None:
    weights, config = hugging_face("llama")
    meta = {
        n: torch.from_numpy(np.ascontiguousarray(v))
        for n, v in layouts.convert_to_meta(weights, config).items()
    }
    torch.save(meta, tmp_path / "consolidated.pt")
    back = convert_to("huggingface", tmp_path / "consolidated.pt", SourceOptions(heads=8, groups=4))
    assert_same_bits(load_written(back), weights)


def test_bfloat16_is_unchanged(tmp_path: Path, convert_to: Convert, models: Path) -> None:
    import safetensors.torch

    source = tmp_path / "source"
    source.mkdir()
    half = {
        name: value.bfloat16()
        for name, value in torch.load(models / "llama.pt", weights_only=True).items()
    }
    safetensors.torch.save_file(half, source / "model.safetensors")
    (source / "config.json").write_text((models / "llama" / "config.json").read_text())

    back = convert_to("huggingface", convert_to("megatron", source, tensor=2))
    restored = safetensors.torch.load_file(back / "model.safetensors")
    assert all(torch.equal(restored[name], value) for name, value in half.items())
    assert json.loads((back / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_padding_is_dropped_if_the_true_size_is_given(
    tmp_path: Path, convert_to: Convert, hugging_face: HuggingFace
) -> None:
    weights, _ = hugging_face("llama")
    padded = {
        n: np.concatenate([v, np.zeros((6, v.shape[1]), np.float32)])
        if "embed" in n or "lm_head" in n
        else v
        for n, v in weights.items()
    }
    save_file(padded, tmp_path / "model.safetensors")
    assert_same_bits(
        load_written(convert_to("huggingface", tmp_path / "model.safetensors")), padded
    )
    back = convert_to("huggingface", tmp_path / "model.safetensors", SourceOptions(vocabulary=250))
    assert_same_bits(load_written(back), weights)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama", {"pipeline": 2, "stage_layers": (1, 3)}),
        ("llama", {"tensor": 2, "pipeline": 2, "virtual": 2}),
        ("llama", {"pipeline": 2, "virtual": 2, "stage_layers": (1, 2, 0, 1)}),
        ("gpt2", {"pipeline": 2, "stage_layers": (2, 0)}),
        ("mixtral", {"expert": 2}),
        ("mixtral", {"tensor": 2, "pipeline": 2, "expert": 2}),
        ("mixtral", {"tensor": 2, "expert": 4, "expert_tensor": 1}),
        ("deepseek", {"tensor": 4, "pipeline": 2, "expert": 2, "expert_tensor": 2}),
    ],
)
def test_every_split_of_layers_and_experts_and_back(
    convert_to: Convert,
    models: Path,
    hugging_face: HuggingFace,
    name: str,
    sizes: Mapping[str, object],
) -> None:
    megatron = convert_to("megatron", models / name, **sizes)
    assert_same_bits(load_written(convert_to("huggingface", megatron)), hugging_face(name)[0])


@pytest.mark.parametrize("is_fused", [False, True], ids=["separate", "fused as by MindSpeed"])
def test_down_projections_of_latent_attention_on_every_rank(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, is_fused: bool
) -> None:
    """With Transformer Engine and in MindSpeed, all ranks have the whole q_a and kv_a."""
    folder = convert_to("megatron", models / "deepseek", tensor=2, transformer_engine=True)
    for file in folder.rglob("*.pt") if is_fused else ():
        content = torch.load(file, weights_only=False)
        model = content["model"]
        for name in [name for name in model if "linear_q_down_proj" in name]:
            other = name.replace("linear_q_down_proj", "linear_kv_down_proj")
            fused = name.replace("linear_q_down_proj", "linear_qkv_down_proj")
            model[fused] = torch.cat([model.pop(name), model.pop(other)])
        torch.save(content, file)
    result = compare(checkpoints.open(folder), checkpoints.open(models / "deepseek"), RULES)
    assert (result.verdict, result.relation, result.mistakes) == ("agree", "identical", ())
    assert result.coverage == 1
    back = convert_to("huggingface", folder)
    assert_same_bits(load_written(back), hugging_face("deepseek")[0])


@pytest.fixture(scope="session")
def predicting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLM-4-MoE of two layers, and a third that predicts a further token.

    transformers has no class for such a layer, so its weights are added to the file with the names
    that the published files have.
    """
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    folder = tmp_path_factory.mktemp("predicting") / "model"
    attention = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 250}
    special_tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = Glm4MoeConfig(
        **attention, **experts, **sizes, **special_tokens, use_qk_norm=True, first_k_dense_replace=1
    )
    torch.manual_seed(5)
    Glm4MoeForCausalLM(config).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    random = np.random.default_rng(5)
    layer = {
        name.replace(".1.", ".2.", 1): random.standard_normal(value.shape, np.float32)
        for name, value in weights.items()
        if name.startswith("model.layers.1.")
    }
    norms = ("enorm", "hnorm", "shared_head.norm")
    layer |= {f"model.layers.2.{n}.weight": random.standard_normal(64, np.float32) for n in norms}
    layer["model.layers.2.eh_proj.weight"] = random.standard_normal((64, 128), np.float32)
    layer["model.layers.2.embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    layer["model.layers.2.shared_head.head.weight"] = weights["lm_head.weight"]
    save_file({**weights, **layer}, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    settings["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("engine", [False, True], ids=["local", "transformer engine"])
@pytest.mark.parametrize("sizes", [{}, {"tensor": 2, "pipeline": 2, "expert": 2}])
def test_layers_of_multi_token_prediction_and_back(
    convert_to: Convert, predicting_model: Path, engine: bool, sizes: Mapping[str, object]
) -> None:
    megatron = convert_to("megatron", predicting_model, transformer_engine=engine, **sizes)
    assert checkpoints.open(megatron).settings["mtp_num_layers"] == 1
    back = convert_to("huggingface", megatron)
    assert_same_bits(load_written(back), load_written(predicting_model))
    assert json.loads((back / "config.json").read_text())["num_nextn_predict_layers"] == 1


def test_a_prediction_layer_with_its_own_head_is_refused(
    tmp_path: Path, convert_to: Convert, predicting_model: Path
) -> None:
    weights = load_written(predicting_model)
    weights["model.layers.2.shared_head.head.weight"][0, 0] += 1
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((predicting_model / "config.json").read_text())
    with pytest.raises(DumpError, match=r"layers\.2\.shared_head\.head\.weight is not the model's"):
        convert_to("megatron", tmp_path)


@pytest.mark.record
def test_megatron_core_loads_every_rank(
    convert_to: Convert, models: Path, predicting_model: Path
) -> None:
    """Real GPTModels of all ranks, one after the other: names, shapes, layers and experts."""
    folders = [
        convert_to("megatron", models / "mixtral", tensor=2, expert=4, expert_tensor=1),
        convert_to("megatron", models / "llama", tensor=2, pipeline=2, virtual=2),
        convert_to("megatron", models / "llama", pipeline=2, virtual=2, stage_layers=(1, 2, 0, 1)),
        convert_to("megatron", predicting_model, pipeline=2),
    ]
    script = Path(__file__).parent / "megatron_ranks.py"
    process = subprocess.run(
        [sys.executable, script, *folders], capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stderr[-2000:]

    shared_experts, virtual_stages, uneven_stages, predicting = json.loads(process.stdout)
    assert {place: rank["experts"] for place, rank in shared_experts.items()} == {
        "mp_rank_00_000": [[0], [0]],
        "mp_rank_01_001": [[1], [1]],
        "mp_rank_00_002": [[2], [2]],
        "mp_rank_01_003": [[3], [3]],
    }
    assert {place: rank["layers"] for place, rank in virtual_stages.items()} == {
        "mp_rank_00_000": [[0], [2]],
        "mp_rank_01_000": [[0], [2]],
        "mp_rank_00_001": [[1], [3]],
        "mp_rank_01_001": [[1], [3]],
    }
    assert {place: rank["layers"] for place, rank in uneven_stages.items()} == {
        "mp_rank_00_000": [[0], []],
        "mp_rank_00_001": [[1, 2], [3]],
    }
    assert {place: rank["layers"] for place, rank in predicting.items()} == {
        "mp_rank_00_000": [[0]],
        "mp_rank_00_001": [[1]],
    }
