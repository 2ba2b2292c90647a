"""Ranks of MindSpore as a target: slices and a strategy file, which MindSpore itself joins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from weight_comparison.layouts import Weights

from dumpdiff.conversion import ParallelSizes, TargetOptions
from dumpdiff.model.errors import DumpError

from .conftest import Convert, convert_folder

HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "deepseek"])
@pytest.mark.parametrize("stages", [1, 2])
def test_there_and_back(
    convert_to: Convert, models: Path, hugging_face: HuggingFace, name: str, stages: int
) -> None:
    """GPT-2's head is its embedding, which the last stage needs, too."""
    split = convert_to("mindspore", models / name, tensor=2, pipeline=stages, is_ckpt=True)
    ranks = range(2 * stages)
    files = {str(file.relative_to(split)) for file in split.rglob("*") if file.is_file()}
    assert files == {
        *(f"rank_{rank}/model{rank}.ckpt" for rank in ranks),
        "strategy/ckpt_strategy.ckpt",
        "config.json",
    }
    written = load_file(convert_to("huggingface", split) / "model.safetensors")
    expected = hugging_face(name)[0]
    assert set(written) == set(expected)
    for key, value in expected.items():
        assert np.array_equal(written[key], value), key


@pytest.mark.record
@pytest.mark.parametrize(
    ("name", "kind", "stages"), [("mixtral", "ckpt", 2), ("deepseek", "safetensors", 1)]
)
def test_mindspore_joins_the_ranks(
    convert_to: Convert, models: Path, tmp_path: Path, name: str, kind: str, stages: int
) -> None:
    split = convert_to(
        "mindspore", models / name, tensor=2, pipeline=stages, is_ckpt=kind == "ckpt"
    )
    script = Path(__file__).parent / "mindspore_merge.py"
    process = subprocess.run(
        [sys.executable, script, split, tmp_path, kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    joined = np.load(tmp_path / "joined.npz")
    whole = load_file(convert_to("mindspore", models / name) / "model.safetensors")
    assert set(joined) == set(whole)
    for key, value in whole.items():
        assert np.array_equal(joined[key], value), key


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (ParallelSizes(expert=2), "--vpp, --ep and --etp are Megatron's"),
        (ParallelSizes(tensor=3), "--tp 3: "),
        (ParallelSizes(pipeline=3), "--pp 3: 4 layers do not divide into 3 stages"),
    ],
)
def test_sizes_that_mindspore_cannot_have_are_refused(
    models: Path, tmp_path: Path, sizes: ParallelSizes, message: str
) -> None:
    with pytest.raises(DumpError, match=message):
        convert_folder(models / "llama", tmp_path / "out", TargetOptions("mindspore", sizes=sizes))
