"""The same weights in another format, layout or split agree, and no mistake is reported."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.weight_comparison import WeightsResult

from . import layouts
from .conftest import compare_files, pad_vocabulary, save_weights
from .layouts import Weights

torch = pytest.importorskip("torch")

ARGUMENTS = {
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "group_query_attention": True,
    "hidden_size": 64,
    "kv_channels": 8,
    "swiglu": True,
}

HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]


def assert_same(result: WeightsResult, relation: str = "identical") -> None:
    assert [(pair.path, pair.mistake) for pair in result.mistakes] == []
    assert (result.verdict, result.relation) == ("agree", relation)
    assert result.missing == result.unknown == ()
    assert result.coverage > 0.99


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "deepseek", "gpt2"])
def test_files_of_transformers_equal_its_memory(models: Path, name: str) -> None:
    """Stacked experts against single ones, a tied head against none, one file against several."""
    assert_same(compare_files(models / name, models / f"{name}.pt"))


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("te", [False, True], ids=["local", "transformer engine"])
def test_megatron_shards_are_joined(
    tmp_path: Path, models: Path, hugging_face: HuggingFace, tensor: int, stages: int, te: bool
) -> None:
    weights = layouts.convert_to_mcore(*hugging_face("llama"), te=te)
    ranks = layouts.shard_weights(pad_vocabulary(weights), tensor, stages)
    arguments = {**ARGUMENTS, "pipeline_model_parallel_size": stages}
    result = compare_files(layouts.save_megatron(tmp_path, ranks, arguments), models / "llama")

    assert_same(result)
    assert any("[q; k; v] in each of 4 groups" in note for note in result.notes)
    assert any("6 rows more" in note for note in result.notes)


@pytest.mark.parametrize("name", ["qwen3", "mixtral", "deepseek"])
def test_megatron_names_of_other_models(
    tmp_path: Path, models: Path, hugging_face: HuggingFace, name: str
) -> None:
    assert_same(
        compare_files(
            save_weights(tmp_path / "m.safetensors", layouts.convert_to_mcore(*hugging_face(name))),
            models / name,
        )
    )


@pytest.mark.parametrize("name", ["mixtral", "deepseek"])
@pytest.mark.parametrize("axes", [3, 2])
def test_stacked_and_transposed_experts_agree(
    tmp_path: Path, models: Path, hugging_face: HuggingFace, name: str, axes: int
) -> None:
    weights = layouts.convert_to_mcore(*hugging_face(name), grouped_experts=True)
    stacked = {
        n: v.reshape(-1, v.shape[-1]) if ".experts.weight" in n and axes == 2 else v
        for n, v in weights.items()
    }
    file = save_weights(tmp_path / "m.safetensors", stacked)

    assert_same(compare_files(file, models / name))
    assert_same(compare_files(file, models / f"{name}.pt"))


def test_gpt2_is_transposed_and_by_head(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    ranks = layouts.shard_weights(
        layouts.convert_gpt2_to_mcore(*hugging_face("gpt2")), 2, 2, gated=False
    )
    arguments = {"num_attention_heads": 4, "hidden_size": 64, "pipeline_model_parallel_size": 2}
    assert_same(compare_files(layouts.save_megatron(tmp_path, ranks, arguments), models / "gpt2"))


@pytest.mark.parametrize(
    "gate_up", [layouts.interleave_rows, lambda gate, up: np.concatenate([gate, up])]
)
@pytest.mark.parametrize(
    "qkv", [layouts.fuse_qkv_by_group, lambda q, k, v, groups: np.concatenate([q, k, v])]
)
def test_both_layouts_of_mindspore_transformers(
    tmp_path: Path, models: Path, hugging_face: HuggingFace, gate_up: Callable, qkv: Callable
) -> None:
    weights = layouts.convert_to_mcore(*hugging_face("llama"), gate_up=gate_up, qkv=qkv)
    assert_same(compare_files(save_weights(tmp_path / "m.safetensors", weights), models / "llama"))


def test_legacy_names_of_mindspore_transformers(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    legacy = save_weights(
        tmp_path / "m.safetensors", layouts.convert_to_mindformers_legacy(*hugging_face("llama"))
    )
    assert_same(compare_files(legacy, models / "llama"))
    megatron = layouts.shard_weights(layouts.convert_to_mcore(*hugging_face("llama")), 2, 2)
    arguments = {**ARGUMENTS, "pipeline_model_parallel_size": 2}
    assert_same(
        compare_files(legacy, layouts.save_megatron(tmp_path / "megatron", megatron, arguments))
    )


def test_rope_pairs_are_correct_in_files_of_meta(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights = layouts.convert_to_meta(*hugging_face("llama"))
    torch.save(
        {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in weights.items()},
        tmp_path / "consolidated.pt",
    )
    assert_same(compare_files(tmp_path / "consolidated.pt", models / "llama"))


def test_fused_projections_of_mla(tmp_path: Path, models: Path, hugging_face: HuggingFace) -> None:
    weights = layouts.convert_to_mindformers_mla(*hugging_face("deepseek"))
    assert_same(
        compare_files(save_weights(tmp_path / "m.safetensors", weights), models / "deepseek")
    )


def test_mla_in_parts_with_rope_rows_in_halves(tmp_path: Path, hugging_face: HuggingFace) -> None:
    weights, config = hugging_face("deepseek")
    attention = {name: value for name, value in weights.items() if ".self_attn." in name}
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "config.json").write_text(json.dumps(config))
    reference = save_weights(tmp_path / "reference" / "model.safetensors", attention)
    legacy = {**layouts.convert_to_mindformers_legacy_mla(attention, config)}
    # what tells the family: the name of its embedding
    for file, name in (
        (legacy, "model.tok_embeddings.embedding_weight"),
        (attention, "model.embed_tokens.weight"),
    ):
        file[name] = weights["model.embed_tokens.weight"]
    save_weights(reference, attention)
    result = compare_files(save_weights(tmp_path / "legacy.safetensors", legacy), reference)

    assert_same(result)
    assert sum("pairs where" in pair.layout for pair in result.pairs) == 4  # q and k of two layers


def test_fused_projections_of_phi3(tmp_path: Path, models: Path, hugging_face: HuggingFace) -> None:
    assert_same(
        compare_files(
            save_weights(
                tmp_path / "m.safetensors", layouts.convert_to_phi3(*hugging_face("llama"))
            ),
            models / "llama",
        )
    )


def save_ranks(
    folder: Path, ranks: Mapping[str, Mapping[str, Weights]], arguments: Mapping[str, object]
) -> Path:
    """Megatron's folders by name, each with one state dict or several of virtual stages."""
    for name, state in ranks.items():
        place = folder / "iter_0000001" / name
        place.mkdir(parents=True)
        tensors = {
            key: {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in weights.items()}
            for key, weights in state.items()
        }
        torch.save({"args": Namespace(**arguments), **tensors}, place / "model_optim_rng.pt")
    return folder


def test_virtual_pipeline_stages(tmp_path: Path, models: Path, hugging_face: HuggingFace) -> None:
    """Stage 0 holds layers 0 and 2, stage 1 layers 1 and 3."""
    stages = layouts.shard_weights(layouts.convert_to_mcore(*hugging_face("llama")), 1, 4)
    ranks = {
        f"mp_rank_00_{p:03d}": {f"model{v}": stages[0, 2 * v + p] for v in (0, 1)} for p in (0, 1)
    }
    arguments = {**ARGUMENTS, "pipeline_model_parallel_size": 2}
    assert_same(compare_files(save_ranks(tmp_path, ranks, arguments), models / "llama"))


def test_expert_parallel_ranks(tmp_path: Path, models: Path, hugging_face: HuggingFace) -> None:
    """Two experts on each of two ranks, numbered from 0 on both."""
    ranks: dict[str, dict[str, Weights]] = {f"mp_rank_00_{e:03d}": {"model": {}} for e in (0, 1)}
    for name, value in layouts.convert_to_mcore(*hugging_face("mixtral")).items():
        match = re.search(r"local_experts\.(\d)", name)
        for rank in (0, 1):
            if match is None:
                ranks[f"mp_rank_00_{rank:03d}"]["model"][name] = value
            elif int(match[1]) // 2 == rank:
                local_name = name.replace(match[0], f"local_experts.{int(match[1]) % 2}")
                ranks[f"mp_rank_00_{rank:03d}"]["model"][local_name] = value
    arguments = {**ARGUMENTS, "pipeline_model_parallel_size": 1}
    assert_same(compare_files(save_ranks(tmp_path, ranks, arguments), models / "mixtral"))


@pytest.mark.parametrize(("tensor", "experts"), [(2, 1), (1, 2), (2, 2)])
def test_grouped_experts_split_over_ranks(
    tmp_path: Path, models: Path, hugging_face: HuggingFace, tensor: int, experts: int
) -> None:
    """GroupedMLP of Megatron-core declares the bytes of [E, H, 2I] and [E, I, H] as matrices."""
    weights = layouts.convert_to_mcore(*hugging_face("mixtral"), grouped_experts=True)
    ranks: dict[str, dict[str, Weights]] = {}
    for rank in range(experts):
        for (shard, _), model in layouts.shard_weights(weights, tensor, 1).items():
            rank_weights = dict(model)
            for name in [name for name in model if ".experts.weight" in name]:
                stack = np.split(weights[name], experts)[rank]
                if name.endswith("weight1"):
                    gate, up = (
                        np.split(half, tensor, axis=2)[shard] for half in np.split(stack, 2, axis=2)
                    )
                    rank_weights[name] = np.concatenate([gate, up], axis=2).reshape(64, -1)
                else:
                    rank_weights[name] = np.split(stack, tensor, axis=1)[shard].reshape(-1, 64)
            folder = f"mp_rank_{shard:02d}" + (f"_{rank:03d}" if experts > 1 else "")
            ranks[folder] = {"model": rank_weights}
    arguments = {**ARGUMENTS, "pipeline_model_parallel_size": 1, "num_experts": 4}
    assert_same(compare_files(save_ranks(tmp_path, ranks, arguments), models / "mixtral"))


@pytest.mark.parametrize(
    ("change", "relation"),
    [
        (lambda t: t.bfloat16(), "rounded"),
        (lambda t: t.half(), "rounded"),
        (lambda t: t.bfloat16().float(), "rounded"),
        (lambda t: t.double(), "equal"),
    ],
    ids=["bfloat16", "float16", "float32 of bfloat16", "float64"],
)
def test_other_dtypes(tmp_path: Path, models: Path, change: Callable, relation: str) -> None:
    weights = torch.load(models / "llama.pt", weights_only=True)
    torch.save({name: change(value) for name, value in weights.items()}, tmp_path / "other.pt")
    assert_same(compare_files(tmp_path / "other.pt", models / "llama"), relation)


def test_names_that_no_rule_knows_are_paired_by_value(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights, _ = hugging_face("llama")
    renamed = {
        name.replace("model.layers", "trunk.segment").replace("self_attn", "mix"): v
        for name, v in weights.items()
    }
    result = compare_files(save_weights(tmp_path / "m.safetensors", renamed), models / "llama")

    assert_same(result)
    assert any("36 parameters are paired by their values" in note for note in result.notes)
    assert (
        result.correspondence["trunk.segment.2.mix.k_proj.weight"]
        == "model.layers.2.self_attn.k_proj.weight"
    )


def test_layers_with_other_numbers_are_paired(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights, _ = hugging_face("llama")
    for layer in reversed(range(4)):
        weights = {
            name.replace(f".layers.{layer}.", f".layers.{layer + 4}."): v
            for name, v in weights.items()
        }
    result = compare_files(save_weights(tmp_path / "m.safetensors", weights), models / "llama")

    assert_same(result)
    assert any("4 layers before in the reference" in note for note in result.notes)


@pytest.mark.record
@pytest.mark.parametrize("file", ["model.ckpt", "model.safetensors", "ranks"])
def test_files_of_mindspore_agree(mindspore_files: Path, models: Path, file: str) -> None:
    """Also two ranks that MindSpore itself has split, joined with its strategy file."""
    result = compare_files(mindspore_files / file, models / "llama")
    assert_same(result)
    assert any("row by row" in note for note in result.notes)


@pytest.mark.record
@pytest.mark.parametrize("folder", ["legacy", "torch_dist"])
def test_files_of_megatron_core_agree(megatron_files: Path, models: Path, folder: str) -> None:
    """Two tensor-parallel ranks: their files, and Megatron's distributed checkpoint."""
    assert_same(compare_files(megatron_files / folder, models / "llama"))


def subtract_one_from_norms(weights: Weights) -> Weights:
    """Subtract one from every norm, as Megatron-core does with layernorm_zero_centered_gamma."""
    return {
        name: value - np.float32(1) if name.endswith("norm.weight") else value
        for name, value in weights.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "settings", [{"apply_layernorm_1p": True}, {}], ids=["from settings", "from values"]
)
def test_zero_centered_norms_agree_with_others(
    tmp_path: Path,
    models: Path,
    hugging_face: HuggingFace,
    settings: dict[str, bool],
    dtype: torch.dtype,
) -> None:
    weights = layouts.convert_to_mcore(*hugging_face("qwen3"))
    place = tmp_path / "iter_0000001" / "mp_rank_00"
    place.mkdir(parents=True)
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(v)).to(dtype)
        for name, v in subtract_one_from_norms(weights).items()
    }
    arguments = {
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "group_query_attention": True,
        **settings,
    }
    torch.save({"args": Namespace(**arguments), "model": tensors}, place / "model_optim_rng.pt")
    result = compare_files(tmp_path, models / "qwen3")

    # near one, to take one away is exact in float32; the distance in bfloat16 has other bits than a
    # weight rounded once
    assert_same(result, "equal" if dtype == torch.float32 else "noise")
    norms = [pair for pair in result.pairs if "norm" in pair.path]
    assert len(norms) == 9  # q_norm and k_norm among them
    assert all("plus -1: the target stores norm weights minus one" in pair.layout for pair in norms)
    assert {pair.dtypes for pair in norms} == {(str(dtype).removeprefix("torch."), "float32")}
    assert any("norms: " in note and "(9 times)" in note for note in result.notes)


def test_zero_centered_norms_of_gemma_agree_with_each_other_and_with_others(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights, config = hugging_face("llama")
    for name, stored_weights in (
        ("llama", weights),
        ("gemma", subtract_one_from_norms(weights)),
        ("gemma2", subtract_one_from_norms(weights)),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "model_type": name}))
        save_weights(tmp_path / name / "model.safetensors", stored_weights)
    assert_same(compare_files(tmp_path / "gemma", tmp_path / "gemma2"))
    assert_same(compare_files(tmp_path / "llama", tmp_path / "gemma"), "equal")
    assert_same(compare_files(tmp_path / "gemma", tmp_path / "llama"), "equal")
