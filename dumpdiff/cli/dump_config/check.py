"""``dumpdiff dump-config check FILE``: parse, call :func:`dumpdiff.dump_config.check`, print."""

from __future__ import annotations

import click

from .. import options
from .target import add_target_options

_EPILOG = """\b
Exit codes:
  0  the configuration is valid
  1  it is not: MindSpore would refuse it, ignore a part of it, or write nothing
  2  wrong usage, or a file that cannot be read

\b
Examples:
  dumpdiff dump-config check dump.json
  dumpdiff dump-config check dump.json --backend cpu --ms-version 2.6
  dumpdiff dump-config check dump.json --dump earlier_dump/
  dumpdiff dump-config check dump.json --json | jq '.violations[].message'

Every rule: docs/dump-config.md
"""


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("file")
@add_target_options
@click.option(
    "--dump", metavar="DUMP", help="Earlier dump of the whole network: are the kernels in it?"
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

    FILE is what MINDSPORE_DUMP_CONFIG names. Reported is what stops the training, what is silently
    ignored, and what runs and writes nothing.
    """
    import json

    import dumpdiff

    from ...api.dump_config import parse_target

    violations = dumpdiff.dump_config.check(
        file, backend=backend, ms_version=ms_version, elsewhere=elsewhere, dump=dump
    )
    target = str(parse_target(backend, ms_version))
    if as_json:
        rows = [
            {
                "rule": violation.rule,
                "field": violation.field,
                "severity": violation.severity,
                "message": violation.message,
            }
            for violation in violations
        ]
        document = {"file": file, "target": target, "violations": rows}
        click.echo(json.dumps(document, indent=1))
    elif violations:
        click.echo("\n".join(map(str, violations)))
    else:
        click.echo(f"{file}: valid for {target}")
    ctx.exit(1 if violations else 0)
