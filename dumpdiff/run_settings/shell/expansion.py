"""The expansion of words: variables, field splitting, integer arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...model.errors import DumpError
from .arithmetic import evaluate_arithmetic
from .words import Literal, Opaque, Part, Variable, Word

#: Characters of all words of one expansion. Without a limit, a=$b$b; b=$c$c; ... grows
#: exponentially.
_MAX_CHARACTERS = 1 << 17

#: ``$(dirname "$0")`` and ``$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)``, in all spellings.
_SCRIPT_NAME = r"""["']?\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})["']?"""
_FOLDER_OF_SCRIPT = re.compile(
    rf"""[$`][(]?\s*(?:cd\s+(?:--\s+)?["']?\$[(]\s*)?dirname\s+(?:--\s+)?{_SCRIPT_NAME}\s*"""
    r"""(?:[)]["']?\s*(?:>\s*/dev/null\s*(?:2>&1)?\s*)?(?:&&|;)\s*pwd(?:\s+-P)?\s*)?[)`]"""
)


@dataclass(frozen=True)
class Piece:
    """Some text of a word, of one line of the script."""

    text: str
    line: int
    quoted: bool
    opaque: bool = False  #: the text is the source: only the shell or its caller knows the value
    doubtful: bool = False  #: assigned by a command that may not run
    is_unset: bool = False  #: a variable of the environment that the script never assigns
    file: str = ""  #: the sourced file with the text, '' for the script itself


Item = Sequence[Piece]


class Variables:
    """The variables that a script assigns.

    Each has a list of items; an ordinary variable has one.
    """

    def __init__(self) -> None:
        self._items: dict[str, list[Item]] = {}
        self.has_arguments = False  #: the arguments of the script, or of the function, are known
        self.missing_arguments: set[str] = set()  #: those that were read and are not known
        self.has_environment = False  #: a variable that is not assigned is known not to be set
        self.folder = ""  #: of the script, '' if it is not known
        self.file = ""  #: the sourced file that is read, '' for the script itself

    def is_assigned(self, name: str) -> bool:
        """Return whether the script assigns the variable."""
        return name in self._items

    def get_items(self, name: str) -> list[Item]:
        """Return all items of a variable, none if it is not assigned."""
        return self._items.get(name, [])

    def get_word(self, name: str) -> Word:
        """Return the first item as one word. Raises KeyError if the variable is not assigned."""
        items = self._items[name]
        return _build_word(items[0]) if items else Word("", 0, is_known=False)

    def assign(self, name: str, value: Item, append: bool, certain: bool, line: int) -> None:
        """Set an ordinary variable, or append to its text.

        The text is unknown unless the command is ``certain`` to run.
        """
        pieces: list[Piece] = []
        if append:
            for item in self.get_items(name)[:1]:
                pieces.extend(item)
        pieces.extend(value if certain else _mark_doubtful(value))
        self._set(name, [pieces], line)

    def assign_list(
        self, name: str, items: Sequence[Item], append: bool, certain: bool, line: int
    ) -> None:
        """Set a list, or append to it.

        New items are unknown unless the command is ``certain`` to run.
        """
        new_items = list(items) if certain else [_mark_doubtful(item) for item in items]
        self._set(name, [*(self.get_items(name) if append else []), *new_items], line)

    def set_arguments(self, arguments: Sequence[Item], line: int) -> None:
        """Set ``$1`` and the following, ``$#`` and ``$@``; other numbers are empty from now on."""
        for name in [name for name in self._items if name.isdecimal() and name != "0"]:
            del self._items[name]
        for number, argument in enumerate(arguments, 1):
            self._set(str(number), [argument], line)
        self._set("@", list(arguments), line)
        self._set("*", list(arguments), line)
        self._set("#", [[Piece(str(len(arguments)), line, False)]], line)
        self.has_arguments = True

    def get_number(self, name: str) -> int:
        """Return a variable as a number. Raises KeyError or ValueError if it is none."""
        word = self.get_word(name)
        if not word.is_known:
            raise ValueError(name)
        return int(word.text or "0")

    def save_arguments(self) -> tuple[dict[str, list[Item]], bool]:
        """Return the arguments, for :meth:`restore_arguments`."""
        saved = {
            name: items
            for name, items in self._items.items()
            if name in ("@", "*", "#") or (name.isdecimal() and name != "0")
        }
        return saved, self.has_arguments

    def restore_arguments(self, saved: tuple[dict[str, list[Item]], bool]) -> None:
        """Set the arguments as they were, at the end of a function."""
        arguments, self.has_arguments = saved
        for name in list(self._items):
            if name in ("@", "*", "#") or (name.isdecimal() and name != "0"):
                del self._items[name]
        self._items.update(arguments)

    def _set(self, name: str, items: list[Item], line: int) -> None:
        if _count_characters(items) > _MAX_CHARACTERS:
            raise DumpError(
                f"line {line}: {name} grows beyond {_MAX_CHARACTERS} characters;"
                " expected a launch script"
            )
        self._items[name] = items


def _mark_doubtful(item: Item) -> Item:
    return [replace(piece, doubtful=True) for piece in item]


def _count_characters(items: Sequence[Item]) -> int:
    return sum(len(piece.text) for item in items for piece in item)


def expand(
    parts: Sequence[Part],
    variables: Variables,
    split: bool = True,
    is_evaluated: bool = False,
) -> list[Item]:
    """Return the fields that a word expands to.

    As in a shell, an unquoted variable of several words expands to several, unless ``split`` is
    false. ``is_evaluated``: it is a word after ``eval``, which splits quoted ones, too.
    """
    fields: list[list[Piece]] = [[]]
    for part in parts:
        part_fields = _expand_part(part, variables)
        if part_fields:
            fields[-1].extend(part_fields[0])
            fields.extend(list(field) for field in part_fields[1:])
    if _count_characters(fields) > _MAX_CHARACTERS:
        raise DumpError(
            f"line {parts[0].line}: a word grows beyond {_MAX_CHARACTERS} characters;"
            " expected a launch script"
        )
    if not split:
        return list(fields)
    if is_evaluated:
        fields = [[replace(piece, quoted=False) for piece in field] for field in fields]
    return [item for field in fields for item in _split_field(field)]


def expand_to_pieces(parts: Sequence[Part], variables: Variables) -> list[Piece]:
    """Return the pieces that a word expands to without field splitting, as in an assignment."""
    fields = expand(parts, variables, split=False)
    return _join_fields(fields, Piece(" ", parts[0].line if parts else 0, True))


def build_words(items: Sequence[Item]) -> list[Word]:
    """Return items as words; an item without any piece is no word."""
    return [_build_word(item) for item in items if item]


def _build_word(item: Item) -> Word:
    """Return pieces as one word, at the line of its first text."""
    text = "".join(piece.text for piece in item)
    is_uncertain = any(piece.opaque or piece.doubtful for piece in item)
    is_unset = all(piece.is_unset or not piece.text for piece in item) and is_uncertain
    file = next((piece.file for piece in item if piece.text), "")
    return Word(text, _find_line(item), not is_uncertain, is_unset, file)


def _find_line(item: Item) -> int:
    """Return the line of the first piece with text, else of the first piece, else 0."""
    for piece in item:
        if piece.text:
            return piece.line
    return item[0].line if item else 0


def _expand_part(part: Part, variables: Variables) -> list[list[Piece]]:
    if isinstance(part, Literal):
        return [[Piece(part.text, part.line, part.quoted, file=variables.file)]]
    if isinstance(part, Opaque):
        value = _evaluate(part, variables)
        text = part.source if value is None else value
        return [[Piece(text, part.line, part.quoted, opaque=value is None, file=variables.file)]]
    return _expand_variable(part, variables)


def _expand_variable(part: Variable, variables: Variables) -> list[list[Piece]]:
    """Return the fields of ``$NAME`` or ``${NAME...}``, which may be none."""
    is_set = _is_set(part, variables)
    kind = part.operator[-1:]
    if kind == "+":
        return [_expand_argument(part, variables)] if is_set else [[]]
    if is_set:
        return _select_fields(part, variables.get_items(part.name))
    if kind in ("-", "="):
        return [_expand_argument(part, variables)]
    if variables.is_assigned(part.name):
        return [[]]
    if part.name.isdecimal() or part.name in "@*#":
        if variables.has_arguments:
            return [[]]
        variables.missing_arguments.add(part.name)
    is_named = variables.has_environment and part.name.isidentifier() and not part.operator
    piece = Piece(part.source, part.line, part.quoted, True, False, is_named, variables.file)
    return [[piece]]


def _evaluate(part: Opaque, variables: Variables) -> str | None:
    """Return the value of arithmetic, or of a command that names the folder of the script."""
    if part.expression:
        value = evaluate_arithmetic(part.expression, variables.get_number)
        return None if value is None else str(value)
    if variables.folder and _FOLDER_OF_SCRIPT.fullmatch(part.source):
        return variables.folder
    return None


def _is_set(part: Variable, variables: Variables) -> bool:
    """Return whether a variable is set; an operator with a colon requires a text as well."""
    if not variables.is_assigned(part.name):
        return False
    if not part.operator.startswith(":"):
        return True
    items = variables.get_items(part.name)
    return any(piece.text for item in items for piece in item)


def _select_fields(part: Variable, items: Sequence[Item]) -> list[list[Piece]]:
    """Return the fields of a variable that is set, by its index."""
    fields = [[replace(piece, quoted=part.quoted) for piece in item] for item in items]
    if part.index == "*" and part.quoted:
        return [_join_fields(fields, Piece(" ", part.line, True))]
    if part.index in ("@", "*"):
        # Each element of a list is a word; ${list[@]} without quotes splits the words further.
        return fields
    number = int(part.index) if part.index.isdecimal() else 0
    if number >= len(fields):
        return [[]]
    return [fields[number]]


def _join_fields(fields: Sequence[Item], separator: Piece) -> list[Piece]:
    pieces: list[Piece] = []
    for number, field in enumerate(fields):
        if number:
            pieces.append(separator)
        pieces.extend(field)
    return pieces


def _expand_argument(part: Variable, variables: Variables) -> list[Piece]:
    """Return the argument of ``${NAME:-argument}``."""
    pieces = expand_to_pieces(part.argument, variables)
    return [replace(piece, quoted=part.quoted) for piece in pieces]


def _split_field(field: Sequence[Piece]) -> Iterator[Item]:
    """Split a field at unquoted blanks. A quoted piece is a word even if it is empty."""
    word: list[Piece] = []
    for piece in field:
        if piece.quoted or piece.opaque:
            word.append(piece)
            continue
        first_text, *next_texts = re.split(r"[ \t\n]+", piece.text)
        if first_text:
            word.append(replace(piece, text=first_text))
        for text in next_texts:
            if word:
                yield word
            word = [replace(piece, text=text)] if text else []
    if word:
        yield word
