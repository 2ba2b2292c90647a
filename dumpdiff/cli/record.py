"""``dumpdiff record -- SCRIPT``: parse, run the script recorded."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import click

from ..model.errors import DumpError
from . import options

_EPILOG = """\b
Exit codes: that of the script, 2 wrong usage.
\b
Examples:
  python -m dumpdiff record -- train.py --steps 1
  python -m dumpdiff record -o pt_dump --steps 0-1 --tensors -- train.py
  python -m dumpdiff record --like next/target_record.json -o next/target -- train.py
  torchrun --nproc-per-node 2 -m dumpdiff record --ranks 0 -- train.py
"""


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="FOLDER",
    default="dumpdiff_record",
    show_default=True,
    help="Folder to write.",
)
@click.option("--tensors", is_flag=True, help="Write whole tensors, too.")
@click.option(
    "--steps",
    type=options.NUMBERS,
    default="0",
    show_default=True,
    help="Steps to record, counted from 0: 0-3,6.",
)
@click.option("--ranks", type=options.NUMBERS, help="Ranks to record.  [default: all]")
@click.option(
    "--module",
    "modules",
    metavar="NAME",
    multiple=True,
    help="Module to record, with all in it; may be repeated.  [default: all]",
)
@click.option(
    "--like",
    metavar="FILE",
    help="What 'dumpdiff narrow' asks for (target_record.json): its step and rank, whole tensors "
    "of its calls.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def record(
    folder: str,
    tensors: bool,
    steps: tuple[int, ...],
    ranks: tuple[int, ...] | None,
    modules: tuple[str, ...],
    like: str | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a PyTorch training script and record its steps.

    SCRIPT runs as 'python SCRIPT' would, with the ARGUMENTS after it. The first module that it
    calls is the model. A step ends where the model is called after an optimizer has run. Code that
    torch.compile compiled runs eagerly. For a MindSpore script, use dumpdiff.record in it.
    """
    from ..recorder import RecordOptions
    from ..recorder.request import read_request
    from ..recorder.script import run_script

    record_options = RecordOptions(Path(folder), tensors, steps, ranks, modules)
    if like is not None:
        record_options = record_options.narrow(read_request(Path(like)))
    try:
        run_script(script, arguments, record_options)
    except DumpError:
        raise
    except Exception:
        traceback.print_exc()
        sys.exit(1)
