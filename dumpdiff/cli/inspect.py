"""``dumpdiff inspect DUMP``: parse, call :func:`dumpdiff.inspect`, print what the dump is."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = """\b
Exit codes:
  0  the dump could be read (problems are counted and listed)
  2  wrong usage, or input or output that cannot be used

\b
Examples:
  dumpdiff inspect ms_dump/
  dumpdiff inspect pt_dump/ --step 1 --rank 0 --json -
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("dump")
@options.step
@options.rank
@options.graph
@options.json_file
@options.language
@click.option("-v", "--verbose", is_flag=True, help="List every part and every problem.")
def inspect(
    dump: str,
    step: int | None,
    rank: int | None,
    graph: int | None,
    json_file: str | None,
    verbose: bool,
) -> None:
    """Say what a dump is: format, framework, steps, ranks, ops, tensors, bytes on disk, problems.

    DUMP is of any format that docs/formats.md lists. Steps, ranks and graphs are listed for the
    whole dump; the other figures are those of one part: the first step of the first rank, or the
    one that the options choose.
    """
    import dumpdiff

    from ..reports import inspection
    from ..reports.formats.json import write_document

    with output.show_progress() as progress:
        contents = dumpdiff.inspect(dump, step=step, rank=rank, graph=graph, progress=progress)
    console = output.build_console(json_file)
    inspection.write(contents.path, contents.parts, contents.trace, console, verbose=verbose)
    if json_file is not None:
        with output.open_output(json_file) as stream:
            write_document(contents.to_json(), stream)
