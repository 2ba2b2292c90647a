"""The words after a training script as options, the way argparse would take them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from .settings import Given
from .shell import Word
from .table import Table

_OPTION = re.compile(r"--?[A-Za-z]")


def read_options(
    words: Sequence[Word], file: str, table: Table, underscores: bool
) -> tuple[dict[str, Given], list[str]]:
    """Options by the name of what they set, and what could not be understood; the last of two counts.

    ``underscores``: this program spells ``--micro_batch_size`` (Megatron-SWIFT); Megatron-LM's ``--micro-batch-size``
    may be cut to an unambiguous beginning. A value that starts with ``-`` is a value if it is a number.
    """
    values: dict[str, Given] = {}
    lost: list[Word] = []
    for option, words_after in _grouped(words):
        if option is None:
            lost += words_after
            continue
        name, _, attached = option.text.lstrip("-").partition("=")
        full = table.option(name.replace("_", "-")) if underscores or "_" not in name else name
        bare = full in table.switches and not underscores
        arguments = [] if bare else words_after
        lost += words_after if bare else []
        texts = [attached] if "=" in option.text else [word.text for word in arguments]
        known = option.known and all(word.known for word in arguments)
        text = texts[0] if len(texts) == 1 else tuple(texts) if texts else True
        for key, value in table.means(full, text).items():
            values[key] = Given(value, f"{file}:{option.line}", "" if known else _doubt(arguments))
    hidden = [
        f"{file}:{word.line}: '{word.text}' may hold options, which only the shell knows"
        for word in lost
    ]
    return values, hidden


def _grouped(words: Sequence[Word]) -> Iterator[tuple[Word | None, list[Word]]]:
    """Each option with the words that follow it; words before the first option have none."""
    option: Word | None = None
    arguments: list[Word] = []
    for word in words:
        if _OPTION.match(word.text):
            if option is not None:
                yield option, arguments
            elif any(not each.known for each in arguments):
                yield None, [each for each in arguments if not each.known]
            option, arguments = word, []
        else:
            arguments.append(word)
    if option is not None:
        yield option, arguments


def _doubt(arguments: Sequence[Word]) -> str:
    unknown = [word.text for word in arguments if not word.known]
    if unknown and unknown[0].startswith(("$", "`")):
        return f"its value is {unknown[0]}, which only the shell knows"
    return "it is set under a condition that the script alone does not decide"


def environment(variables: Mapping[str, Word], file: str) -> dict[str, Given]:
    """What a script puts into the environment of the training."""
    return {
        name: Given(
            word.text,
            f"{file}:{word.line}",
            "" if word.known else f"{word.text}: only the shell knows it",
        )
        for name, word in variables.items()
    }
