"""Real checkpoints to convert, built by tests/weight_comparison, and helpers to convert one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from weight_comparison.conftest import hugging_face, megatron_files, models

from dumpdiff import checkpoints
from dumpdiff.conversion import (
    ConversionResult,
    ParallelSizes,
    SourceOptions,
    TargetOptions,
    plan_conversion,
    write_conversion,
)
from dumpdiff.rulebook import load_rules

__all__ = ["hugging_face", "megatron_files", "models"]

RULES = load_rules()

SIZES = {field.name for field in dataclasses.fields(ParallelSizes)}

Convert = Callable[..., Path]


def convert_folder(
    source: Path,
    folder: Path,
    target_options: TargetOptions,
    source_options: SourceOptions | None = None,
    *,
    like: Path | None = None,
    **flags: bool,
) -> ConversionResult:
    """Convert a checkpoint of a folder or file."""
    opened = checkpoints.open(source)
    example = None if like is None else checkpoints.open(like)
    source_options = source_options or SourceOptions()
    planned = plan_conversion(opened, source_options, target_options, RULES, example)
    return write_conversion(planned, opened, folder, RULES, **flags)


@pytest.fixture(scope="session")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Mamba 2 with random weights, and a head that is its embedding."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("mamba")
    config = transformers.Mamba2Config(
        hidden_size=64,
        num_hidden_layers=3,
        num_heads=8,
        head_dim=16,
        n_groups=2,
        state_size=12,
        vocab_size=250,
        residual_in_fp32=False,
        tie_word_embeddings=True,
    )
    torch.manual_seed(7)
    model = transformers.Mamba2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def convert_to(tmp_path: Path) -> Convert:
    """``convert_to("megatron", source, tensor=2)``: the folder of a verified conversion."""
    n_folders = 0

    def convert_and_verify(
        framework: str,
        source: Path,
        source_options: SourceOptions | None = None,
        **options: object,
    ) -> Path:
        nonlocal n_folders
        n_folders += 1
        folder = tmp_path / f"{n_folders}_{framework}"
        sizes = {key: options.pop(key) for key in SIZES & set(options)}
        target_options = TargetOptions(framework, sizes=ParallelSizes(**sizes), **options)
        result = convert_folder(source, folder, target_options, source_options)
        assert result.verification is not None
        assert result.verification.mistakes == ()
        assert result.verified
        return folder

    return convert_and_verify
