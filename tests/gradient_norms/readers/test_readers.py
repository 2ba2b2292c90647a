"""What a path holds is told by its content; what cannot be used is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradient_norms.sides import SAMPLES, refused, text


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "a.log").endswith("a.log: no such file or folder")


@pytest.mark.parametrize(
    "said", ["", "hello\n", '{"a": {"b": "c"}}', "a,b\n1,2\n", "\n".join(["x"] * 50)]
)
def test_a_text_without_norms(tmp_path: Path, said: str) -> None:
    assert (
        "no gradient norms are in it; expected lines 'step:[1] local_norm/NAME: NORM'"
        in refused(text(tmp_path, said))
    )


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    assert "holds no logs, gradients or dump" in refused(tmp_path)
    shutil.copy(SAMPLES / "logs" / "megatron_0.12.log", tmp_path)
    assert "none of 1 logs holds local norms" in refused(tmp_path)


def test_deep_json_is_no_list(tmp_path: Path) -> None:
    assert "no gradient norms" in refused(text(tmp_path, "[" * 100_000 + "]" * 100_000, "a.json"))
    assert "no gradient norms" in refused(text(tmp_path, json.dumps({"a": [[], {}]}), "a.json"))
