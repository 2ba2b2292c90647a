"""A conversion as JSON, in the form of docs/triage.schema.json."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ... import __version__
from ..formats.json import write_document
from ..weights import json as weights_json

if TYPE_CHECKING:
    from ...conversion import ConversionResult
    from ...conversion.plan import File
    from ...conversion.rows import OutputTensor

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
#:   2.0  renamed keys: left_out -> skipped, of a tensor source -> sources; ``comparison`` is of
#:        version 2.0 of the comparison of weights
#:   2.1  huggingface
SCHEMA_VERSION = "2.1"


def to_json(result: ConversionResult) -> dict[str, Any]:
    """Return the result as plain dicts, lists, strings and numbers."""
    verification, huggingface = result.verification, result.huggingface
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "source": str(result.source),
        "folder": None if result.folder is None else str(result.folder),
        "target": result.plan.target,
        "verified": result.verified,
        "files": [_convert_file(file) for file in result.plan.files],
        "skipped": list(result.plan.skipped),
        "notes": list(result.plan.notes),
        "comparison": None if verification is None else weights_json.to_json(verification),
        "huggingface": None if huggingface is None else to_json(huggingface),
    }


def _convert_file(file: File) -> dict[str, Any]:
    return {"name": file.name, "tensors": [_convert_tensor(tensor) for tensor in file.tensors]}


def _convert_tensor(tensor: OutputTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "sources": list(tensor.sources),
    }


def write(result: ConversionResult, stream: IO[bytes]) -> None:
    """Write the document as UTF-8."""
    write_document(to_json(result), stream)
