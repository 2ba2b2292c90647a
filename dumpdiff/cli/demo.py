"""``dumpdiff demo [FOLDER]``: call :func:`dumpdiff.demo`, say what to try."""

from __future__ import annotations

import shlex

import click

from . import options

_EPILOG = """\b
Exit codes:
  0  unpacked
  2  wrong usage, or a folder that is not empty

\b
Examples:
  dumpdiff demo
  dumpdiff demo /tmp/demo
"""
#: What a beginner tries, in this order; the names are those in the demo's folder.
COMMANDS = (
    "dumpdiff triage mindformers megatron",
    "dumpdiff align mindformers/dump megatron/dump -o result",
    "dumpdiff explain result --finding 1",
    "dumpdiff settings mindformers/settings.yaml megatron/train.sh",
    "dumpdiff checklist mindformers/settings.yaml megatron/train.sh",
    "dumpdiff data mindformers/batch.npz megatron/batch.npz",
    "dumpdiff logs mindformers/train.log megatron/train.log",
    "dumpdiff norms mindformers/local_norms.log megatron/local_norms.log",
    "dumpdiff weights mindformers/checkpoint/model.ckpt megatron/checkpoint/model.pt",
    "dumpdiff optimizer mindformers/steps megatron/steps",
)


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("folder", default="dumpdiff_demo")
def demo(folder: str) -> None:
    """Unpack two small runs to try every command on.

    They are a MindSpore and a PyTorch run of one model, with settings, logs, gradient norms, batch,
    checkpoint, steps and dumps. FOLDER is made; its name is dumpdiff_demo if none is given.
    """
    import dumpdiff

    path = dumpdiff.demo(folder)
    click.echo(f"unpacked: {path}; try\n\n    cd {shlex.quote(str(path))}")
    for command in COMMANDS:
        click.echo(f"    {command}")
