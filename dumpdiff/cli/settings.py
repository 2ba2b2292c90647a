"""``dumpdiff settings TARGET REFERENCE``: read both runs' settings, compare, print."""

from __future__ import annotations

import click

from . import output, stages

_EPILOG = f"""{
    stages.exits(
        agree="no setting differs that changes what is computed (some that only round may)",
        differ="at least one does, or is set where the other framework has no such option",
        unclear="nothing differs, but some that matter cannot be told from these files",
    )
}
\b
Examples:
  dumpdiff settings pretrain_llama.yaml train_llama.sh
  dumpdiff settings pretrain_llama.yaml megatron.log --json settings.json
  dumpdiff settings run_mindspore.sh run_swift.sh --reference-config Qwen2.5-7B/config.json -v

A script is read, never run. A log with the arguments that Megatron-LM printed says more than the script.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("reference")
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
    "--json", "json_file", metavar="FILE", help="Write every setting; - for standard output."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print what is equal, and what changes no number, too."
)
@click.pass_context
def settings(
    ctx: click.Context,
    target: str,
    reference: str,
    target_version: str,
    reference_version: str,
    target_config: str | None,
    reference_config: str | None,
    json_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Compare the settings of two runs.

    TARGET and REFERENCE are each a YAML of MindSpore Transformers, a launch script of any of the frameworks, a log
    with the arguments that Megatron-LM or Megatron-SWIFT printed, or saved arguments (args.json).
    """
    output.check_writable(json_file)

    from ..reports.stages import settings as report
    from ..run_settings import compare, read_settings

    sides = (
        (target, target_version, target_config),
        (reference, reference_version, reference_config),
    )
    comparison = compare(*(read_settings(*side) for side in sides))
    report.write(comparison, output.console(json_file), quiet=quiet, verbose=verbose)
    stages.finish(ctx, comparison.verdict, json_file, lambda: report.to_json(comparison))
