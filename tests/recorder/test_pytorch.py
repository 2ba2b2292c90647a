"""``dumpdiff.record`` of PyTorch: it changes nothing, and what it writes aligns."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError
from dumpdiff.model.sketches import measure_array

torch = pytest.importorskip("torch")

from .models import Convolutions, Experts, Llama, RenamedLlama, train  # noqa: E402

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/manifest.schema.json").read_text())


def record_to(folder: Path, **options: Any) -> Callable[[Any], Any]:
    return lambda model: dumpdiff.record(model, folder, **options)


def read_manifest(folder: Path, step: int = 0) -> dict[str, Any]:
    text = (folder / f"step{step}" / "rank0" / "manifest.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.parametrize("make_model", [Llama, Experts, Convolutions])
def test_ten_losses_are_bit_identical_with_and_without(
    make_model: Callable[[], Any], tmp_path: Path
) -> None:
    recorded = train(make_model, record_to(tmp_path / "dump", steps=[0, 4]), n_steps=10)
    assert recorded == train(make_model, n_steps=10)
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0", "step4"]


def test_two_recordings_of_one_run_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        train(Llama, record_to(tmp_path / name))
    first, second = (tmp_path / name / "step0" / "rank0" for name in ("first", "second"))
    for file in ("manifest.json", "sketches.npy"):
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_the_manifest_follows_the_published_schema(tmp_path: Path) -> None:
    train(Experts, record_to(tmp_path))
    jsonschema.Draft202012Validator(SCHEMA).validate(read_manifest(tmp_path))


def test_operators_modules_gradients_updates_and_source_lines_are_recorded(tmp_path: Path) -> None:
    train(Llama, record_to(tmp_path))
    trace = dumpdiff.read(tmp_path)
    ops = trace.ops
    assert not trace.problems
    silu = ops[ops["kind"] == "Aten.silu"].iloc[0]
    assert (silu["scope"], silu["phase"]) == ("layers.0", "forward")
    assert silu["source"].startswith("models.py:")
    gradient = ops[ops["kind"] == "Aten.silu_backward"].iloc[0]
    assert (gradient["scope"], gradient["phase"]) == ("layers.2", "backward")
    assert gradient["source"] == silu["source"]
    assert ops.loc[ops["kind"] == "Aten.ones_like", "phase"].tolist() == ["backward"]
    assert ops["name"].iat[silu["parent"]].startswith("Module.layers.0.Block.forward")
    names = {name for name, _ in Llama().named_parameters()}
    for column in ("parameter", "gradient_of", "update_of"):
        assert set(trace.tensors[column]) - {""} == names
    assert set(ops.loc[ops["phase"] == "optimizer", "kind"]) >= {"Optimizer.AdamW"}


def test_what_an_op_reads_is_what_another_wrote(tmp_path: Path) -> None:
    train(Llama, record_to(tmp_path))
    trace = dumpdiff.read(tmp_path)
    is_computed_input = (trace.tensors["slot_kind"] == "input") & ~trace.tensors["constant"]
    is_computed_input &= trace.tensors["parameter"] == ""
    share = (trace.tensors.loc[is_computed_input, "source_tensor"] >= 0).mean()
    assert share > 0.9


@pytest.mark.parametrize("make_model", [Llama, Experts, Convolutions])
def test_clean_twins_align_and_a_fault_is_located(
    make_model: Callable[..., Any], tmp_path: Path
) -> None:
    for name, scale in (("reference", 1.0), ("twin", 1.0), ("faulty", 1.01)):
        train(partial(make_model, scale), record_to(tmp_path / name))
    clean = dumpdiff.align(tmp_path / "twin", tmp_path / "reference")
    assert clean.verdict == "aligned"
    faulty = dumpdiff.align(tmp_path / "faulty", tmp_path / "reference")
    assert faulty.verdict == "diverged"
    finding = faulty.first_divergence
    assert finding is not None
    source_lines = {Llama: "scores = ", Experts: "self.router(x) * self.scale",
                    Convolutions: "self.scale * self.conv(x)"}  # fmt: skip
    models = Path(__file__).with_name("models.py").read_text().splitlines()
    line = int(finding.source["target"].partition(":")[2])
    assert source_lines[make_model] in "\n".join(models[line - 2 : line])


def test_modules_of_other_names_align(tmp_path: Path) -> None:
    train(Llama, record_to(tmp_path / "reference"))
    train(RenamedLlama, record_to(tmp_path / "renamed"))
    result = dumpdiff.align(tmp_path / "renamed", tmp_path / "reference")
    assert result.verdict == "aligned"


def test_chosen_modules_and_whole_tensors(tmp_path: Path) -> None:
    train(Llama, record_to(tmp_path, tensors=True, modules=["layers.1"]))
    trace = dumpdiff.read(tmp_path)
    scopes = set(trace.ops.loc[trace.ops["phase"] == "forward", "scope"])
    assert {scope.split(".")[:2] == ["layers", "1"] for scope in scopes} == {True}
    files = trace.tensors.index[trace.tensors["file"] != ""]
    assert len(files) > 50
    for row in files[:50]:
        numbers = measure_array(trace.array(row))
        assert numbers[3] == pytest.approx(trace.tensors["norm"].iat[row], rel=1e-6, abs=1e-30)


def test_tensors_of_bfloat16_are_widened_exactly(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4).bfloat16()
    with dumpdiff.record(model, tmp_path, tensors=True):
        model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    trace = dumpdiff.read(tmp_path)
    row = int(np.flatnonzero(trace.tensors["parameter"] == "weight")[0])
    assert trace.tensors["dtype"].iat[row] == "bfloat16"
    assert np.array_equal(trace.array(row), model.weight.detach().float().numpy())


def test_an_error_in_the_step_leaves_what_came_before(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="shapes"), dumpdiff.record(model, tmp_path):
        model(torch.ones(2, 4))
    (problem,) = dumpdiff.read(tmp_path).problems
    assert "did not end" in problem.message
    assert not torch.nn.modules.module._global_forward_hooks


def test_compiled_code_runs_eagerly_and_the_recording_says_so(tmp_path: Path) -> None:
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    with pytest.warns(UserWarning, match="runs eagerly"), dumpdiff.record(model, tmp_path):
        model(torch.ones(2, 4)).sum().backward()
    document = read_manifest(tmp_path)
    assert document["compiled"] == "ran eagerly while it was recorded"
    assert "Aten.addmm" in {call["kind"] for call in document["calls"]}


def test_ranks_that_were_not_chosen_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    train(Llama, record_to(tmp_path / "other", ranks=[0]))
    assert not (tmp_path / "other").exists()
    train(Llama, record_to(tmp_path / "own", ranks=[3]))
    assert dumpdiff.read(tmp_path / "own").source.rank == 3


def test_a_recording_is_not_overwritten(tmp_path: Path) -> None:
    train(Llama, record_to(tmp_path))
    with pytest.raises(DumpError, match="is a recording already; give another folder"):
        dumpdiff.record(Llama(), tmp_path)


def test_only_models_are_recorded(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"the model is a int; expected a torch\.nn\.Module"):
        dumpdiff.record(3, tmp_path)
