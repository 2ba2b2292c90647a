"""``dumpdiff rules``: parse, call :mod:`dumpdiff.rules`, print."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .output import show_progress


@click.group(context_settings=options.CONTEXT)
def rules() -> None:
    """Check, explain and suggest the rules that map names of modules, parameters and operators."""


@rules.command(
    epilog="""\b
Examples:
  dumpdiff rules check
  dumpdiff rules check my_rules.yaml"""
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
def check(files: tuple[Path, ...]) -> None:
    """Validate the shipped rules and the given FILEs.

    Stops with exit code 2 at the first rule that is wrong.
    """
    import dumpdiff

    for kind, count in dumpdiff.rules.check(*files).items():
        click.echo(f"{count:6d} {kind}")
    click.echo("rules are valid")


@rules.command(
    epilog="""\b
Examples:
  dumpdiff rules explain model.layers.0.self_attn.q_proj.weight
  dumpdiff rules explain Default/network-WithLoss/layers-CellList/0-Block/norm-RMSNorm/Mul-op3
  dumpdiff rules explain --rules my_rules.yaml Functional.linear"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@options.rules
def explain(names: tuple[str, ...], rules: tuple[str, ...]) -> None:
    """Say what each NAME is as a scope, a parameter and an operator, and which rules say so."""
    import dumpdiff

    for name, explanations in dumpdiff.rules.explain(*names, rules=rules).items():
        click.echo(name)
        for explanation in explanations:
            click.echo(f"  {explanation.reading:<10} {explanation.result or '(no rule)'}")
            for line in explanation.rules:
                click.echo(f"             {line}")
            if explanation.notes:
                click.echo(f"             {'; '.join(explanation.notes)}")
            for line in explanation.closest:
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
@options.rules
def suggest(target: str, reference: str, rules: tuple[str, ...]) -> None:
    """Print, as a rule file, what two dumps that mostly agree show and the rules do not know.

    TARGET and REFERENCE are two dumps of one model, as for align: equivalent operators,
    decompositions, and names of modules and parameters.
    """
    import dumpdiff

    with show_progress() as progress:
        text = dumpdiff.rules.suggest(target, reference, rules=rules, progress=progress)
    click.echo(text, nl=False)
