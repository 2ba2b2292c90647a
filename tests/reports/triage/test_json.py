"""The triage for programs: the conclusion, and each stage in the form of its own command."""

from __future__ import annotations

import io
import json
from typing import Any

from dumpdiff import reports
from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.stages import logs, norms, optimizer, settings
from dumpdiff.reports.triage import json as triage_json
from dumpdiff.reports.weights import json as weights_json


def written(triaged: TriageResult) -> dict[str, Any]:
    stream = io.BytesIO()
    triage_json.write(triaged, stream)
    document: dict[str, Any] = json.loads(stream.getvalue())
    return document


def plain(document: dict[str, Any]) -> Any:
    stream = io.BytesIO()
    reports.json.write_document(document, stream)
    return json.loads(stream.getvalue())


def test_the_conclusion_comes_with_its_reasons_and_what_to_do(triaged: TriageResult) -> None:
    document = written(triaged)
    assert document["schema_version"] == "1.0"
    conclusion = document["conclusion"]
    assert {key: conclusion[key] for key in ("outcome", "verdict", "cause", "symptom")} == {
        "outcome": "forward", "verdict": "differ", "cause": "forward", "symptom": "first loss",
    }  # fmt: skip
    assert [one["place"] for one in conclusion["ruled_out"]] == ["data", "weights"]
    assert document["next"][0]["commands"] == list(triaged.advice[0].commands)
    assert document["case"]["target"]["dump"] == triaged.case.target.dump


def test_every_stage_is_as_its_own_command_has_it(triaged: TriageResult) -> None:
    document, evidence = written(triaged), triaged.evidence
    assert tuple(stage["name"] for stage in document["stages"]) == STAGES
    assert set(document["results"]) == (set(STAGES) - {"forward", "backward"}) | {"dumps"}
    own: dict[str, dict[str, Any]] = {
        "settings": settings.to_json(evidence.settings),  # type: ignore[arg-type]
        "logs": logs.to_json(evidence.logs),  # type: ignore[arg-type]
        "norms": norms.to_json(evidence.norms),  # type: ignore[arg-type]
        "weights": weights_json.to_json(evidence.weights),  # type: ignore[arg-type]
        "dumps": reports.json.to_json(evidence.dumps),  # type: ignore[arg-type]
        "optimizer": optimizer.to_json(evidence.optimizer),  # type: ignore[arg-type]
    }
    for name, one in own.items():
        assert document["results"][name] == plain(one)


def test_what_was_not_given_is_there_with_the_reason(bare: TriageResult) -> None:
    document = written(bare)
    assert set(document["results"]) == {"weights"}
    assert set(document["skipped"]) == set(STAGES) - {"weights"}
    assert document["skipped"]["logs"] == "no training log of the target and the reference"
    assert document["conclusion"]["outcome"] == "inconclusive"
