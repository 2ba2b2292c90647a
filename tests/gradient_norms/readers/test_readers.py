"""The kind of input is recognized by its content; unusable input is rejected in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradient_norms.sides import SAMPLES, read_error, write_text


def test_a_missing_path_is_rejected(tmp_path: Path) -> None:
    assert read_error(tmp_path / "a.log").endswith("a.log: no such file or folder")


@pytest.mark.parametrize(
    "content", ["", "hello\n", '{"a": {"b": "c"}}', "a,b\n1,2\n", "\n".join(["x"] * 50)]
)
def test_a_text_without_norms_is_rejected(tmp_path: Path, content: str) -> None:
    assert (
        "contains no gradient norms; expected lines 'step:[1] local_norm/NAME: NORM'"
        in read_error(write_text(tmp_path, content))
    )


def test_a_folder_without_norms_is_rejected(tmp_path: Path) -> None:
    assert "contains no logs, gradients or dump" in read_error(tmp_path)
    shutil.copy(SAMPLES / "logs" / "megatron_0.12.log", tmp_path)
    assert "none of 1 logs contains local norms" in read_error(tmp_path)


def test_json_without_norms_is_rejected(tmp_path: Path) -> None:
    assert "no gradient norms" in read_error(
        write_text(tmp_path, "[" * 100_000 + "]" * 100_000, "a.json")
    )
    assert "no gradient norms" in read_error(
        write_text(tmp_path, json.dumps({"a": [[], {}]}), "a.json")
    )
