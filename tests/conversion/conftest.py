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
