"""A conversion is planned without reading an element; an impossible one is refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from weight_comparison.layouts import Weights

from dumpdiff import checkpoints
from dumpdiff.conversion import (
    ConversionResult,
    ParallelSizes,
    SourceOptions,
    TargetOptions,
    plan_conversion,
)
from dumpdiff.model.errors import DumpError

from .conftest import RULES, convert_folder


def plan_folder(
    source: Path, target_options: TargetOptions, source_options: SourceOptions | None = None
) -> ConversionResult:
    source_options = source_options or SourceOptions()
    return plan_conversion(checkpoints.open(source), source_options, target_options, RULES)


def test_a_plan_lists_sources_and_targets(models: Path) -> None:
    result = plan_folder(models / "llama", TargetOptions("megatron", sizes=ParallelSizes(2, 2)))
    assert result.folder is None
    assert [file.name for file in result.plan.files] == [
        *(f"release/mp_rank_{t:02d}_{p:03d}/model_optim_rng.pt" for p in (0, 1) for t in (0, 1)),
        "latest_checkpointed_iteration.txt",
    ]
    tensors = {
        tensor.name: tensor for tensor in result.plan.files[2].tensors
    }  # rank 0 of the second stage
    qkv = tensors["decoder.layers.0.self_attention.linear_qkv.weight"]
    assert qkv.shape == (64, 64)
    assert qkv.sources == tuple(f"model.layers.2.self_attn.{part}_proj.weight" for part in "qkv")


def test_large_models_are_written_in_several_files(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dumpdiff.conversion import safetensors_writer

    monkeypatch.setattr(safetensors_writer.split_into_files, "__defaults__", (200_000,))
    files = plan_folder(models / "llama", TargetOptions("huggingface")).plan.files
    parts = [file for file in files if file.tensors]
    assert parts[0].name == f"model-00001-of-{len(parts):05d}.safetensors"
    assert len(parts) > 2
    assert all(file.size <= 200_000 for file in parts)
    assert "model.safetensors.index.json" in [file.name for file in files]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "llama",
            TargetOptions("megatron", sizes=ParallelSizes(3)),
            "--tp 3: 4 query groups do not divide",
        ),
        (
            "llama",
            TargetOptions("megatron", sizes=ParallelSizes(8)),
            "--tp 8: 4 query groups do not divide",
        ),
        (
            "deepseek",
            TargetOptions("megatron", sizes=ParallelSizes(3)),
            "--tp 3: 8 heads do not divide",
        ),
        (
            "llama",
            TargetOptions("megatron", sizes=ParallelSizes(pipeline=3)),
            "--pp 3: 4 layers do not divide",
        ),
        (
            "llama",
            TargetOptions("megatron", sizes=ParallelSizes(virtual=2)),
            "--vpp 2: virtual stages need --pp",
        ),
        (
            "llama",
            TargetOptions("megatron", sizes=ParallelSizes(pipeline=2, stage_layers=(4,))),
            "--stage-layers 4: expected 2 numbers",
        ),
        (
            "llama",
            TargetOptions("megatron", sizes=ParallelSizes(pipeline=2, stage_layers=(1, 2))),
            "--stage-layers 1,2: the model has 4 layers",
        ),
        ("llama", TargetOptions("megatron", sizes=ParallelSizes(expert=2)), "has no experts"),
        ("mixtral", TargetOptions("megatron", sizes=ParallelSizes(expert=3)), "--ep 3: 4 experts"),
        (
            "mixtral",
            TargetOptions("megatron", sizes=ParallelSizes(expert_tensor=2)),
            "--ep 1 --etp 2 --tp 1: Megatron names files",
        ),
        ("llama", TargetOptions("huggingface", sizes=ParallelSizes(2)), "is not split"),
        (
            "llama",
            TargetOptions("megatron", padded_vocabulary=200),
            "--padded-vocab-size 200: must be at least 250",
        ),
        (
            "llama",
            TargetOptions("huggingface", model_type="bert"),
            "--model-type bert: expected one of deepseek_v2",
        ),
        (
            "gpt2",
            TargetOptions("huggingface", model_type="llama"),
            "--model-type llama: .* says gpt2, which is another architecture",
        ),
        ("deepseek", TargetOptions("mindspore", legacy=True), "has no name for layers.0.attention"),
        ("gpt2", TargetOptions("megatron", bias=False), "--no-bias: .* is not zero"),
    ],
)
def test_an_impossible_conversion_is_refused(
    models: Path, name: str, options: TargetOptions, message: str
) -> None:
    with pytest.raises(DumpError, match=message) as refused:
        plan_folder(models / name, options)
    assert "\n" not in str(refused.value)


def test_biases_of_zeros_are_added_and_removed(tmp_path: Path, models: Path) -> None:
    options = TargetOptions("megatron", bias=True)
    result = convert_folder(models / "llama", tmp_path / "with", options)
    names = {entry.name for entry in checkpoints.open(tmp_path / "with").entries}
    assert "decoder.layers.3.self_attention.linear_qkv.bias" in names
    assert "decoder.layers.3.mlp.linear_fc1.bias" in names
    assert result.verified
    without = plan_folder(tmp_path / "with", TargetOptions("huggingface", bias=False)).plan.files[0]
    assert not [tensor.name for tensor in without.tensors if tensor.name.endswith(".bias")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {**w, "strange": np.zeros(3, np.float32)}, "no rule knows strange"),
        (
            lambda w: {**w, "model.layers.4.eh_proj.weight": np.zeros((3, 6), np.float32)},
            "multi-token prediction",
        ),
    ],
)
def test_parameters_that_would_be_lost_are_refused(
    tmp_path: Path,
    hugging_face: Callable[[str], tuple[Weights, Mapping[str, object]]],
    change: Callable[[Weights], Weights],
    message: str,
) -> None:
    save_file(change(hugging_face("llama")[0]), tmp_path / "model.safetensors")
    with pytest.raises(DumpError, match=message):
        plan_folder(
            tmp_path / "model.safetensors",
            TargetOptions("mindspore"),
            SourceOptions(heads=8, groups=4),
        )


def test_heads_are_requested_if_they_are_unknown(
    tmp_path: Path, hugging_face: Callable[[str], tuple[Weights, Mapping[str, object]]]
) -> None:
    save_file(hugging_face("llama")[0], tmp_path / "model.safetensors")
    with pytest.raises(DumpError, match="--heads N"):
        plan_folder(tmp_path / "model.safetensors", TargetOptions("mindspore"))
    assert plan_folder(
        tmp_path / "model.safetensors", TargetOptions("mindspore"), SourceOptions(heads=8, groups=4)
    ).plan.files


def test_assumptions_are_reported(tmp_path: Path, models: Path) -> None:
    convert_folder(models / "llama", tmp_path / "ms", TargetOptions("mindspore"))
    notes = plan_folder(tmp_path / "ms", TargetOptions("huggingface")).plan.notes
    assert [note.split(";")[0] for note in notes] == [
        "q, k and v were read by query group",
        "gate and up were read as interleaved rows",
    ]
    stated = SourceOptions(qkv="grouped", gate_up="interleaved")
    assert plan_folder(tmp_path / "ms", TargetOptions("huggingface"), stated).plan.notes == ()
