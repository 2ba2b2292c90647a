"""``dumpdiff checklist [TARGET REFERENCE]``: check what can be checked, print the rest to tick off."""

from __future__ import annotations

import click

from . import output, stages

_EPILOG = f"""{
    stages.exits(
        agree="nothing that could be checked fails",
        differ="at least one item fails",
        unclear="nothing fails, but an item that settings or logs should answer cannot be told",
    )
}
\b
Examples:
  dumpdiff checklist
  dumpdiff checklist pretrain.yaml train.sh
  dumpdiff checklist pretrain.yaml train.sh --logs msrun_log/ megatron.log --markdown checklist.md

Without settings everything is printed to tick off, and the exit code is 0.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", required=False)
@click.argument("reference", required=False)
@click.option(
    "--logs", type=(str, str), metavar="TARGET REFERENCE", help="Training logs of both runs."
)
@click.option(
    "--target-version",
    metavar="X.Y",
    default="",
    help="Of TARGET's framework, where defaults changed.",
)
@click.option("--reference-version", metavar="X.Y", default="", help="Of REFERENCE's framework.")
@click.option(
    "--target-config",
    metavar="FILE",
    help="config.json of TARGET's model, if its structure is from there.",
)
@click.option("--reference-config", metavar="FILE", help="config.json of REFERENCE's model.")
@click.option(
    "--markdown", "markdown_file", metavar="FILE", help="Write a task list; - for standard output."
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write every item; - for standard output."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
@click.option("-v", "--verbose", is_flag=True, help="Print the evidence of what holds too.")
@click.pass_context
def checklist(
    ctx: click.Context,
    target: str | None,
    reference: str | None,
    logs: tuple[str, str] | None,
    target_version: str,
    reference_version: str,
    target_config: str | None,
    reference_config: str | None,
    markdown_file: str | None,
    json_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Check what to look at before anything is dumped.

    TARGET and REFERENCE are the settings of both runs, as for 'dumpdiff settings'. What they, and the logs, answer is
    checked; the rest is printed to tick off.
    """
    output.check_writable(json_file, markdown_file)
    if target is not None and reference is None:
        raise click.UsageError("give the settings of both runs, or of none")

    from .. import run_settings
    from .. import training_logs as curves
    from ..reports.stages import checklist as report
    from ..run_settings import checklist as triage

    compared = None
    if target is not None and reference is not None:
        sides = (
            (target, target_version, target_config),
            (reference, reference_version, reference_config),
        )
        compared = run_settings.compare(*(run_settings.read_settings(*side) for side in sides))
    printed = (
        None if logs is None else curves.compare(curves.read_log(logs[0]), curves.read_log(logs[1]))
    )
    answered = triage.check(compared, printed)
    report.write(answered, output.console(json_file, markdown_file), quiet=quiet, verbose=verbose)
    if markdown_file is not None:
        with output.writing(markdown_file) as stream:
            report.write_markdown(answered, stream)
    stages.finish(ctx, answered.verdict, json_file, lambda: report.to_json(answered))
