"""``record(like=...)``: the narrowing that ``dumpdiff narrow`` asks for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import DumpError
from recorder.models import Llama, train


def record(folder: Path, scale: float, like: Path | None = None) -> None:
    make_model = partial(Llama, scale)
    train(make_model, lambda model: dumpdiff.record(model, folder, steps=[0], like=like))


@pytest.fixture
def narrowed(tmp_path: Path) -> Path:
    """Return a folder with two recordings, their result and its narrowing."""
    record(tmp_path / "target", 2.0)
    record(tmp_path / "reference", 1.0)
    dumpdiff.align(tmp_path / "target", tmp_path / "reference", output=tmp_path / "result")
    dumpdiff.narrow(tmp_path / "result", tmp_path / "next")
    return tmp_path


def test_the_second_recording_has_whole_tensors_of_what_was_asked_for(narrowed: Path) -> None:
    folder = narrowed / "next"
    for side, scale in (("target", 2.0), ("reference", 1.0)):
        record(folder / side, scale, folder / f"{side}_record.json")
    first, second = dumpdiff.read(narrowed / "target"), dumpdiff.read(folder / "target")
    assert first.ops["name"].tolist() == second.ops["name"].tolist()
    assert (first.tensors["file"] == "").all()
    has_file = second.tensors["file"] != ""
    requested_ops = set(json.loads((folder / "narrowed.json").read_text())["target"])
    is_requested = second.ops["name"].isin(requested_ops)[second.tensors["op"]].to_numpy()
    is_tensor = ~second.tensors["constant"].to_numpy()
    assert has_file[is_requested & is_tensor].all()
    assert 0 < has_file.sum() < is_tensor.sum() / 2
    result = dumpdiff.align(narrowed / "target", narrowed / "reference", narrowed=[folder])
    assert result.first_divergence is not None
    assert result.first_divergence.metrics["relative_l2"] == pytest.approx(1.0, abs=1e-3)


def test_a_file_that_is_no_request_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "target_record.json"
    for text, message in (
        ("{", "broken JSON"),
        ('{"step": 0}', "expected a request for a recording"),
        ('{"dumpdiff_record_request": 1, "step": 0, "rank": 0, "tensors": [-1]}', "expected a"),
    ):
        file.write_text(text)
        with pytest.raises(DumpError, match=message):
            dumpdiff.record(Llama(), tmp_path / "out", like=file)
    with pytest.raises(DumpError, match="No such file"):
        dumpdiff.record(Llama(), tmp_path / "out", like=tmp_path / "missing.json")
