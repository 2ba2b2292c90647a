"""Short JSON for programs that read every byte, such as language models: at most 8 kB."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ...model.finding import Finding
from .json import to_plain

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"
MAX_BYTES: Final = 8_000  #: of the whole document
_MAX_ITEMS = 3  #: of each list; ``n_findings``, ``n_notes`` have the real numbers
_MAX_TEXT = 240  #: characters of a sentence or a name, the rest is cut
#: Lists that are shortened, the least important first, if the document is still too long.
_LISTS = ("notes", "weaknesses", "findings")


def fit(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of plain values that is written in at most :data:`MAX_BYTES`."""
    plain_document: dict[str, Any] = to_plain(document)
    for name in _LISTS:
        items = plain_document.get(name, [])
        while items and len(json.dumps(plain_document, indent=2)) > MAX_BYTES:
            items.pop()
    return plain_document


def shorten(text: str) -> str:
    """Return a text without its middle if it is long: both ends of a name say something."""
    if len(text) <= _MAX_TEXT:
        return text
    half = (_MAX_TEXT - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def list_first(sentences: Iterable[str]) -> list[str]:
    """Return the first sentences, shortened."""
    return [shorten(sentence) for sentence in list(sentences)[:_MAX_ITEMS]]


def select_first(findings: Sequence[Any]) -> Sequence[Any]:
    """Return the findings that a brief document has."""
    return findings[:_MAX_ITEMS]


def convert_finding(finding: Finding) -> dict[str, Any]:
    """Return what decides about a finding: where, how large, why."""
    cause = finding.causes[0] if finding.causes else None
    return {
        "id": finding.id,
        "rank": finding.rank,
        "kind": finding.kind,
        "phase": finding.phase,
        "scope": shorten(finding.scope),
        "target_op": shorten(finding.target_ops[-1]) if finding.target_ops else None,
        "reference_op": shorten(finding.reference_ops[-1]) if finding.reference_ops else None,
        "error": finding.metrics.get("error", float("nan")),
        "tolerance": finding.tolerance,
        "confidence": finding.confidence,
        "side": finding.side,
        "cause": cause and {"name": cause.name, "text": shorten(cause.text)},
        "unexplained": shorten(finding.unexplained),
        "source": {side: shorten(line) for side, line in finding.source.items()},
    }


def list_next_commands(verdict: str, first: Finding | None) -> list[str]:
    """Return the commands that lead on; RESULT is the folder of ``align -o``."""
    if verdict == "aligned":
        return []
    if first is not None and first.causes:
        return [f"dumpdiff explain RESULT --finding {first.id}"]
    if first is not None:
        return ["dumpdiff narrow RESULT -o next"]
    return ["dumpdiff verify TARGET", "dumpdiff verify REFERENCE"]
