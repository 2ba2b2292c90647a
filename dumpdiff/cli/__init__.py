"""The command line: one module per command; it parses, calls the library and prints.

The module of a command is imported only when the command runs.
"""

from __future__ import annotations

import copy
import difflib
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from .. import __version__
from ..model.errors import DumpError
from ..model.formatting import escape_control
from ..model.verdict import CLOSED_PIPE, CRASHED, INTERRUPTED, UNUSABLE_INPUT

#: Command -> its function and a summary. The summary is here, not in the command, so that
#: ``dumpdiff --help`` imports no command.
COMMANDS = {
    "demo": ("dumpdiff.cli.demo:demo", "Unpack two small runs to try every command on."),
    "align": ("dumpdiff.cli.align:align", "Find where two dumps of one model diverge."),
    "explain": ("dumpdiff.cli.explain:explain", "Say which side is wrong at a finding, and why."),
    "report": ("dumpdiff.cli.report:report", "Write reports of a result: HTML, Markdown, JUnit."),
    "serve": ("dumpdiff.cli.serve:serve", "Serve the report with the values of every pair."),
    "narrow": ("dumpdiff.cli.narrow:narrow", "Write the next dump's configuration."),
    "mapping": ("dumpdiff.cli.mapping:mapping", "Write a mapping file for msprobe compare."),
    "inspect": ("dumpdiff.cli.inspect:inspect", "Say what a dump is and what it holds."),
    "verify": ("dumpdiff.cli.verify:verify", "Check whether a dump contradicts itself."),
    "check": ("dumpdiff.cli.check:check", "Check a run of many ranks without a reference."),
    "golden": ("dumpdiff.cli.golden:golden", "Keep a dump's numbers, and check later dumps."),
    "rules": ("dumpdiff.cli.rules:rules", "Check, explain and suggest naming rules."),
    "dump-config": ("dumpdiff.cli.dump_config:dump_config", "Write or check a dump configuration."),
    "record": ("dumpdiff.cli.record:record", "Run a PyTorch script and record its steps."),
    "env": ("dumpdiff.cli.env:env", "Print the environment of a deterministic, dumped run."),
    "snippet": ("dumpdiff.cli.snippet:snippet", "Print code to paste into a training script."),
    "triage": ("dumpdiff.cli.triage:triage", "Find where a mismatch of two runs comes from."),
    "settings": ("dumpdiff.cli.settings:settings", "Compare the settings of two runs."),
    "checklist": ("dumpdiff.cli.checklist:checklist", "Answer the guides' checklists."),
    "data": ("dumpdiff.cli.data:data", "Compare the first batches of two runs."),
    "logs": ("dumpdiff.cli.logs:logs", "Compare the training logs of two runs."),
    "norms": ("dumpdiff.cli.norms:norms", "Compare the gradient norm of every parameter."),
    "weights": ("dumpdiff.cli.weights:weights", "Compare or convert checkpoints."),
    "optimizer": ("dumpdiff.cli.optimizer:optimizer", "Say which rule updated the weights."),
    "completion": ("dumpdiff.cli.completion:completion", "Print the completion of a shell."),
}

#: Heading of the help -> its commands.
SECTIONS: Final = {
    "Start here": ("demo", "align", "triage"),
    "After a comparison": ("explain", "report", "serve", "narrow", "mapping"),
    "One run, no reference": ("inspect", "verify", "check", "golden"),
    "Without dumps": ("settings", "checklist", "data", "logs", "norms", "weights", "optimizer"),
    "Recording": ("dump-config", "record", "env", "snippet"),
    "Other": ("rules", "completion"),
}

#: Command -> the page of docs/ that explains it.
PAGES: Final = {
    "demo": "tutorial.md",
    "align": "alignment.md",
    "explain": "explain.md",
    "report": "report.md",
    "serve": "report.md",
    "narrow": "tutorial.md",
    "mapping": "rules.md",
    "inspect": "formats.md",
    "verify": "verify.md",
    "check": "check.md",
    "golden": "automation.md",
    "rules": "rules.md",
    "dump-config": "dump-config.md",
    "record": "record.md",
    "env": "tutorial.md",
    "snippet": "tutorial.md",
    "triage": "triage.md",
    "settings": "settings.md",
    "checklist": "checklist.md",
    "data": "data.md",
    "logs": "logs.md",
    "norms": "norms.md",
    "weights": "weights.md",
    "optimizer": "optimizer.md",
    "completion": "commands.md",
}


def find_documentation() -> Path:
    """Return the folder docs/ that comes with dumpdiff, in a wheel or in a checkout."""
    package = Path(__file__).parents[1]
    packaged_folder = package / "docs"
    return packaged_folder if packaged_folder.is_dir() else package.parent / "docs"


class Commands(click.Group):
    """A group that imports a command on first use and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command: click.Command = copy.copy(getattr(import_module(module), name))
        if cmd_name in PAGES:
            command.epilog = f"{command.epilog or ''}\n\nMore: docs/{PAGES[cmd_name]}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names. Raises click.UsageError."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            similar_names = difflib.get_close_matches(args[0], COMMANDS, 1)
            suggestion = f" Did you mean '{similar_names[0]}'?" if similar_names else ""
            ctx.fail(f"No such command '{args[0]}'.{suggestion}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table by sections, instead of asking each command."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print what to do first, and where the pages are that the other helps name."""
        formatter.write_paragraph()
        formatter.write_text(
            "'dumpdiff demo' unpacks two small runs and prints commands to try on them; 'dumpdiff "
            "COMMAND --help' has examples, and names a page of docs/. These pages are in"
        )
        formatter.write(f"{find_documentation()}\n")

    def make_context(self, *args: Any, **attributes: Any) -> click.Context:
        """Parse the command line, which may print the help into a closed pipe."""
        try:
            return super().make_context(*args, **attributes)
        except BrokenPipeError:
            _discard_output()
            sys.exit(CLOSED_PIPE)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error prints one line on stderr and sets the exit code.

        A bug prints its traceback too.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                # A closed pipe must be noticed here, not when the interpreter exits.
                sys.stdout.flush()
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except DumpError as error:
            _print_error(str(error))
            ctx.exit(UNUSABLE_INPUT)
        except KeyboardInterrupt:
            _print_error("interrupted")
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _discard_output()
            ctx.exit(CLOSED_PIPE)
        except OSError as error:
            has_file = error.filename is not None
            message = error.strerror or str(error)
            _print_error(f"{error.filename if has_file else 'output'}: {message}")
            ctx.exit(UNUSABLE_INPUT)
        except Exception:
            with suppress(OSError):
                traceback.print_exc()
            _print_error("this is a bug in dumpdiff; please report it with the lines above")
            ctx.exit(CRASHED)


def _print_error(message: str) -> None:
    """Print one line on standard error; names from a dump must not control the terminal."""
    line = " ".join(message.split())
    with suppress(OSError):  # the exit code is the same if nobody reads the line
        click.echo(f"dumpdiff: {escape_control(line)}", err=True)


def _discard_output() -> None:
    """Let nothing more be written to a closed pipe, not even by the interpreter when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="dumpdiff")
def main() -> None:
    """Find where two training runs of one model diverge.

    A dump holds the tensors of every operator of a training step. Of two runs of one model with the
    same weights and the same batch, in MindSpore or PyTorch, dumpdiff pairs the operators without a
    hand-written mapping, and names the first one whose inputs agree and whose output does not, and
    why. Without dumps it compares settings, batches, logs, gradient norms and weights.
    """


def _open_standard_streams() -> None:
    """Connect closed standard streams to nothing, so that no file takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def run() -> NoReturn:
    """Run ``main`` as the console script and exit at once.

    Freeing a million objects before the exit would take a third of a second.
    """
    _open_standard_streams()
    if "_DUMPDIFF_COMPLETE" in os.environ:  # a shell asks for completions
        from .completion import install_completion_classes

        install_completion_classes()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # files are removed as by Ctrl-C
    status: object = 0
    try:
        main()
    except SystemExit as exit_request:
        status = exit_request.code
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))
