"""The options that say for which MindSpore a configuration is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...capture.mindspore import Target

Command = TypeVar("Command", bound=Callable[..., Any])


def target_options(command: Command) -> Command:
    """``--backend``, ``--ms-version`` and ``--elsewhere``, in this order in the help."""
    for option in reversed(
        [
            click.option(
                "--backend",
                type=click.Choice(["ascend", "ascend-ge", "gpu", "cpu"]),
                default="ascend",
                show_default=True,
                help="Device; ascend-ge: whole graphs, jit level O2.",
            ),
            click.option(
                "--ms-version",
                default="2.10",
                show_default=True,
                help="Version of MindSpore, as 2.6.",
            ),
            click.option(
                "--elsewhere",
                is_flag=True,
                help="It runs on another machine: do not try out the folder.",
            ),
        ]
    ):
        command = option(command)
    return command


def target(backend: str, ms_version: str) -> Target:
    """The target that the options name. Raises DumpError for a version that is none, or too old."""
    from ...capture.mindspore import OLDEST, Target, Version
    from ...model.errors import DumpError

    version = Version.parse(ms_version)
    if version < OLDEST:
        raise DumpError(f"--ms-version {version}: configurations are known from {OLDEST} on")
    return Target(backend, version)
