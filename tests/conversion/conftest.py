"""Real checkpoints to convert: those of tests/weights, made here once more per session; and how to convert one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from weight_comparison.conftest import hugging_face, megatron_files, models

from dumpdiff import checkpoints
from dumpdiff.conversion import ConversionResult, SourceOptions, TargetOptions, convert
from dumpdiff.rulebook import load_rules

__all__ = ["hugging_face", "megatron_files", "models"]

RULES = load_rules()

To = Callable[..., Path]


def converted(
    source: Path, folder: Path, wanted: TargetOptions, reading: SourceOptions | None = None, **more: object
) -> ConversionResult:
    like = more.pop("like", None)
    example = None if like is None else checkpoints.open(like)
    return convert(
        checkpoints.open(source), folder, reading or SourceOptions(), wanted, RULES, like=example, **more
    )


@pytest.fixture
def to(tmp_path: Path) -> To:
    """``to("megatron", source, tensor=2)``: the folder of a conversion that was found to be right, bit for bit."""
    made = 0

    def folder(
        framework: str, source: Path, reading: SourceOptions | None = None, **options: object
    ) -> Path:
        nonlocal made
        made += 1
        place = tmp_path / f"{made}_{framework}"
        result = converted(source, place, TargetOptions(framework, **options), reading)
        assert result.verification is not None
        assert result.verification.mistakes == ()
        assert result.verified
        return place

    return folder
