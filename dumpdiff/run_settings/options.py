"""The words after a training script as options, as argparse reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from .settings import SettingValue
from .shell import Word
from .table import Table

_OPTION = re.compile(r"--?[A-Za-z]")


def read_options(
    words: Sequence[Word], file: str, table: Table, underscores: bool
) -> tuple[dict[str, SettingValue], list[str]]:
    """Return the arguments that options set, and notes on what was not understood.

    If an argument is set twice, the last value counts. ``underscores``: this program writes
    ``--micro_batch_size`` (Megatron-SWIFT). Megatron-LM's ``--micro-batch-size`` may be cut to an
    unambiguous beginning. A value that starts with ``-`` is a value if it is a number.
    """
    values: dict[str, SettingValue] = {}
    unread_words: list[Word] = []
    for option, next_words in group_words(words):
        if option is None:
            unread_words += next_words
            continue
        name, equals, attached_text = option.text.lstrip("-").partition("=")
        if underscores or "_" not in name:
            name = table.resolve_option(name.replace("_", "-"))
        arguments = next_words
        if name in table.switches and not underscores:
            unread_words += next_words
            arguments = []
        texts = [attached_text] if equals else [word.text for word in arguments]
        doubt = ""
        if not (option.is_known and all(word.is_known for word in arguments)):
            doubt = _explain_doubt(arguments)
        for key, value in table.expand_option(name, _join_texts(texts)).items():
            values[key] = SettingValue(value, option.format_place(file), doubt)
    notes = [
        f"{word.format_place(file)}: '{word.text}' may hold options, which only the shell knows"
        for word in unread_words
    ]
    return values, notes


def read_plain_options(words: Sequence[Word], file: str) -> dict[str, SettingValue]:
    """Return what ``--name value`` sets, under the names as they are written.

    If an option is set twice, the last value counts.
    """
    values: dict[str, SettingValue] = {}
    for option, arguments in group_words(words):
        if option is None:
            continue
        name, equals, attached_text = option.text.lstrip("-").partition("=")
        texts = [attached_text] if equals else [word.text for word in arguments]
        doubt = ""
        if not (option.is_known and all(word.is_known for word in arguments)):
            doubt = _explain_doubt(arguments)
        values[name] = SettingValue(_join_texts(texts), option.format_place(file), doubt)
    return values


def _join_texts(texts: Sequence[str]) -> object:
    """Return the value of an option: true without arguments, a tuple of several."""
    if not texts:
        return True
    return texts[0] if len(texts) == 1 else tuple(texts)


def group_words(words: Sequence[Word]) -> Iterator[tuple[Word | None, list[Word]]]:
    """Iterate over options with the words that follow each.

    Of the words before the first option, those with unknown text are returned with None.
    """
    option: Word | None = None
    arguments: list[Word] = []
    for word in words:
        if not _OPTION.match(word.text):
            arguments.append(word)
            continue
        if option is not None:
            yield option, arguments
        else:
            unknown_words = [argument for argument in arguments if not argument.is_known]
            if unknown_words:
                yield None, unknown_words
        option, arguments = word, []
    if option is not None:
        yield option, arguments


def _explain_doubt(arguments: Sequence[Word]) -> str:
    for word in arguments:
        if not word.is_known:
            if word.text.startswith(("$", "`")):
                return f"its value is {word.text}, which only the shell knows"
            break
    return "it is set under a condition that the script alone does not decide"


def read_environment(variables: Mapping[str, Word], file: str) -> dict[str, SettingValue]:
    """Return the variables that a script sets in the environment of the training."""
    environment = {}
    for name, word in variables.items():
        doubt = "" if word.is_known else f"{word.text}: only the shell knows it"
        environment[name] = SettingValue(word.text, word.format_place(file), doubt)
    return environment
