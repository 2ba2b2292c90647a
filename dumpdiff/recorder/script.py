"""Run a Python script as ``python script.py`` would, while it is recorded."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ..model.errors import DumpError
from .options import RecordOptions
from .session import make_recorder


def run_script(script: str, arguments: Sequence[str], options: RecordOptions) -> None:
    """Run a script, and record the first ``torch.nn.Module`` that it calls.

    Raises DumpError if there is no such file or PyTorch is not installed, and whatever the script
    raises.
    """
    path = Path(script)
    if not path.is_file():
        raise DumpError(f"{script}: no such script")
    try:
        recorder = make_recorder(None, options)
    except ImportError:
        raise DumpError(
            "record: PyTorch is not installed; in a MindSpore script, use dumpdiff.record"
        ) from None
    old_arguments, old_path = sys.argv, sys.path[0]
    sys.argv = [script, *arguments]
    sys.path[0] = str(path.resolve().parent)
    try:
        with recorder:
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[0] = old_arguments, old_path
