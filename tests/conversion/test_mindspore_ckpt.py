"""``--ckpt``: MindSpore's own files, in slices. test_logits.py loads one in MindSpore."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff import checkpoints
from dumpdiff.conversion import ParallelSizes, TargetOptions, mindspore_writer
from dumpdiff.model.errors import DumpError

from .conftest import Convert, convert_folder


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("slice_size", [512 << 20, 1000])
def test_there_and_back(
    convert_to: Convert,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str | None,
    slice_size: int,
) -> None:
    monkeypatch.setattr(mindspore_writer, "_SLICE", slice_size)
    folder = convert_to("mindspore", models / "mixtral", is_ckpt=True, dtype=dtype)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.ckpt"]
    expected = checkpoints.open(convert_to("mindspore", models / "mixtral", dtype=dtype))
    written = checkpoints.open(folder)
    assert [entry.name for entry in written.entries] == [entry.name for entry in expected.entries]
    for entry in expected.entries:
        assert written.get_entry(entry.name).dtype == entry.dtype
        assert np.array_equal(written.read_raw(entry.name), expected.read_raw(entry.name))


@pytest.mark.parametrize("framework", ["megatron", "huggingface"])
def test_only_mindspore_has_such_files(tmp_path: Path, models: Path, framework: str) -> None:
    options = TargetOptions(framework, sizes=ParallelSizes(), is_ckpt=True)
    with pytest.raises(DumpError, match=f"--ckpt: only MindSpore has such files, not {framework}"):
        convert_folder(models / "llama", tmp_path / "out", options)
