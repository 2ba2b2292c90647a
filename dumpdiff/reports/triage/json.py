"""A triage as JSON, for programs, in the form of docs/triage.schema.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any

from ... import __version__
from ...diagnosis.decision import Decision
from ...diagnosis.evidence import Evidence
from ...diagnosis.outcome import TriageResult
from ..alignment import json as dumps_json
from ..formats.json import write_document
from ..stages import checklist, data, logs, norms, optimizer, settings
from ..weights import json as weights_json

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"


def to_json(triaged: TriageResult) -> dict[str, Any]:
    """Return all of it as plain data.

    ``results`` has each stage in the form of its own command's JSON.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "case": asdict(triaged.case),
        "conclusion": _convert_decision(triaged.decision),
        "next": [asdict(advice) for advice in triaged.advice],
        "stages": [asdict(stage) for stage in triaged.evidence.stages],
        "skipped": dict(triaged.evidence.skipped),
        "results": dict(_convert_results(triaged.evidence)),
    }


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the document as UTF-8; the same triage gives the same bytes."""
    write_document(to_json(triaged), stream)


def _convert_decision(decision: Decision) -> dict[str, Any]:
    ruled_out = [{"place": p.place, "by": p.stage, "said": p.summary} for p in decision.ruled_out]
    return {**asdict(decision), "ruled_out": ruled_out, "outcome": decision.outcome}


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
        yield "dumps", dumps_json.to_json(evidence.dumps)
    if evidence.optimizer is not None:
        yield "optimizer", optimizer.to_json(evidence.optimizer)
