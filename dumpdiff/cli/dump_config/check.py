"""``dumpdiff dump-config check FILE``: call the check, print what it finds."""

from __future__ import annotations

import click

from .target import target, target_options

_EPILOG = """\b
Exit codes:
  0  the configuration holds
  1  it does not: MindSpore would refuse it, ignore a part of it, or write nothing
  2  wrong usage, or a file that cannot be read

\b
Examples:
  dumpdiff dump-config check dump.json
  dumpdiff dump-config check dump.json --backend cpu --ms-version 2.6
  dumpdiff dump-config check dump.json --dump earlier_dump/
  dumpdiff dump-config check dump.json --json | jq '.violations[].message'

Every rule: docs/dump-config.md
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@target_options
@click.option(
    "--dump", metavar="DUMP", help="An earlier dump of the whole network: are the kernels in it?"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    file: str,
    backend: str,
    ms_version: str,
    elsewhere: bool,
    dump: str | None,
    as_json: bool,
) -> None:
    """Say what MindSpore makes of an existing configuration.

    FILE is what MINDSPORE_DUMP_CONFIG names. Reported is what stops the training, what is silently ignored, and what
    runs and writes nothing.
    """
    import json

    from ...capture.mindspore import check_file

    on = target(backend, ms_version)
    found = check_file(file, on, here=not elsewhere, names=None if dump is None else _names(dump))
    if as_json:
        violations = [violation._asdict() for violation in found]
        click.echo(
            json.dumps({"file": file, "target": str(on), "violations": violations}, indent=1)
        )
    else:
        click.echo("\n".join(map(str, found)) if found else f"{file}: holds for {on}")
    ctx.exit(1 if found else 0)


def _names(dump: str) -> tuple[str, ...]:
    """Full names of operators and parameters in a dump. Raises DumpError if it has none, lacking its graph."""
    from ... import api
    from ...capture.mindspore.kernels import names_in

    return names_in(api.read(dump))
