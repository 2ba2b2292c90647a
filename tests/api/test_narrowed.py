"""Statistics that a narrowed dump completes: everything of the first round stays known."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

import dumpdiff
from dumpdiff.capture.next_dump import NextDumps
from dumpdiff.model.errors import DumpError, NoFindingsError

sys.path.insert(0, str(FIXTURES))

import make_statistic_csv

ADD = (
    "Default/network-WithLoss/backbone-Llama/layers-CellList/0-Decoder/input_norm-RMSNorm/Add-op12"
)


@pytest.fixture(scope="module")
def statistics(
    dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """What the two demo runs would have left with statistics only."""
    folder = tmp_path_factory.mktemp("statistics")
    target, reference = folder / "target", folder / "reference"
    make_statistic_csv.convert(dump("demo_mindspore"), target, ["max", "min", "avg", "l2norm"])
    shutil.copytree(dump("demo_pytorch"), reference, ignore=shutil.ignore_patterns("*.pt"))
    (file,) = reference.rglob("dump.json")
    content = json.loads(file.read_text(), object_hook=_forget_files)
    file.write_text(json.dumps({**content, "task": "statistics", "dump_data_dir": None}))
    return target, reference


def _forget_files(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "data_name"}


@pytest.fixture
def plan(statistics: tuple[Path, Path], dump: Callable[[str], Path], tmp_path: Path) -> NextDumps:
    """The first round: its result in first/, and the two narrowed dumps in next/."""
    dumpdiff.align(*statistics, output=tmp_path / "first")
    plan = dumpdiff.narrow(tmp_path / "first", tmp_path / "next")
    cut_mindspore(dump("demo_mindspore"), plan.target.ops, tmp_path / "next" / "target")
    cut_msprobe(dump("demo_pytorch"), plan.reference.ops, tmp_path / "next" / "reference")
    return plan


def cut_mindspore(whole: Path, ops: Sequence[str], folder: Path) -> None:
    """The files of some ops, as dump_mode 1 leaves them."""
    trace = dumpdiff.read(whole)
    chosen = trace.ops["name"].isin(ops).to_numpy()[trace.tensors["op"].to_numpy()]
    kept = {Path(file).name for file in trace.tensors["file"].to_numpy()[chosen]}
    shutil.copytree(
        whole,
        folder,
        ignore=lambda _, names: {n for n in names if n.endswith(".npy") and n not in kept},
    )


def cut_msprobe(whole: Path, ops: Sequence[str], folder: Path) -> None:
    """The records of some calls, as list leaves them."""
    shutil.copytree(whole, folder)
    (file,) = folder.rglob("dump.json")
    content = json.loads(file.read_text())
    content["data"] = {name: entry for name, entry in content["data"].items() if name in ops}
    file.write_text(json.dumps(content))


def test_the_finding_stays_and_gets_its_cause(
    statistics: tuple[Path, Path], plan: NextDumps, tmp_path: Path
) -> None:
    first = dumpdiff.load(tmp_path / "first")
    assert first.findings[0].target_ops == (ADD,)
    second = dumpdiff.align(
        *statistics, narrowed=[tmp_path / "next"], output=tmp_path / "next_result"
    )
    finding = second.findings[0]
    assert (second.verdict, finding.id) == ("diverged", first.findings[0].id)
    assert finding.causes[0].name == "epsilon"
    assert "behaves as epsilon = 0.01" in finding.causes[0].text
    assert len(second.pairs) == len(first.pairs)
    assert second.coverage == first.coverage


def test_what_was_recorded_of_the_request_is_said_and_what_is_missing(
    statistics: tuple[Path, Path], plan: NextDumps, tmp_path: Path
) -> None:
    result = dumpdiff.align(*statistics, narrowed=[tmp_path / "next"])
    count = len(plan.target.ops)
    assert (
        f"{tmp_path}/next: whole tensors of {count} of the {count} ops that were to be dumped of "
        "the target"
    ) in result.notes
    for file in (tmp_path / "next" / "target").rglob("*.npy"):
        if "input_norm-RMSNorm_Add-op12" in file.name:
            file.unlink()
    result = dumpdiff.align(*statistics, narrowed=[tmp_path / "next"])
    (remark,) = (note for note in result.notes if "; missing: " in note)
    assert f"whole tensors of {count - 1} of the {count} ops" in remark
    assert remark.endswith(f"of the target; missing: {ADD}")
    assert result.findings[0].target_ops == (ADD,)


def test_a_result_remembers_what_completed_its_dumps(
    statistics: tuple[Path, Path], plan: NextDumps, tmp_path: Path
) -> None:
    """So explain, report and the next narrow read the same."""
    dumpdiff.align(*statistics, narrowed=[tmp_path / "next"], output=tmp_path / "next_result")
    assert dumpdiff.explain(tmp_path / "next_result").causes[0].name == "epsilon"
    second_plan = dumpdiff.narrow(tmp_path / "next_result", tmp_path / "next2")
    assert f"--narrowed {tmp_path}/next --narrowed {tmp_path}/next2" in second_plan.commands[0]
    assert not set(second_plan.target.ops) & set(plan.target.ops)
    assert not set(second_plan.reference.ops) & set(plan.reference.ops)


def test_another_run_is_not_taken_for_the_first_one(
    statistics: tuple[Path, Path],
    plan: NextDumps,
    dump: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Its whole tensors contradict the statistics that were recorded."""
    import numpy as np

    for file in (tmp_path / "next" / "target").rglob("*.npy"):
        np.save(file, np.load(file) * 1.5)
    result = dumpdiff.align(*statistics, narrowed=[tmp_path / "next"])
    assert any("contradict" in clause or "records" in clause for clause in result.weaknesses)


def test_a_folder_that_narrow_did_not_write_is_an_error(
    statistics: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(DumpError, match="give the folder that dumpdiff narrow wrote"):
        dumpdiff.align(*statistics, narrowed=[tmp_path])


def test_without_findings_there_is_nothing_to_explain(
    dump: Callable[[str], Path], tmp_path: Path
) -> None:
    reference = dump("demo_pytorch")
    dumpdiff.align(reference, reference, output=tmp_path / "result")
    with pytest.raises(NoFindingsError, match="everything that was compared agrees: there is"):
        dumpdiff.explain(tmp_path / "result")
