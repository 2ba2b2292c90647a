"""The published schemas: what each document of a command must follow."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from referencing import Registry, Resource

DOCS = Path(__file__).parents[1] / "docs"
RESULT, RUN, TRIAGE = (
    json.loads((DOCS / f"{name}.schema.json").read_text()) for name in ("result", "run", "triage")
)


def check(document: Any, definition: str = "") -> None:
    """Raise ValidationError unless it is a triage, or a stage: ``check(document, "settings")``."""
    _build_validator(definition).validate(document)


@cache
def _build_validator(definition: str) -> jsonschema.Draft202012Validator:
    schemas = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in (RESULT, RUN, TRIAGE)
    )
    reference = {"$ref": f"{TRIAGE['$id']}#{definition and f'/$defs/{definition}'}"}
    return jsonschema.Draft202012Validator(reference, registry=schemas)
