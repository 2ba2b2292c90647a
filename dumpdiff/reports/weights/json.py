"""The comparison of two checkpoints as JSON, in the form of docs/triage.schema.json.

docs/weights.md explains the fields.
"""

from __future__ import annotations

from typing import IO, Any

from ... import __version__
from ...weight_comparison import CheckpointSummary, Pair, WeightsResult
from ..formats.json import convert_problem, write_document

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
#:   2.0  renamed keys of a pair: whole -> fused_parameter, largest -> max_absolute, unequal ->
#:        differing_elements; of its mistake said -> summary and holds -> actual_parameter
SCHEMA_VERSION = "2.0"


def to_json(result: WeightsResult) -> dict[str, Any]:
    """Return the result as plain dicts, lists, strings and numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "target": _convert_checkpoint(result.target),
        "reference": _convert_checkpoint(result.reference),
        "verdict": result.verdict,
        "relation": result.relation,
        "coverage": result.coverage,
        "layer_shift": result.layer_shift,
        "mistakes": [_convert_pair(pair) for pair in result.mistakes],
        "missing": list(result.missing),
        "unknown": list(result.unknown),
        "notes": list(result.notes),
        "pairs": [_convert_pair(pair) for pair in result.pairs],
        "problems": [convert_problem(problem) for problem in result.problems],
    }


def _convert_checkpoint(checkpoint: CheckpointSummary) -> dict[str, Any]:
    return {
        "path": checkpoint.path,
        "format": checkpoint.format,
        "family": checkpoint.family,
        "tensors": checkpoint.tensors,
        "bytes": checkpoint.bytes,
    }


def _convert_pair(pair: Pair) -> dict[str, Any]:
    mistake = None
    if pair.mistake is not None:
        mistake = {
            "kind": pair.mistake.kind,
            "summary": pair.mistake.summary,
            "actual_parameter": pair.mistake.actual_parameter,
        }
    return {
        "path": pair.path,
        "target": pair.target,
        "reference": pair.reference,
        "evidence": pair.evidence,
        "shape": pair.shape,
        "dtypes": pair.dtypes,
        "relation": pair.relation,
        "fused_parameter": pair.fused_parameter,
        "layout": pair.layout,
        "rounding": pair.rounding,
        "error": pair.error,
        "max_absolute": pair.max_absolute,
        "differing_elements": pair.differing_elements,
        "elements": pair.elements,
        "mistake": mistake,
    }


def write(result: WeightsResult, stream: IO[bytes]) -> None:
    """Write the document as UTF-8."""
    write_document(to_json(result), stream)
