"""Commands that write files: what they may write is checked before the long work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..model.output_files import check_output_files, check_output_folder


class _OutputFile(click.types.StringParamType):
    """The name of a file to write, - for standard output."""

    name = "file"


class _OutputFolder(click.types.StringParamType):
    """The name of a folder to write a result into."""

    name = "folder"


OUTPUT_FILE, OUTPUT_FOLDER = _OutputFile(), _OutputFolder()

_FORCE = click.Option(
    ["--force"], is_flag=True, help="Replace existing files that dumpdiff did not write."
)


class WritingCommand(click.Command):
    """A command that never writes over an input, nor over what dumpdiff did not write.

    Its outputs are the parameters of the types above, and everything else that a user names and
    that exists is an input. So a command cannot forget one of its inputs.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        """Build the command, with the option ``--force``."""
        super().__init__(*args, **attributes)
        self.params.append(_FORCE)

    def invoke(self, ctx: click.Context) -> Any:
        """Check the outputs, then run the command.

        Raises DumpError, and click.UsageError if two outputs would go to standard output.
        """
        force = ctx.params.pop("force")
        files: list[str] = []
        folders: list[str] = []
        inputs: list[str] = []
        for parameter in self.params:
            value = ctx.params.get(parameter.name or "")
            if isinstance(parameter.type, _OutputFile):
                files += [value] if value is not None else []
            elif isinstance(parameter.type, _OutputFolder):
                folders += [value] if value is not None else []
            elif not isinstance(parameter.type, click.Choice) and parameter.metavar != "FOLDER":
                inputs += _iterate_paths(value)  # a FOLDER is where another program will write
        if files.count("-") > 1:
            raise click.UsageError("two outputs cannot both be written to -")
        for folder in folders:
            check_output_folder(folder, inputs)
            files += _list_existing_files(folder)
        named_files = [file for file in files if file != "-"]
        check_output_files(named_files, inputs, force=force)
        return super().invoke(ctx)


def _iterate_paths(value: object) -> Iterator[str]:
    """Yield the existing files and folders that the value of a parameter names.

    A value may be several, and of the forms ``log=train.log`` and ``weights_0,gradients_1``.
    """
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _iterate_paths(item)
    elif isinstance(value, (str, Path)):
        text = str(value)
        for path in {text, text.partition("=")[2], *text.split(",")}:
            if path and Path(path).exists():
                yield path


def _list_existing_files(folder: str) -> list[str]:
    """Return the files of an older result, or of an older triage, in a folder."""
    from ..api.result_folder import RESULT_FILES, RUN_FILES
    from ..reports.triage.page_files import PAGE_FILES

    paths = [Path(folder) / name for name in (*RESULT_FILES, *RUN_FILES, *PAGE_FILES)]
    return [str(path) for path in paths if path.exists()]
