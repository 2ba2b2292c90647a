"""CSV files of msprobe's monitors as dumps; written by msprobe itself, see fixtures/README.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dumpdiff import DumpError, readers
from dumpdiff.model.trace import Trace


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("msprobe_monitor")


def read_first(path: Path) -> Trace:
    return readers.read_part(readers.find_parts(path)[0])


def list_slots(trace: Trace, op: str) -> list[str]:
    number = trace.ops.index[trace.ops["name"] == op][0]
    return trace.tensors["slot"][trace.tensors["op"] == number].tolist()


def get_tensors(trace: Trace, column: str) -> pd.DataFrame:
    return trace.tensors[trace.tensors[column] != ""]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_each_step_is_a_part(folder: Path, version: str) -> None:
    parts = readers.find_parts(folder / "modules" / version)
    assert [(part.step, part.rank) for part in parts] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_module_has_what_it_read_and_wrote(folder: Path, version: str) -> None:
    trace = read_first(folder / "modules" / version)
    forward = trace.ops[trace.ops["phase"] == "forward"]
    assert len(forward) == 29
    assert forward["level"].value_counts().to_dict() == {"op": 21, "module": 8}
    assert list_slots(trace, "model.norm") == ["input.0", "parameter.weight", "output.0"]
    assert list_slots(trace, "model.norm.backward") == ["input.0", "output.0"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_parameters_gradients_and_updates_have_the_name_of_the_parameter(
    folder: Path, version: str
) -> None:
    trace = read_first(folder / "modules" / version)
    for column in ("parameter", "gradient_of", "update_of"):
        names = set(get_tensors(trace, column)[column])
        assert len(names) == 21
        assert "model.layers.1.mlp.gate_proj.weight" in names
    update = trace.ops.index[trace.ops["name"] == "Optimizer.lm_head.weight"][0]
    read = trace.tensors[(trace.tensors["op"] == update) & (trace.tensors["slot_kind"] == "input")]
    assert read["parameter"].tolist() == ["lm_head.weight", ""]
    assert read["gradient_of"].tolist() == ["", "lm_head.weight"]


def test_both_versions_have_the_same_calls(folder: Path) -> None:
    first, second = (read_first(folder / "modules" / version) for version in ("v1", "v2"))
    assert sorted(first.ops["name"]) == sorted(second.ops["name"])
    assert (first.source.format_variant, second.source.format_variant) == (
        "TrainerMon",
        "TrainerMonitorV2",
    )


def test_numbers_of_few_digits_are_not_compared(folder: Path) -> None:
    """Version 1 writes six decimals: of 0.000123 only three digits are known."""
    first, second = (read_first(folder / "modules" / version) for version in ("v1", "v2"))
    norms = first.tensors["norm"].dropna().abs()
    assert norms.min() >= first.source.resolution
    assert first.tensors["mean"].isna().sum() > second.tensors["mean"].isna().sum()
    assert first.source.resolution > second.source.resolution


def test_a_tensor_that_was_not_there_is_no_tensor(folder: Path, tmp_path: Path) -> None:
    """Version 1 writes nan for every number of a gradient that does not exist."""
    trace = read_first(folder / "modules" / "v1")
    assert "model.embed_tokens.backward" in set(trace.ops["name"])
    assert list_slots(trace, "model.embed_tokens.backward") == ["input.0"]


def test_a_tensor_with_nan_is_not_finite(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "modules/v2/rank_0", tmp_path / "rank_0")
    file = tmp_path / "rank_0" / "module_step0-0.csv"
    lines = file.read_text().splitlines()
    line = next(n for n, text in enumerate(lines) if "model.norm.output.0" in text)
    lines[line] = "-1,0,model.norm.output.0,forward,nan,nan,nan,nan,3.0"
    file.write_text("\n".join(lines) + "\n")
    trace = read_first(tmp_path)
    norm = trace.ops.index[trace.ops["name"] == "model.norm"][0]
    output = trace.tensors[(trace.tensors["op"] == norm) & (trace.tensors["slot"] == "output.0")]
    assert output["nonfinite"].tolist() == [1]


def test_micro_batches_are_calls_of_their_own(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "modules/v2/rank_0", tmp_path / "rank_0")
    file = tmp_path / "rank_0" / "module_step0-0.csv"
    head, *lines = file.read_text().splitlines(keepends=True)
    file.write_text(head + "".join(lines) + "".join(lines))
    names = read_first(tmp_path).ops["name"].tolist()
    assert names.count("model.norm") == names.count("model.norm#2") == 1


def test_what_is_not_compared_is_said(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "modules/v2/rank_0", tmp_path / "rank_0")
    file = tmp_path / "rank_0" / "optimizer_step0-0.csv"
    file.write_text(
        "vpp_stage,step,module_name,scope,min,max,mean,norm,nans\n"
        "-1,0,lm_head.weight.exp_avg,exp_avg,-0.1,0.1,0.01,0.2,0.0\n"
    )
    messages = [str(problem) for problem in read_first(tmp_path).problems]
    assert messages == ["rank_0: rows of exp_avg are not compared"]


def test_gradients_alone_are_no_dump(folder: Path) -> None:
    with pytest.raises(DumpError, match="no dump in this folder"):
        readers.find_parts(folder / "clean")
