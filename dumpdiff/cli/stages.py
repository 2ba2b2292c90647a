"""What the commands of a triage have in common: their exit codes and how they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..model.stage import Verdict
from . import output

EXIT_CODES: dict[Verdict, int] = {"agree": 0, "differ": 1, "unclear": 3}


def exits(agree: str, differ: str, unclear: str) -> str:
    """The part of a command's help that says its exit codes."""
    return f"""\b
Exit codes:
  0  {agree}
  1  {differ}
  2  wrong usage, or input or output that cannot be used
  3  {unclear}
"""


def finish(
    ctx: click.Context, verdict: Verdict, json_file: str | None, document: Callable[[], Any]
) -> None:
    """Write the JSON if it was asked for, and end with the verdict's exit code."""
    if json_file is not None:
        from ..reports.alignment import json

        with output.writing(json_file) as stream:
            json.write_document(document(), stream)
    ctx.exit(EXIT_CODES[verdict])
