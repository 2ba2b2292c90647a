"""The result as JSON, for programs: docs/result.schema.json says what is in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

import numpy as np

from ... import __version__
from ...model.result import Baseline, Finding, Result, Side
from ...model.trace import Source

#: Major: a reader of the old form breaks. Minor: something was added.
#: History:
#:   1.0  first published form
#:   1.1  baseline: the second run of the reference; of a finding side, causes and unexplained
#:   1.2  process of a dump without ranks; rank is its number as before, which --rank takes
#:   1.3  findings of kind constant: tables that no training moves, which were of kind parameter
SCHEMA_VERSION = "1.3"


def to_json(result: Result) -> dict[str, Any]:
    """The result as plain dicts, lists, strings, ints, floats, bools and None, in the form of docs/result.schema.json.

    RFC 8259 knows no NaN and no infinity: NaN, which says "not measured" here, becomes null, and an infinite
    error, which says something, becomes the string "Infinity" or "-Infinity".
    """
    first = result.first_divergence
    document = {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "target": _side(result.target),
        "reference": _side(result.reference),
        "verdict": result.verdict,
        "first_divergence": None if first is None else finding_document(first),
        "findings": [finding_document(finding) for finding in result.findings],
        "coverage": {
            side: {phase: _figures(figures) for phase, figures in phases.items()}
            for side, phases in result.coverage.items()
        },
        "pairs": {
            str(state): int(count) for state, count in result.pairs["state"].value_counts().items()
        },
        "unmatched": {
            side: result.unmatched[result.unmatched["side"] == side]
            .drop(columns="side")
            .to_dict("records")
            for side in ("target", "reference")
        },
        "learned": [asdict(same) for same in result.learned],
        "noise_floor": result.noise_floor,
        "baseline": None if result.baseline is None else _baseline(result.baseline),
        "notes": result.notes,
        "problems": [
            {"side": role, **asdict(problem)}
            for role, side in (("target", result.target), ("reference", result.reference))
            for problem in side.problems
        ],
        "details": result.details,
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the result as UTF-8 JSON, indented; the same result gives the same bytes."""
    write_document(to_json(result), stream)


def write_document(document: Mapping[str, Any], stream: IO[bytes]) -> None:
    """Write any document of plain values in this project's form of JSON (numbers as :func:`to_json` says)."""
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    # A path that is no valid UTF-8 holds lone surrogates; their backslash form is also their JSON escape.
    stream.write(text.encode("utf-8", errors="backslashreplace") + b"\n")


def _side(side: Side) -> dict[str, Any]:
    return {**_source(side.source), "ops": side.ops, "tensors": side.tensors}


def _source(source: Source) -> dict[str, Any]:
    return {
        "path": source.path,
        "framework": source.framework,
        "format": source.format,
        "era": source.era,
        "step": source.step,
        "rank": source.number,
        "process": source.process,
        "graph": source.graph,
        "details": source.details,
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    return {**vars(baseline), "source": _source(baseline.source)}


def finding_document(finding: Finding) -> dict[str, Any]:
    """One finding, as it stands in the result."""
    slots = [{"target": target, "reference": reference} for target, reference in finding.slots]
    return {**vars(finding), "slots": slots, "causes": [vars(cause) for cause in finding.causes]}


def _figures(figures: Mapping[str, float]) -> dict[str, Any]:
    return {name: value if name == "share" else int(value) for name, value in figures.items()}


def _plain(value: Any) -> Any:
    """What JSON can hold, deeply; TypeError for what it cannot, rather than some text nobody can read back."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")
