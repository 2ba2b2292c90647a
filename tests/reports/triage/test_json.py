"""The triage for programs: the conclusion, and each stage in the form of its own command."""

from __future__ import annotations

import io
import json
from typing import Any

from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.alignment import json as alignment_json
from dumpdiff.reports.formats.json import write_document
from dumpdiff.reports.stages import logs, norms, optimizer, settings
from dumpdiff.reports.triage import json as triage_json
from dumpdiff.reports.weights import json as weights_json


def write_json(triaged: TriageResult) -> dict[str, Any]:
    stream = io.BytesIO()
    triage_json.write(triaged, stream)
    document: dict[str, Any] = json.loads(stream.getvalue())
    return document


def read_back(document: dict[str, Any]) -> Any:
    stream = io.BytesIO()
    write_document(document, stream)
    return json.loads(stream.getvalue())


def test_the_conclusion_comes_with_its_reasons_and_what_to_do(triaged: TriageResult) -> None:
    document = write_json(triaged)
    assert document["schema_version"] == "2.3"
    conclusion = document["conclusion"]
    assert {key: conclusion[key] for key in ("outcome", "verdict", "cause", "symptom")} == {
        "outcome": "forward",
        "verdict": "differ",
        "cause": "forward",
        "symptom": "first loss",
    }
    assert [place["place"] for place in conclusion["ruled_out"]] == ["weights", "backward"]
    assert document["next"][0]["commands"] == list(triaged.advice[0].commands)
    assert document["case"]["target"]["dump"] == triaged.case.target.dump


def test_every_stage_is_as_its_own_command_has_it(triaged: TriageResult) -> None:
    document, evidence = write_json(triaged), triaged.evidence
    assert tuple(stage["name"] for stage in document["stages"]) == STAGES
    assert set(document["results"]) == (set(STAGES) - {"forward", "backward"}) | {"dumps"}
    expected: dict[str, dict[str, Any]] = {
        "settings": settings.to_json(evidence.settings),  # type: ignore[arg-type]
        "logs": logs.to_json(evidence.logs),  # type: ignore[arg-type]
        "norms": norms.to_json(evidence.norms),  # type: ignore[arg-type]
        "weights": weights_json.to_json(evidence.weights),  # type: ignore[arg-type]
        "dumps": alignment_json.to_json(evidence.dumps.result),  # type: ignore[arg-type]
        "optimizer": optimizer.to_json(evidence.optimizer),  # type: ignore[arg-type]
    }
    for name, result in expected.items():
        assert document["results"][name] == read_back(result)


def test_what_was_not_given_is_there_with_the_reason(weights_only: TriageResult) -> None:
    document = write_json(weights_only)
    assert set(document["results"]) == {"weights"}
    assert set(document["skipped"]) == set(STAGES) - {"weights"}
    assert document["skipped"]["logs"] == "no training log of the target and the reference"
    assert document["conclusion"]["outcome"] == "inconclusive"
