"""``dumpdiff dump-config``: configurations of the dumpers, one module per dumper."""

from __future__ import annotations

import click

from .. import options
from .check import check
from .mindspore import mindspore
from .msprobe import msprobe


@click.group(name="dump-config", context_settings=options.CONTEXT)
def dump_config() -> None:
    """Write the configuration of a dump, or check one."""


dump_config.add_command(mindspore)
dump_config.add_command(msprobe)
dump_config.add_command(check)
