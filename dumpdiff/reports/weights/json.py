"""The comparison of two checkpoints as JSON, in the form of docs/triage.schema.json; docs/weights.md explains it."""

from __future__ import annotations

from dataclasses import asdict
from typing import IO, Any

from ... import __version__
from ...weight_comparison import WeightsResult
from ..alignment.json import write_document

#: Major: a reader of the old form breaks. Minor: something was added.
SCHEMA_VERSION = "1.0"


def to_json(result: WeightsResult) -> dict[str, Any]:
    """The result as plain dicts, lists, strings and numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "target": asdict(result.target),
        "reference": asdict(result.reference),
        "verdict": result.verdict,
        "relation": result.relation,
        "coverage": result.coverage,
        "layer_shift": result.layer_shift,
        "mistakes": [asdict(pair) for pair in result.mistakes],
        "missing": list(result.missing),
        "unknown": list(result.unknown),
        "notes": list(result.notes),
        "pairs": [asdict(pair) for pair in result.pairs],
        "problems": [asdict(problem) for problem in result.problems],
    }


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write the document, UTF-8."""
    write_document(to_json(result), stream)
