"""A conversion as JSON: docs/triage.schema.json says what is in it."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ... import __version__
from ..alignment.json import write_document
from ..weights.json import to_json as comparison_to_json

if TYPE_CHECKING:
    from ...conversion import ConversionResult

#: Major: a reader of the old form breaks. Minor: something was added.
SCHEMA_VERSION = "1.0"


def to_json(result: ConversionResult) -> dict[str, Any]:
    """The result as plain dicts, lists, strings and numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "source": str(result.source),
        "folder": None if result.folder is None else str(result.folder),
        "target": result.plan.target,
        "verified": result.verified,
        "files": [
            {
                "name": file.name,
                "tensors": [
                    {
                        "name": one.name,
                        "dtype": one.dtype,
                        "shape": list(one.shape),
                        "source": list(one.sources),
                    }
                    for one in file.tensors
                ],
            }
            for file in result.plan.files
        ],
        "left_out": list(result.plan.skipped),
        "notes": list(result.plan.notes),
        "comparison": None
        if result.verification is None
        else comparison_to_json(result.verification),
    }


def write(result: ConversionResult, stream: IO[bytes]) -> None:
    """Write the document, UTF-8."""
    write_document(to_json(result), stream)
