"""``dumpdiff mapping RESULT --for msprobe``: parse, call :func:`dumpdiff.mapping`, write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..model.gc_pause import pause_gc
from . import options
from .output import show_progress, write_text
from .writing_command import OUTPUT_FILE, WritingCommand

if TYPE_CHECKING:
    from ..capture.msprobe.mapping_files import MappingKind

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used, or nothing to pair

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ -o result/
  dumpdiff mapping result/ --for msprobe -o data.yaml
  msprobe compare -tp ms_dump/step0 -gp pt_dump/step0 -o compared -dm data.yaml

\b
Kinds, and the option of msprobe compare that takes them:
  data  -dm  tensor by tensor: everything that was aligned, and nothing else
  cell  -cm  modules by name, where their call numbers and slots coincide
  api   -am  APIs by name, where their call numbers coincide (MindSpore target only)

The two dumps are read again; both must be msprobe's.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("result")
@click.option(
    "--for", "tool", type=click.Choice(["msprobe"]), required=True, help="Tool that will read it."
)
@click.option(
    "--kind",
    type=click.Choice(["data", "cell", "api"]),
    default="data",
    show_default=True,
    help="Kind of mapping.",
)
@click.option(
    "-o",
    "--output",
    "output_file",
    type=OUTPUT_FILE,
    default="-",
    help="File to write.  [standard output]",
)
@click.option(
    "--msprobe-version",
    metavar="VERSION",
    help="Version of the msprobe that will read it, such as 26.2.  [the reference's]",
)
@options.moved_target
@options.moved_reference
@options.more_rules
@pause_gc(is_last=True)
def mapping(
    result: str,
    tool: str,
    kind: MappingKind,
    output_file: str,
    msprobe_version: str | None,
    target: str | None,
    reference: str | None,
    rules: tuple[str, ...],
) -> None:
    """Write a mapping file, so that msprobe compares what was aligned.

    RESULT is the folder that 'dumpdiff align -o' wrote, or the file of 'dumpdiff align --json'.
    Without a mapping, msprobe pairs by names and call numbers.
    """
    import dumpdiff

    with show_progress() as progress:
        file_mapping = dumpdiff.mapping(
            result,
            kind,
            msprobe_version=msprobe_version,
            target=target,
            reference=reference,
            rules=rules,
            progress=progress,
        )
    write_text(output_file, file_mapping.to_yaml())
    if output_file != "-":
        for note in file_mapping.notes:
            click.echo(note, err=True)
