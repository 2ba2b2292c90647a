"""The JSON of an earlier comparison, as far as it says how to repeat it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DumpError

_LARGEST = 1 << 30  #: bytes; a result of a 20,000-call pair has some ten million


@dataclass(frozen=True)
class Recorded:
    """Which two dumps were compared, in which part, and what was found."""

    target: str
    reference: str
    step: int | None
    rank: int | None
    graph: int | None
    baseline: str | None
    weights: tuple[
        str | None, str | None
    ]  #: checkpoints that named the parameters of target and reference
    min_coverage: float
    rules: tuple[str, ...]  #: further rule files
    titles: tuple[str, ...]  #: of the findings, by rank


def recorded(file: Path) -> Recorded:
    """Read a result. Raises DumpError if the file is none of schema version 1."""
    expected = f"{file}: expected a result of dumpdiff align --json"
    try:
        if file.stat().st_size > _LARGEST:
            raise DumpError(f"{expected}, found a file of more than {_LARGEST:,} bytes")
        document = json.loads(file.read_text(encoding="utf-8"))
        if str(document["schema_version"]).partition(".")[0] != "1":
            raise DumpError(f"{expected} of schema version 1, found {document['schema_version']}")
        target, reference, baseline = (
            document["target"],
            document["reference"],
            document.get("baseline"),
        )
        return Recorded(
            target=str(target["path"]),
            reference=str(reference["path"]),
            step=_common(target, reference, "step"),
            rank=_common(target, reference, "rank"),
            graph=target["graph"] if target["graph"] is not None else reference["graph"],
            baseline=None if baseline is None else str(baseline["source"]["path"]),
            weights=(_weights(target), _weights(reference)),
            min_coverage=float(document["details"]["min_coverage"]),
            rules=tuple(str(file) for file in document["details"].get("rules", ())),
            titles=tuple(str(finding["title"]) for finding in document["findings"]),
        )
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DumpError(f"{expected}, found something else") from error


def _weights(side: Any) -> str | None:
    """The checkpoint that named the parameters of a side."""
    said = side["details"].get("weights")
    return None if said is None else str(said)


def _common(target: Any, reference: Any, name: str) -> int | None:
    """A number that both sides name alike; where they do not, the paths already say which part is meant."""
    return target[name] if target[name] == reference[name] else None
