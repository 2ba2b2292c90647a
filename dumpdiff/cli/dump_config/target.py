"""The options that choose the MindSpore of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--backend",
        type=click.Choice(["ascend", "ascend-ge", "gpu", "cpu"]),
        default="ascend",
        show_default=True,
        help="Device; ascend-ge: whole graphs, jit level O2.",
    ),
    click.option(
        "--ms-version", default="2.10", show_default=True, help="Version of MindSpore, such as 2.6."
    ),
    click.option(
        "--elsewhere",
        is_flag=True,
        help="The run is on another machine: do not check the folder.",
    ),
)


def add_target_options(command: Command) -> Command:
    """Add ``--backend``, ``--ms-version`` and ``--elsewhere``, in this order in the help."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
