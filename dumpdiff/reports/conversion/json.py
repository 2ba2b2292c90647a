"""A conversion as JSON: docs/triage.schema.json says what is in it."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ... import __version__
from ..alignment.json import write_document
from ..weights.json import to_json as comparison_to_json

if TYPE_CHECKING:
    from ...conversion import Converted

#: Major: a reader of the old form breaks. Minor: something was added.
SCHEMA_VERSION = "1.0"


def to_json(result: Converted) -> dict[str, Any]:
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
                        "source": list(one.source),
                    }
                    for one in file.tensors
                ],
            }
            for file in result.plan.files
        ],
        "left_out": list(result.plan.left_out),
        "notes": list(result.plan.notes),
        "comparison": None if result.checked is None else comparison_to_json(result.checked),
    }


def write(result: Converted, stream: IO[bytes]) -> None:
    """Write the document, UTF-8."""
    write_document(to_json(result), stream)
