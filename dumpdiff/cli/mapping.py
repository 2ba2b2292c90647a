"""``dumpdiff mapping RESULT --for msprobe``: what ``msprobe compare`` needs to compare what dumpdiff aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..model.gc_pause import collector_paused
from . import output

if TYPE_CHECKING:
    from ..capture.msprobe.mapping_files import Kind

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used, or nothing to pair

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ --json result.json
  dumpdiff mapping result.json --for msprobe -o data.yaml
  msprobe compare -tp ms_dump/step0 -gp pt_dump/step0 -o compared -dm data.yaml

\b
Kinds, and the option of msprobe compare that takes them:
  data  -dm  tensor by tensor: all that was aligned, and nothing else
  cell  -cm  modules by name, where their call numbers and slots coincide
  api   -am  APIs by name, where their call numbers coincide (MindSpore target only)

The two dumps named in the result are read again; both must be msprobe's.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("result")
@click.option(
    "--for",
    "tool",
    type=click.Choice(["msprobe"]),
    required=True,
    help="The tool that will read it.",
)
@click.option(
    "--kind", type=click.Choice(["data", "cell", "api"]), default="data", show_default=True
)
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    default="-",
    help="Where to; default: standard output.",
)
@click.option(
    "--msprobe-version",
    metavar="VERSION",
    help="Of the msprobe that will read it, such as 26.2; default: what wrote the reference.",
)
@click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="Rules beyond those that the result was made with.",
)
@collector_paused()
def mapping(
    result: str,
    tool: str,
    kind: Kind,
    file: str,
    msprobe_version: str | None,
    rules: tuple[str, ...],
) -> None:
    """Write the mapping by which msprobe compares what was aligned.

    RESULT is what 'dumpdiff align --json RESULT' wrote. msprobe by itself pairs by names and call numbers.
    """
    output.check_writable(file)

    from .. import api
    from ..capture.msprobe import parse_version

    version = None if msprobe_version is None else parse_version(msprobe_version)
    with output.progress() as progress:
        found = api.mapping(result, kind, version=version, rules=rules, progress=progress)
    with output.writing(file) as stream:
        stream.write(found.text().encode())
    if file != "-":
        for note in found.notes:
            click.echo(note, err=True)
