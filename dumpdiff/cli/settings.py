"""``dumpdiff settings TARGET REFERENCE``: parse, call :func:`dumpdiff.settings`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="no setting differs that changes what is computed (some that only round may)",
        differ="at least one differs, or is set where the other framework has no such option",
        inconclusive="nothing differs, but some settings that matter are unknown",
    )
}
\b
Examples:
  dumpdiff settings pretrain_llama.yaml train_llama.sh
  dumpdiff settings pretrain_llama.yaml megatron.log --json settings.json
  dumpdiff settings run_mindspore.sh run_swift.sh --reference-config Qwen2.5-7B/config.json -v
  dumpdiff settings pretrain.yaml "bash run_mcore_qwen.sh dsw 7B 1 8 1e-5"

A script is read, never run. A log with the arguments that Megatron-LM printed says more than the
script.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target")
@click.argument("reference")
@options.target_version
@options.reference_version
@options.target_config
@options.reference_config
@options.json_file
@options.language
@options.quiet
@click.option(
    "-v", "--verbose", is_flag=True, help="Also print what is equal, and what changes no number."
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

    TARGET and REFERENCE are each the YAML, JSON or TOML of a training, a launch script ("bash
    run.sh dsw 8B" with its arguments), a log with the arguments that a framework printed, or saved
    arguments (args.json). Read are Megatron-LM, Megatron-SWIFT, MindSpore Transformers, Hugging
    Face Trainer, LLaMA-Factory, ms-swift, accelerate, DeepSpeed, NeMo, torchtitan and verl.
    """
    import dumpdiff

    from ..reports.stages import settings

    comparison = dumpdiff.settings(
        target,
        reference,
        target_version=target_version,
        reference_version=reference_version,
        target_config=target_config,
        reference_config=reference_config,
    )
    settings.write(comparison, output.build_console(json_file), quiet=quiet, verbose=verbose)
    output.finish(ctx, comparison.verdict, json_file, lambda: settings.to_json(comparison))
