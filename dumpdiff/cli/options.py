"""Options that several commands share, so that they have one name and one meaning everywhere."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from ..reports.language import LANGUAGES, VARIABLE
from .writing_command import OUTPUT_FILE

CONTEXT = {"help_option_names": ["-h", "--help"]}

NUMBER = click.IntRange(min=0)
COUNT = click.IntRange(min=1)

_MAX_NUMBERS = 1 << 20  #: of one range; more is a typing error


class _NumberList(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.2
    """Numbers and ranges of numbers with both ends, separated by commas: 0-3,6."""

    name = "list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers in order, each once."""
        if isinstance(value, tuple):
            return value
        numbers: set[int] = set()
        for item in value.split(","):
            start, _, end = item.partition("-")
            if not start.strip().isdecimal() or not (end or start).strip().isdecimal():
                self.fail(f"{item!r} is neither a number nor a range such as 0-3", param, ctx)
            first, last = int(start), int(end or start)
            if not first <= last < first + _MAX_NUMBERS:
                self.fail(f"{item!r} is no range", param, ctx)
            numbers.update(range(first, last + 1))
        return tuple(sorted(numbers))


NUMBERS = _NumberList()


_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[kKMGT]B)?")
_SIZE_FACTORS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class _Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.2
    """A number of bytes with or without a unit: 500MB, 2GB, 1048576."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        match = _SIZE_PATTERN.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is not a size such as 500MB or 2GB", param, ctx)
        return int(float(match[1]) * _SIZE_FACTORS[(match[2] or "B").upper()])


SIZE = _Size()

rules = click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="YAML rules or msprobe mappings to add; may be repeated.",
)
more_rules = click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="Rules in addition to those of the result; may be repeated.",
)
moved_target = click.option(
    "--target",
    metavar="DUMP",
    help="Where the target's dump is now.  [default: the path stored in RESULT]",
)
moved_reference = click.option(
    "--reference",
    metavar="DUMP",
    help="Where the reference's dump is now.  [default: the path stored in RESULT]",
)
step = click.option("--step", type=NUMBER, help="Training step to read.  [default: the first]")
rank = click.option("--rank", type=NUMBER, help="Device or process to read.  [default: the first]")
graph = click.option(
    "--graph",
    type=NUMBER,
    help="Compiled graph of a MindSpore dump to read.  [default: the first]",
)
json_file = click.option(
    "--json",
    "json_file",
    type=OUTPUT_FILE,
    help="Write JSON for programs; - for standard output.",
)
markdown_file = click.option(
    "--markdown",
    "markdown_file",
    type=OUTPUT_FILE,
    help="Write a Markdown report for an issue or merge request.",
)
junit_file = click.option(
    "--junit",
    "junit_file",
    type=OUTPUT_FILE,
    help="Write JUnit XML for a CI server: findings are failures.",
)
brief = click.option(
    "--brief", is_flag=True, help="Shorten the JSON to at most 8 kB: the answer and what is next."
)


def _choose_language(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Set the language for this command and the processes that it starts."""
    if value is None:
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value

    def restore() -> None:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before

    ctx.call_on_close(restore)


language = click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    expose_value=False,
    callback=_choose_language,
    help="Language of the terminal and HTML.  [default: that of the locale, or English]",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Print the first line only.")
target_version = click.option(
    "--target-version",
    metavar="X.Y",
    default="",
    help="Version of the target's framework, where defaults changed.",
)
reference_version = click.option(
    "--reference-version", metavar="X.Y", default="", help="Version of the reference's framework."
)
target_config = click.option(
    "--target-config",
    metavar="FILE",
    help="config.json of the target's model, if its structure is taken from there.",
)
reference_config = click.option(
    "--reference-config", metavar="FILE", help="config.json of the reference's model."
)
