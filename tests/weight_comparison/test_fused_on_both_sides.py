"""Fused weights of two families: the rows each family reads count, not equal bytes."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.weight_comparison import WeightsResult
from dumpdiff.weight_comparison.summary import format_headline

from . import layouts
from .conftest import compare_files, save_weights
from .layouts import Weights

torch = pytest.importorskip("torch")

HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]
Pair = tuple[Path, Path]


def concatenate_qkv(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    return np.concatenate([q, k, v])


def save_megatron(folder: Path, weights: Weights, arguments: Mapping[str, object]) -> Path:
    place = folder / "iter_0000001" / "mp_rank_00"
    place.mkdir(parents=True)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in weights.items()}
    torch.save({"args": Namespace(**arguments), "model": tensors}, place / "model_optim_rng.pt")
    return folder


@pytest.fixture
def make_pair(tmp_path: Path, hugging_face: HuggingFace, models: Path) -> Callable[..., Pair]:
    """Return a Megatron checkpoint and one of Hugging Face; both have a fused QKV."""

    def make(family: str, *, is_copied: bool, has_config: bool = True) -> Pair:
        if family == "gpt2":
            weights, config = hugging_face("gpt2")
            converted = layouts.convert_gpt2_to_mcore(weights, config)
            if is_copied:
                for name in [name for name in converted if "linear_qkv" in name]:
                    source = name.replace("decoder.layers.", "transformer.h.")
                    source = source.replace("self_attention.linear_qkv", "attn.c_attn")
                    converted[name] = weights[source].T
            arguments = {"num_attention_heads": 4, "hidden_size": 64}
            return save_megatron(tmp_path / "megatron", converted, arguments), models / "gpt2"
        weights, config = hugging_face("llama")
        qkv = concatenate_qkv if is_copied else layouts.fuse_qkv_by_group
        converted = layouts.convert_to_mcore(weights, config, qkv=qkv)
        folder = tmp_path / "phi3"
        folder.mkdir()
        if has_config:
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "phi3"}))
        file = save_weights(folder / "model.safetensors", layouts.convert_to_phi3(weights, config))
        arguments = {"num_attention_heads": 8, "num_query_groups": 4} if has_config else {}
        return save_megatron(tmp_path / "megatron", converted, arguments), file

    return make


def list_mistakes(result: WeightsResult) -> set[str]:
    return {pair.mistake.kind for pair in result.mistakes}


@pytest.mark.parametrize("is_turned", [False, True], ids=["to Megatron", "from Megatron"])
@pytest.mark.parametrize("family", ["phi3", "gpt2"])
def test_rows_that_each_family_reads_agree(
    make_pair: Callable[..., Pair], family: str, is_turned: bool
) -> None:
    pair = make_pair(family, is_copied=False)
    result = compare_files(*(reversed(pair) if is_turned else pair))
    assert (result.verdict, result.relation) == ("agree", "identical")


@pytest.mark.parametrize("is_turned", [False, True], ids=["to Megatron", "from Megatron"])
@pytest.mark.parametrize("family", ["phi3", "gpt2"])
def test_a_qkv_that_was_copied_as_it_is_differs(
    make_pair: Callable[..., Pair], family: str, is_turned: bool
) -> None:
    """Every byte is equal, and every logit wrong."""
    pair = make_pair(family, is_copied=True)
    result = compare_files(*(reversed(pair) if is_turned else pair))
    assert result.verdict == "differ"
    assert list_mistakes(result) == {"qkv-order"}
    assert all(".attention." in pair.path for pair in result.mistakes)


@pytest.mark.parametrize("is_copied", [False, True])
def test_without_the_number_of_heads_equal_rows_prove_nothing(
    make_pair: Callable[..., Pair], is_copied: bool
) -> None:
    result = compare_files(*make_pair("phi3", is_copied=is_copied, has_config=False))
    assert result.verdict == "inconclusive"
    assert "give checkpoints with config.json or arguments" in format_headline(result)
