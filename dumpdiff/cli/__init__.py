"""The command line: one module per command, imported only when the command runs, and no logic of its own."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from .. import __version__
from ..model.errors import DumpError

#: Command -> where it lives and what it does. The line stands here, not in the command,
#: so that ``dumpdiff --help`` imports none of them.
COMMANDS = {
    "align": ("dumpdiff.cli.align:align", "Find where two dumps of one model part."),
    "explain": ("dumpdiff.cli.explain:explain", "Say why a finding of a result came about."),
    "report": ("dumpdiff.cli.report:report", "Write a result for people: HTML, Markdown, JUnit."),
    "narrow": (
        "dumpdiff.cli.narrow:narrow",
        "Say what to dump next: whole tensors around a finding.",
    ),
    "mapping": (
        "dumpdiff.cli.mapping:mapping",
        "Write the mapping by which msprobe compares what was aligned.",
    ),
    "inspect": ("dumpdiff.cli.inspect:inspect", "Say what a dump is and what it holds."),
    "rules": ("dumpdiff.cli.rules:rules", "Check and explain the rules for names and operators."),
    "dump-config": (
        "dumpdiff.cli.dump_config:dump_config",
        "Write or check the configuration of a dump.",
    ),
    "env": (
        "dumpdiff.cli.env:env",
        "Print the environment of a run that is dumped and repeats itself.",
    ),
    "snippet": ("dumpdiff.cli.snippet:snippet", "Print code to paste into a training script."),
    "triage": (
        "dumpdiff.cli.triage:triage",
        "Say where a mismatch comes from, from all there is of two runs.",
    ),
    "settings": ("dumpdiff.cli.settings:settings", "Compare the settings of two runs."),
    "checklist": (
        "dumpdiff.cli.checklist:checklist",
        "Check what to look at before anything is dumped.",
    ),
    "data": ("dumpdiff.cli.data:data", "Compare the first batches of two runs: the same tokens?"),
    "logs": ("dumpdiff.cli.logs:logs", "Compare the training logs of two runs."),
    "norms": ("dumpdiff.cli.norms:norms", "Compare the gradient norm of every parameter."),
    "weights": (
        "dumpdiff.cli.weights:weights",
        "Compare two checkpoints: are they the same weights?",
    ),
    "optimizer": (
        "dumpdiff.cli.optimizer:optimizer",
        "Say which rule moved the weights: SGD, Adam, AdamW, ...",
    ),
}

# Beyond the verdicts (0, 1, 3): 2 as click uses it, 70 as sysexits.h EX_SOFTWARE, 128 + n as a shell for signal n.
# Python's own 1 for a crash, and click's 1 for an interrupt, would read as "diverged".
UNUSABLE, CRASHED, INTERRUPTED, CLOSED_PIPE = 2, 70, 128 + 2, 128 + 13


class Commands(click.Group):
    """A group that imports a command on first use and turns what goes wrong into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table instead of asking each command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever stops it leaves one line on stderr (a bug: its traceback) and its exit code."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # a closed pipe must show here, not in the interpreter's last breath
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except DumpError as error:
            _say(str(error))
            ctx.exit(UNUSABLE)
        except KeyboardInterrupt:
            _say("interrupted")
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader has gone: nothing more may be written, not even by the interpreter when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(CLOSED_PIPE)
        except OSError as error:
            _say(
                f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
            )
            ctx.exit(UNUSABLE)
        except Exception:
            traceback.print_exc()
            _say("this is a bug in dumpdiff; please report it with the lines above")
            ctx.exit(CRASHED)


def _say(message: str) -> None:
    line = " ".join(message.split())
    click.echo(
        f"dumpdiff: {''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)}", err=True
    )


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="dumpdiff")
def main() -> None:
    """Find where two training runs of one model part.

    Give it the dumps of two runs (MindSpore or PyTorch) of the same model with the same weights and the same batch;
    it pairs their operators without a hand-written map and names the first one whose inputs agree and whose
    output does not.
    """


def run() -> NoReturn:
    """The console script: ``main``, ended at once: freeing a million objects one by one takes a third of a second."""
    status: object = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))
