"""The short JSON has the answer and the next command, and fits into 8 kB at any size."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
from results import FINDING, make_result
from run_results import make_finding, make_task

from dumpdiff.model.finding import Cause
from dumpdiff.model.result import Result
from dumpdiff.model.run_result import RunResult
from dumpdiff.reports.outputs import write
from dumpdiff.run_divergence import locate_run

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "brief.schema.json").read_text())
LONG = "Default/网络/" * 500


def write_brief(result: Result | RunResult) -> tuple[dict[str, Any], int]:
    """Return the document, which follows the schema, and its bytes."""
    stream = io.BytesIO()
    write(result, "brief", stream)
    document = json.loads(stream.getvalue())
    jsonschema.validate(document, SCHEMA)
    return document, len(stream.getvalue())


def test_it_has_the_answer_and_the_next_command() -> None:
    cause = Cause("epsilon", "behaves as epsilon = 0.01", 1e-7)
    finding = replace(FINDING, causes=(cause,), side="target")
    document, _ = write_brief(make_result(findings=(finding,)))
    assert document["exit_code"] == 1
    assert document["first_line"].startswith("diverged: layers.1.post_norm: epsilon, target is")
    assert document["findings"][0]["cause"] == {
        "name": "epsilon",
        "text": "behaves as epsilon = 0.01",
    }
    assert document["findings"][0]["error"] == 3.1e-2
    assert document["compared"] == {"forward": 0.8333333333333334, "backward": 0.0}
    assert document["next"] == [f"dumpdiff explain RESULT --finding {finding.id}"]


def test_without_a_cause_the_next_command_records_more() -> None:
    assert write_brief(make_result())[0]["next"] == ["dumpdiff narrow RESULT -o next"]
    assert write_brief(make_result(verdict="aligned", findings=()))[0]["next"] == []


def test_the_largest_result_fits() -> None:
    long_cause = Cause("epsilon", LONG, 1e-7)
    finding = replace(
        FINDING,
        scope=LONG,
        target_ops=(LONG,) * 50,
        reference_ops=(LONG,) * 50,
        causes=(long_cause,),
        source={"target": LONG, "reference": LONG},
    )
    result = make_result(
        findings=tuple(replace(finding, rank=rank) for rank in range(1, 1001)),
        notes=(LONG,) * 100,
        weaknesses=(LONG,) * 100,
    )
    document, size = write_brief(result)
    assert size <= 8_000
    assert document["n_findings"] == 1000
    assert document["n_notes"] == 100
    assert document["findings"]


def test_a_run_of_many_ranks_has_the_same_form() -> None:
    faulty = make_task(1, make_finding("linear"), positions=(5,))
    document, size = write_brief(locate_run("target", "reference", [make_task(0), faulty]))
    assert size <= 8_000
    assert document["findings"][0]["place"].startswith("rank 1")
    assert (document["n_ranks"], document["n_steps"]) == (2, 1)
