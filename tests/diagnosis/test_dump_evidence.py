"""Dumps as evidence: many ranks count as one comparison, and a rank that is wrong is named."""

from __future__ import annotations

from dataclasses import replace

from results import COVERAGE, FINDING

from dumpdiff.diagnosis.dump_evidence import summarize_dumps
from dumpdiff.diagnosis.stages import build_dump_stages, select_phase_findings
from dumpdiff.model.finding import Finding
from dumpdiff.model.run_result import ParameterState, RunFinding, RunResult, TaskResult


def make_task(rank: int, weight: str = "agreeing") -> TaskResult:
    parameters = (
        ParameterState("fc.weight", weight, "", "", 0.0, 0.0),
        ParameterState("b", "agreeing", "", "", 0.0, 0.0),
    )
    return TaskResult(0, rank, rank, "aligned", "", coverage=COVERAGE, parameters=parameters)


def make_run(verdict: str, findings: tuple[RunFinding, ...], *tasks: TaskResult) -> RunResult:
    return RunResult("t", "r", verdict, findings, tasks, notes=("rank 2 was lost",))  # type: ignore[arg-type]


def make_finding(kind: str, finding: Finding = FINDING) -> RunFinding:
    return RunFinding(1, kind, 0, (0,), (3,), "rank 3 (tp 1), step 0", finding.title, finding, "t")


def test_the_finding_of_one_rank_makes_the_pass_differ_and_names_the_rank() -> None:
    run = make_run("diverged", (make_finding("introduced"),), make_task(0), make_task(1))
    forward, _ = build_dump_stages(summarize_dumps(run))
    assert forward.verdict == "differ"
    assert forward.headline == f"rank 3 (tp 1), step 0: {FINDING.title}"


def test_the_counts_of_all_ranks_are_added() -> None:
    coverage = summarize_dumps(make_run("aligned", (), make_task(0), make_task(1))).coverage
    one = COVERAGE["target"]["forward"]
    assert coverage["target"]["forward"]["ops"] == 2 * one["ops"]
    assert coverage["target"]["forward"]["compared"] == 2 * one["compared"]


def test_a_run_of_which_a_rank_was_not_compared_agrees_nowhere() -> None:
    lost_task = replace(make_task(2), problem="cut off", verdict="inconclusive")
    run = make_run("inconclusive", (), make_task(0), make_task(1), lost_task)
    stages = build_dump_stages(summarize_dumps(run))
    assert {stage.verdict for stage in stages} == {"inconclusive"}
    assert stages[0].headline == "rank 2 was lost"


def test_a_parameter_agrees_if_it_does_on_every_rank() -> None:
    run = make_run("diverged", (), make_task(0), make_task(1, weight="introduced"))
    assert summarize_dumps(run).n_agreeing_parameters == 1


def test_an_update_is_about_the_optimizer() -> None:
    run = make_run("diverged", (make_finding("update", replace(FINDING, kind="parameter")),))
    dumps = summarize_dumps(run)
    assert select_phase_findings(dumps, "forward") == []
    assert len(select_phase_findings(dumps, "optimizer")) == 1
