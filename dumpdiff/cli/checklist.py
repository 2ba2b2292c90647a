"""``dumpdiff checklist [TARGET REFERENCE]``: parse, call :func:`dumpdiff.checklist`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import OUTPUT_FILE, WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="nothing that could be checked fails",
        differ="at least one item fails",
        inconclusive="nothing fails, but an item that settings or logs should answer is not known",
    )
}
\b
Examples:
  dumpdiff checklist
  dumpdiff checklist pretrain.yaml train.sh
  dumpdiff checklist pretrain.yaml train.sh --logs msrun_log/ megatron.log --markdown checklist.md

Without settings every item is printed to tick off, and the exit code is 0.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target", required=False)
@click.argument("reference", required=False)
@click.option(
    "--logs", type=(str, str), metavar="TARGET REFERENCE", help="Training logs of both runs."
)
@options.target_version
@options.reference_version
@options.target_config
@options.reference_config
@click.option(
    "--markdown",
    "markdown_file",
    type=OUTPUT_FILE,
    help="Write a task list; - for standard output.",
)
@options.json_file
@options.quiet
@options.language
@click.option("-v", "--verbose", is_flag=True, help="Also print the evidence of items that hold.")
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
    """Answer the guides' checklists, and print the open items to tick off.

    TARGET and REFERENCE are the settings of both runs, as for 'dumpdiff settings'. Items that
    settings and logs can answer are checked.
    """
    if target is not None and reference is None:
        raise click.UsageError("give the settings of both runs, or of neither")

    import dumpdiff

    from ..reports.stages import checklist

    answers = dumpdiff.checklist(
        target,
        reference,
        logs=logs,
        target_version=target_version,
        reference_version=reference_version,
        target_config=target_config,
        reference_config=reference_config,
    )
    console = output.build_console(json_file, markdown_file)
    checklist.write(answers, console, quiet=quiet, verbose=verbose)
    if markdown_file is not None:
        with output.open_output(markdown_file) as stream:
            checklist.write_markdown(answers, stream)
    # A list that is printed to be ticked off compares nothing.
    is_list = target is None and logs is None
    verdict = "agree" if is_list else answers.verdict
    output.finish(ctx, verdict, json_file, lambda: checklist.to_json(answers))
