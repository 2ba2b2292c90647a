"""``dumpdiff inspect DUMP``: parse, read one part, print what it is."""

from __future__ import annotations

import click

from ..model.errors import DumpError
from . import output

_EPILOG = """\b
Exit codes:
  0  the dump could be read (problems met on the way are counted and listed)
  2  wrong usage, or input or output that cannot be used

\b
Examples:
  dumpdiff inspect ms_dump/
  dumpdiff inspect pt_dump/ --step 1 --rank 0 --json -
"""

_NUMBER = click.IntRange(min=0)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dump")
@click.option("--step", type=_NUMBER, help="Training step to read; default: the first.")
@click.option("--rank", type=_NUMBER, help="Device, or process, to read; default: the first.")
@click.option(
    "--graph", type=_NUMBER, help="Compiled graph of a MindSpore dump to read; default: the first."
)
@click.option("--json", "json_file", metavar="FILE", help="Write JSON; - for standard output.")
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

    DUMP is a folder or file of MindSpore, msprobe or ptdbg_ascend. Steps, ranks and graphs are listed for all of it;
    the other figures are those of the first step of the first rank, or of what is asked for.
    """
    output.check_writable(json_file)

    from .. import readers

    parts = readers.find(dump)
    asked = {
        key: value
        for key, value in (("step", step), ("rank", rank), ("graph", graph))
        if value is not None
    }
    names = {"step": "step", "rank": "number", "graph": "graph"}
    fitting = [
        part
        for part in parts
        if all(getattr(part, names[key]) == value for key, value in asked.items())
    ]
    if not fitting:
        wanted = ", ".join(f"{key} {value}" for key, value in asked.items())
        raise DumpError(f"{dump}: has no {wanted}; it holds: {'; '.join(map(str, parts))}")
    trace = readers.read(fitting[0])

    from ..reports.alignment.json import write_document
    from ..reports.inspection import text

    text.write(dump, parts, trace, output.console(json_file), verbose=verbose)
    if json_file is not None:
        with output.writing(json_file) as stream:
            write_document(text.to_json(dump, parts, trace), stream)
