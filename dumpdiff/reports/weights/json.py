"""The comparison of two checkpoints as JSON, in the form of docs/triage.schema.json.

docs/weights.md explains the fields.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import IO, Any

from ... import __version__
from ...weight_comparison import Pair, WeightsResult
from ..formats.json import write_document

#: Major: programs that read the old form fail. Minor: something was added.
SCHEMA_VERSION = "1.0"


def to_json(result: WeightsResult) -> dict[str, Any]:
    """Return the result as plain dicts, lists, strings and numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "target": asdict(result.target),
        "reference": asdict(result.reference),
        "verdict": result.verdict,
        "relation": result.relation,
        "coverage": result.coverage,
        "layer_shift": result.layer_shift,
        "mistakes": [_convert_pair(pair) for pair in result.mistakes],
        "missing": list(result.missing),
        "unknown": list(result.unknown),
        "notes": list(result.notes),
        "pairs": [_convert_pair(pair) for pair in result.pairs],
        "problems": [asdict(problem) for problem in result.problems],
    }


def _convert_pair(pair: Pair) -> dict[str, Any]:
    mistake = None
    if pair.mistake is not None:
        mistake = {
            "kind": pair.mistake.kind,
            "said": pair.mistake.summary,
            "holds": pair.mistake.actual_parameter,
        }
    return {**asdict(pair), "mistake": mistake}


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write the document as UTF-8."""
    write_document(to_json(result), stream)
