"""``dumpdiff.align`` on all ranks: recorded runs of two and four processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from referencing import Registry, Resource

import dumpdiff
from dumpdiff import RunResult
from dumpdiff.api import run_alignment

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def faulty_run(
    dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunResult, Path]:
    """A run of two tensor-parallel ranks with another epsilon on one of them, and its folder."""
    folder = tmp_path_factory.mktemp("run") / "result"
    run = dumpdiff.align(
        dump("parallel_pt_tp2_norm_eps"), dump("parallel_pt_tp2"), output=folder, jobs=1
    )
    assert isinstance(run, RunResult)
    return run, folder


def test_the_rank_of_the_fault_is_named_and_who_received_it(faulty_run: tuple[RunResult, Path]):
    run, _ = faulty_run

    first = run.first_divergence
    assert run.verdict == "diverged"
    assert first is not None
    assert first.ranks == (1,)
    assert "norm" in first.finding.scope
    assert [reception.ranks for reception in first.receptions] == [(0,)]


def test_a_correct_pair_is_aligned_on_every_rank(dump: Callable[[str], Path]):
    run = dumpdiff.align(dump("parallel_pt_tp2_again"), dump("parallel_pt_tp2"), jobs=2)

    assert isinstance(run, RunResult)
    assert (run.verdict, run.ranks) == ("aligned", (0, 1))
    assert [task.verdict for task in run.tasks] == ["aligned", "aligned"]


def test_a_single_rank_gives_the_result_of_one_comparison(dump: Callable[[str], Path]):
    result = dumpdiff.align(dump("parallel_pt_tp2_norm_eps"), dump("parallel_pt_tp2"), rank=0)

    assert isinstance(result, dumpdiff.Result)
    assert "rank 0 of 2 was compared; the rest was not read" in " ".join(result.notes)


def test_the_json_follows_the_published_schema(faulty_run: tuple[RunResult, Path]):
    run, folder = faulty_run
    schemas = [json.loads((DOCS / f"{name}.schema.json").read_text()) for name in ("run", "result")]
    registry = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas
    )
    document = json.loads(run.to_json())

    jsonschema.Draft202012Validator.check_schema(schemas[0])
    jsonschema.Draft202012Validator(schemas[0], registry=registry).validate(document)
    assert document == json.loads((folder / "run.json").read_text())
    assert [task["rank"] for task in document["tasks"]] == [0, 1]


def test_all_reports_are_made_from_the_folder_without_the_dumps(
    faulty_run: tuple[RunResult, Path],
):
    run, folder = faulty_run
    loaded = dumpdiff.load(folder)

    assert isinstance(loaded, RunResult)
    for output in ("json", "csv", "markdown", "junit", "html"):
        assert loaded.render(output) == run.render(output)
    suites = ET.fromstring(loaded.to_junit())
    assert [suite.get("name") for suite in suites] == ["run", "rank 0 (tp 0)", "rank 1 (tp 1)"]
    assert int(suites.get("failures", 0)) == len(run.findings)
    header, first_row = loaded.to_csv().splitlines()[:2]
    assert header.startswith("step,rank,target,reference,target_op")
    assert first_row.startswith("0,0,")


def test_a_finding_of_a_run_can_be_explained_and_narrowed(
    faulty_run: tuple[RunResult, Path], tmp_path: Path
):
    run, folder = faulty_run

    explained = dumpdiff.explain(folder, 1)
    plan = dumpdiff.narrow(folder, tmp_path / "next", finding=1)

    assert explained.id == run.findings[0].id
    assert explained.causes or explained.unexplained
    assert plan.target.file


def test_finished_tasks_are_not_repeated(
    faulty_run: tuple[RunResult, Path],
    dump: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
):
    run, folder = faulty_run
    repeated_tasks = []

    def run_tasks(tasks, jobs, scheduler):
        repeated_tasks.extend(tasks)
        return iter(())

    monkeypatch.setattr(run_alignment, "run_tasks", run_tasks)
    again = dumpdiff.align(dump("parallel_pt_tp2_norm_eps"), dump("parallel_pt_tp2"), output=folder)

    assert repeated_tasks == []
    assert again.to_json() == run.to_json()


def test_processes_give_the_same_answer_as_one_after_the_other(
    faulty_run: tuple[RunResult, Path], dump: Callable[[str], Path]
):
    run, _ = faulty_run

    parallel_run = dumpdiff.align(dump("parallel_pt_tp2_norm_eps"), dump("parallel_pt_tp2"), jobs=2)

    assert parallel_run.to_json() == run.to_json()


def test_two_ranks_of_one_run_are_just_compared(dump: Callable[[str], Path]):
    folder = dump("parallel_pt_tp2")
    ranks = sorted(folder.rglob("rank[01]"))

    result = dumpdiff.align(*ranks)

    assert isinstance(result, dumpdiff.Result)
    assert (result.target.source.rank, result.reference.source.rank) == (0, 1)
