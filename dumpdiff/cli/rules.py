"""``dumpdiff rules``: whether rule files hold, why a name became what it became, and which rules two dumps suggest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..rulebook import Rules

_FILES = click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
_EXTRA = click.option(
    "--rules",
    "extra",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rules of your own.",
)


@click.group()
def rules() -> None:
    """Check, explain and suggest the rules that give modules, parameters and operators one name."""


@rules.command(
    epilog="""\b
Examples:
  dumpdiff rules check
  dumpdiff rules check my_rules.yaml"""
)
@_FILES
def check(files: tuple[Path, ...]) -> None:
    """Validate the shipped rules and the FILEs given; stops (exit code 2) at the first rule that does not hold."""
    for what, count in _load(files).counts().items():
        click.echo(f"{count:6d} {what}")
    click.echo("rules hold")


@rules.command(
    epilog="""\b
Examples:
  dumpdiff rules explain model.layers.0.self_attn.q_proj.weight
  dumpdiff rules explain Default/network-WithLoss/layers-CellList/0-Block/norm-RMSNorm/Mul-op3
  dumpdiff rules explain --rules my_rules.yaml Functional.linear"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_EXTRA
def explain(names: tuple[str, ...], extra: tuple[Path, ...]) -> None:
    """Say what each NAME is as a scope, a parameter and an operator, and which rules say so."""
    book = _load(extra)
    for name in names:
        click.echo(name)
        for reading in book.explain(name):
            click.echo(f"  {reading.reading:<10} {reading.result or '(no rule)'}")
            for line in reading.rules:
                click.echo(f"             {line}")
            if reading.notes:
                click.echo(f"             {'; '.join(reading.notes)}")
            for line in reading.closest:
                click.echo(f"             closest: {line}")


@rules.command(
    epilog="""\b
Examples:
  dumpdiff rules suggest ms_dump/ pt_dump/ > learned.yaml
  dumpdiff rules check learned.yaml
  dumpdiff align ms_dump/ pt_dump/ --rules learned.yaml"""
)
@click.argument("target")
@click.argument("reference")
@_EXTRA
def suggest(target: str, reference: str, extra: tuple[Path, ...]) -> None:
    """Print, as a rule file, what two dumps that mostly agree show and the rules do not know.

    TARGET and REFERENCE are two dumps of one model, as for align: operators that are the same or of which one is
    several, and names of modules and parameters.
    """
    from .. import api
    from ..rulebook.suggestions import suggestions
    from . import output

    book = _load(extra)
    with output.progress() as progress:
        result = api.align(target, reference, rules=extra, progress=progress)
    click.echo(suggestions(result, book), nl=False)


def _load(extra: tuple[Path, ...]) -> Rules:
    from ..rulebook import load_rules

    return load_rules(extra)
