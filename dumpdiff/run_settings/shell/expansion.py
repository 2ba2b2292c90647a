"""The expansion of words: variables, field splitting, integer arithmetic and tests."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...model.errors import DumpError
from .words import Literal, Opaque, Part, Variable, Word

#: Characters of all words of one expansion. Without a limit, a=$b$b; b=$c$c; ... grows
#: exponentially.
_MAX_CHARACTERS = 1 << 17


@dataclass(frozen=True)
class Piece:
    """Some text of a word, of one line of the script."""

    text: str
    line: int
    quoted: bool
    opaque: bool = False  #: the text is the source: only the shell or its caller knows the value
    doubtful: bool = False  #: assigned by a command that may not run


Item = Sequence[Piece]


class Variables:
    """The variables that a script assigns.

    Each has a list of items; an ordinary variable has one.
    """

    def __init__(self) -> None:
        self._items: dict[str, list[Item]] = {}

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


def expand(parts: Sequence[Part], variables: Variables, split: bool = True) -> list[Item]:
    """Return the fields that a word expands to.

    As in a shell, an unquoted variable of several words expands to several, unless ``split`` is
    false.
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
    return [item for field in fields for item in _split_field(field)]


def expand_to_pieces(parts: Sequence[Part], variables: Variables) -> list[Piece]:
    """Return the pieces that a word expands to without field splitting, as in an assignment."""
    return [piece for item in expand(parts, variables, split=False) for piece in item]


def build_words(items: Sequence[Item]) -> list[Word]:
    """Return items as words; an item without any piece is no word."""
    return [_build_word(item) for item in items if item]


def _build_word(item: Item) -> Word:
    """Return pieces as one word, at the line of its first text."""
    text = "".join(piece.text for piece in item)
    is_uncertain = any(piece.opaque or piece.doubtful for piece in item)
    return Word(text, _find_line(item), not is_uncertain)


def _find_line(item: Item) -> int:
    """Return the line of the first piece with text, else of the first piece, else 0."""
    for piece in item:
        if piece.text:
            return piece.line
    return item[0].line if item else 0


def _expand_part(part: Part, variables: Variables) -> list[list[Piece]]:
    if isinstance(part, Literal):
        return [[Piece(part.text, part.line, part.quoted)]]
    if isinstance(part, Opaque):
        value = _evaluate_arithmetic(part.expression, variables) if part.expression else None
        text = part.source if value is None else str(value)
        return [[Piece(text, part.line, part.quoted, opaque=value is None)]]
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
    return [[Piece(part.source, part.line, part.quoted, opaque=True)]]


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


_BINARY_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.FloorDiv: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
}


def _evaluate_arithmetic(expression: str, variables: Variables) -> int | None:
    """Evaluate integers, names and + - * / %; None for anything else, or if a name is unknown."""
    try:
        tree = ast.parse(re.sub(r"\$\{?(\w+)\}?", r"\1", expression).strip(), mode="eval")
        return _evaluate_node(tree.body, variables)
    except (
        SyntaxError,
        ValueError,
        ZeroDivisionError,
        KeyError,
        RecursionError,
        OverflowError,
        MemoryError,
    ):
        return None


def _evaluate_node(node: ast.expr, variables: Variables) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        word = variables.get_word(node.id)
        if not word.is_known:
            raise ValueError(node.id)
        return int(word.text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand, variables)
    if isinstance(node, ast.BinOp):
        left = _evaluate_node(node.left, variables)
        right = _evaluate_node(node.right, variables)
        return _BINARY_OPERATORS[type(node.op)](left, right)
    raise ValueError(ast.dump(node))


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_INTEGER = re.compile(r"-?\d+")


def evaluate(words: Sequence[Word]) -> bool | None:
    """Evaluate a test such as ``"$A" = b``, ``-z "$A"`` or ``$N -gt 1``.

    The result is None if it depends on something that the script does not define.
    """
    if not all(word.is_known for word in words):
        return None
    texts = [word.text for word in words]
    if texts[:1] == ["!"]:
        result = evaluate(words[1:])
        return None if result is None else not result
    if len(texts) == 3:
        return _evaluate_comparison(*texts)
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) == 1:
        return texts[0] != ""
    return None


def _evaluate_comparison(left_text: str, sign: str, right_text: str) -> bool | None:
    if sign in ("=", "==", "!="):
        if "*" in right_text:
            return None  # a pattern
        return (left_text == right_text) == (sign != "!=")
    if sign not in _COMPARISONS:
        return None
    if not (_INTEGER.fullmatch(left_text) and _INTEGER.fullmatch(right_text)):
        return None
    return _COMPARISONS[sign](int(left_text), int(right_text))
