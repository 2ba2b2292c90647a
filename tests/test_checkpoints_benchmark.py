"""Families of models: a correct pair of two frameworks is the same, bit for bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from dumpdiff import checkpoints
from dumpdiff.rulebook import load_rules
from dumpdiff.weight_comparison import WeightsResult, compare

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RULES = load_rules()


@pytest.fixture(scope="module")
def modules() -> tuple[ModuleType, ModuleType]:
    """Return the benchmark's models and its layouts of Megatron.

    The benchmark gets another name, because tests/checkpoints has its own.
    """
    name = "benchmark_of_checkpoints"
    folder = BENCHMARKS / "checkpoints"
    spec = spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[name] = module_from_spec(spec)
    return import_module(f"{name}.models"), import_module(f"{name}.layouts")


def save_pair(modules: tuple[ModuleType, ModuleType], family: str, folder: Path) -> None:
    """Write a family as transformers and as Megatron store it."""
    models, layouts = modules
    source = folder / "transformers"
    models.build_model(family).save_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    roles = layouts.read_roles(family, models.read_weights(source), config)
    weights = layouts.write_megatron(family, roles, config)
    arguments = layouts.build_arguments(family, config, weights)
    layouts.save_megatron(folder / "megatron", weights, arguments)


def compare_folders(target: Path, reference: Path) -> WeightsResult:
    return compare(checkpoints.open(target), checkpoints.open(reference), RULES)


@pytest.mark.parametrize(
    "family",
    [
        "Gemma 2",  # norms behind attention and MLP, stored minus one
        "Gemma 3",
        "GLM-4",
        "Falcon",  # a padded vocabulary under another name
        "Falcon (groups)",
        "BLOOM",
        "gpt-oss",  # gate and up in turn, sinks
        "Mamba 2",
        "OLMo2",  # norms with the names of Llama in other places
    ],
)
def test_a_correct_pair_is_identical(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, family: str
) -> None:
    save_pair(modules, family, tmp_path)
    for sides in (("megatron", "transformers"), ("transformers", "megatron")):
        result = compare_folders(*(tmp_path / side for side in sides))
        assert (result.verdict, result.relation) == ("agree", "identical"), result.mistakes
        assert result.coverage == 1


def shard_mamba(name: str, value: np.ndarray, rank: int) -> np.ndarray:
    """Return the share of one of two ranks, as Megatron's mixer initializes and saves it."""
    module = name.split("mixer.")[-1].removesuffix(".weight").removesuffix(".bias")
    inner, state, heads = 8 * 16, 2 * 16, 8
    sizes = {
        "in_proj": (inner, inner, state, state, heads),
        "conv1d": (inner, state, state),
        "norm": (inner,),
        "A_log": (heads,),
        "D": (heads,),
        "dt_bias": (heads,),
    }
    if "mixer." in name and module in sizes:
        parts = np.split(value, np.cumsum(sizes[module])[:-1])
        return np.concatenate([np.split(part, 2)[rank] for part in parts])
    if "embedding" in name or "output_layer" in name:
        return np.split(value, 2)[rank]
    return np.split(value, 2, axis=1)[rank] if module == "out_proj" else value


def test_mamba_on_two_tensor_parallel_ranks_is_identical(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    """Each rank has its own z, x, B, C and dt."""
    models, layouts = modules
    models.build_model("Mamba 2").save_pretrained(tmp_path / "transformers")
    config = json.loads((tmp_path / "transformers" / "config.json").read_text())
    roles = layouts.read_roles("Mamba 2", models.read_weights(tmp_path / "transformers"), config)
    weights = layouts.write_megatron("Mamba 2", roles, config)
    arguments = layouts.build_arguments("Mamba 2", config, weights)
    for rank in (0, 1):
        shares = {name: shard_mamba(name, value, rank) for name, value in weights.items()}
        rank_folder = tmp_path / "megatron" / "iter_0000010" / f"mp_rank_0{rank}"
        rank_folder.mkdir(parents=True)
        layouts.save_megatron(tmp_path / f"rank_{rank}", shares, arguments)
        file = tmp_path / f"rank_{rank}" / "iter_0000010" / "mp_rank_00" / "model_optim_rng.pt"
        file.rename(rank_folder / file.name)
    result = compare_folders(tmp_path / "megatron", tmp_path / "transformers")
    assert (result.verdict, result.relation, result.mistakes) == ("agree", "identical", ())
    assert not result.problems


@pytest.mark.parametrize("family", ["Qwen3-Next", "Qwen2.5-VL"])
def test_the_names_and_stacks_of_memory_are_those_of_the_files(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, family: str
) -> None:
    """In memory, experts are stacked, and text and vision have other names than in the files."""
    models, layouts = modules
    model = models.build_model(family)
    model.save_pretrained(tmp_path / "transformers")
    memory = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    target = layouts.save_memory(tmp_path / "memory.pt", memory)
    result = compare_folders(target, tmp_path / "transformers")
    assert (result.verdict, result.relation, result.coverage) == ("agree", "identical", 1)
    assert not result.missing
    assert not result.unknown
    roles, keys = layouts.read_memory(family, memory)
    layer = max(layer for layer, role, _ in roles.weights if role == "out")
    roles.weights[layer, "out", "weight"] = 2 * roles.weights[layer, "out", "weight"]
    wrong = layouts.save_memory(tmp_path / "wrong.pt", layouts.write_memory(memory, roles, keys))
    (pair,) = compare_folders(wrong, tmp_path / "transformers").mistakes
    assert pair.mistake.kind == "scaled"


def test_gemma_is_recognized_without_a_configuration(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    save_pair(modules, "Gemma 2", tmp_path)
    (tmp_path / "transformers" / "config.json").unlink()
    result = compare_folders(tmp_path / "megatron", tmp_path / "transformers")
    assert not result.mistakes
    assert not result.missing


def test_vit_of_timm_has_one_weight_for_query_key_and_value(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    models, layouts = modules
    models.build_model("ViT").save_pretrained(tmp_path / "transformers")
    weights = models.read_weights(tmp_path / "transformers")
    roles = layouts.read_roles("ViT", weights, {})
    timm = layouts.save_timm(tmp_path / "timm.safetensors", layouts.write_timm(roles))
    result = compare_folders(timm, tmp_path / "transformers")
    assert (result.verdict, result.relation) == ("agree", "identical")
    by_head = layouts.write_timm(roles, 8, layouts.fuse_by_group)
    wrong = layouts.save_timm(tmp_path / "by_head.safetensors", by_head)
    result = compare_folders(wrong, tmp_path / "transformers")
    assert {pair.mistake.kind for pair in result.mistakes} == {"qkv-order"}


@pytest.mark.parametrize(
    ("transposed", "wrong"),
    [
        ((2,), (2,)),
        ((0, 1), (2,)),
        ((0, 1, 2), ()),  # an unknown family may store all of them so
    ],
)
def test_a_layer_that_is_transposed_unlike_the_others_is_a_mistake(
    modules: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    transposed: tuple[int, ...],
    wrong: tuple[int, ...],
) -> None:
    models, layouts = modules
    models.build_model("Mamba 2").save_pretrained(tmp_path / "transformers")
    config = json.loads((tmp_path / "transformers" / "config.json").read_text())
    weights = models.read_weights(tmp_path / "transformers")
    roles = layouts.read_roles("Mamba 2", weights, config)
    for layer in transposed:
        roles.weights[layer, "out", "weight"] = roles.weights[layer, "out", "weight"].T
    megatron = layouts.write_megatron("Mamba 2", roles, config)
    layouts.save_megatron(
        tmp_path / "megatron", megatron, layouts.build_arguments("Mamba 2", config, megatron)
    )
    result = compare_folders(tmp_path / "megatron", tmp_path / "transformers")
    assert {(pair.path, pair.mistake.kind) for pair in result.mistakes} == {
        (f"layers.{layer}.mixer.out_proj.weight", "transposed") for layer in wrong
    }


def test_copies_of_a_shared_embedding_are_no_other_weights(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    """In memory T5 has its embedding under four names, in the file under one."""
    model = modules[0].build_model("T5")
    model.save_pretrained(tmp_path / "t5")
    torch.save(model.state_dict(), tmp_path / "t5.pt")
    result = compare_folders(tmp_path / "t5.pt", tmp_path / "t5")
    assert (result.verdict, result.relation) == ("agree", "identical")
    assert "lm_head.weight: a copy of shared.weight, which is compared" in result.notes
    state = model.state_dict()
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    torch.save(state, tmp_path / "drifted.pt")
    assert compare_folders(tmp_path / "drifted.pt", tmp_path / "t5").unknown == ("lm_head.weight",)


@pytest.mark.record
def test_megatron_core_and_transformers_compute_what_the_arguments_say() -> None:
    """Settings of the model that a checkpoint does not show: the logits are those of the source."""
    command = [sys.executable, "-m", "checkpoints", "--only", ","]  # all variants, no family
    process = subprocess.run(
        command, cwd=BENCHMARKS, capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in process.stdout.splitlines()]
    rows = [row for row in rows if ", " in row[0]]
    assert len(rows) == 21
    for name, megatron, mindspore in rows:
        errors = [float(error) for error in re.findall(r"(?:logits|core) ([\d.e-]+)", megatron)]
        assert len(errors) == 2, name
        assert max(errors) < 1e-5, name
        assert mindspore.startswith(("identical, logits 0", "refused")), name
