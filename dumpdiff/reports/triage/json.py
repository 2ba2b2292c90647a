"""A triage as JSON, for programs, in the form of docs/triage.schema.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from ... import __version__
from ...diagnosis.advice import Advice
from ...diagnosis.case import Case, Run
from ...diagnosis.decision import Decision, RuledOut
from ...diagnosis.evidence import Evidence
from ...diagnosis.outcome import TriageResult
from ...model.run_result import RunResult
from ..alignment import json as dumps_json
from ..formats.json import write_document
from ..runs import json as runs_json
from ..stages import checklist, data, logs, norms, optimizer, settings
from ..stages.stage import convert_stage
from ..weights import json as weights_json

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
#:   2.0  renamed keys: of the conclusion also -> other_differences, of ruled_out by -> stage and
#:        said -> summary, of next why -> reason; every stage in ``results`` is of version 2.0
#:   2.1  ``dumps`` in ``results`` may be the document of a run of several ranks or steps
#:   2.2  the conclusion has ``other_causes`` and ``belief``
#:   2.3  the conclusion has ``stage``
SCHEMA_VERSION = "2.3"


def to_json(triaged: TriageResult) -> dict[str, Any]:
    """Return all of it as plain data.

    ``results`` has each stage in the form of its own command's JSON.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "case": _convert_case(triaged.case),
        "conclusion": _convert_decision(triaged.decision),
        "next": [_convert_advice(advice) for advice in triaged.advice],
        "stages": [convert_stage(stage) for stage in triaged.evidence.stages],
        "skipped": dict(triaged.evidence.skipped),
        "results": dict(_convert_results(triaged.evidence)),
    }


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the document as UTF-8; the same triage gives the same bytes."""
    write_document(to_json(triaged), stream)


def _convert_decision(decision: Decision) -> dict[str, Any]:
    return {
        "verdict": decision.verdict,
        "symptom": decision.symptom,
        "cause": decision.cause,
        "candidates": decision.candidates,
        "headline": decision.headline,
        "stage": decision.stage or None,
        "evidence": decision.evidence,
        "other_causes": decision.other_causes,
        "other_differences": decision.other_differences,
        "ruled_out": [_convert_ruled_out(ruled_out) for ruled_out in decision.ruled_out],
        "missing": decision.missing,
        "belief": dict(decision.belief),
        "outcome": decision.outcome,
    }


def _convert_ruled_out(ruled_out: RuledOut) -> dict[str, Any]:
    return {"place": ruled_out.place, "stage": ruled_out.stage, "summary": ruled_out.summary}


def _convert_case(case: Case) -> dict[str, Any]:
    return {
        "target": _convert_run(case.target),
        "reference": _convert_run(case.reference),
        "baseline_logs": case.baseline_logs,
        "baseline_dump": case.baseline_dump,
        "tokenizer": case.tokenizer,
        "min_steps": case.min_steps,
        "rules": case.rules,
        "file": case.file,
    }


def _convert_run(run: Run) -> dict[str, Any]:
    return {
        "settings": run.settings,
        "model_config": run.model_config,
        "version": run.version,
        "data": run.data,
        "log": run.log,
        "norms": run.norms,
        "weights": run.weights,
        "steps": run.steps,
        "dump": run.dump,
    }


def _convert_advice(advice: Advice) -> dict[str, Any]:
    return {"reason": advice.reason, "commands": advice.commands}


def _convert_results(evidence: Evidence) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, JSON) of each stage that was compared."""
    if evidence.settings is not None:
        yield "settings", settings.to_json(evidence.settings)
    if evidence.checklist is not None:
        yield "checklist", checklist.to_json(evidence.checklist)
    if evidence.data is not None:
        yield "data", data.to_json(evidence.data)
    if evidence.logs is not None:
        yield "logs", logs.to_json(evidence.logs)
    if evidence.norms is not None:
        yield "norms", norms.to_json(evidence.norms)
    if evidence.weights is not None:
        yield "weights", weights_json.to_json(evidence.weights)
    if evidence.dumps is not None:
        result = evidence.dumps.result
        if isinstance(result, RunResult):
            yield "dumps", runs_json.to_json(result)
        else:
            yield "dumps", dumps_json.to_json(result)
    if evidence.optimizer is not None:
        yield "optimizer", optimizer.to_json(evidence.optimizer)
