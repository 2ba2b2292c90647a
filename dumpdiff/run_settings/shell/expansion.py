"""What words become: variables put in, fields split, small arithmetic and tests done."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...model.errors import DumpError
from .words import Literal, Opaque, Part, Variable, Word

_LONGEST = (
    1 << 17
)  #: characters that all words of one expansion may have; a=$b$b; b=$c$c; ... grows without end


@dataclass(frozen=True)
class Piece:
    """Some text of a word, of one line of the script."""

    text: str
    line: int
    quoted: bool
    opaque: bool = False  #: the text is what stands in the script: only a shell, or its caller, knows the value
    doubtful: bool = False  #: assigned where it is unknown whether that runs


Item = Sequence[Piece]


class Variables:
    """The variables that a script has assigned; each a list of items, of which an ordinary variable has one."""

    def __init__(self) -> None:
        self._items: dict[str, list[Item]] = {}

    def has(self, name: str) -> bool:
        """Whether the script assigned it."""
        return name in self._items

    def items(self, name: str) -> list[Item]:
        """All items of a variable, none if it has not been assigned."""
        return self._items.get(name, [])

    def word(self, name: str) -> Word:
        """The first item as one word."""
        return _joined(self._items[name][0] if self._items[name] else (), self._items[name] != [])

    def assign(self, name: str, value: Item, append: bool, certain: bool, line: int) -> None:
        """Set an ordinary variable, or go on with its text; what may not have run makes the text unknown."""
        before = self.items(name)[:1] if append else []
        self._set(
            name, [[piece for item in (*before, *_held([value], certain)) for piece in item]], line
        )

    def assign_list(
        self, name: str, items: Sequence[Item], append: bool, certain: bool, line: int
    ) -> None:
        """Set a list, or append to it; what may not have run makes the new items unknown."""
        self._set(name, [*(self.items(name) if append else []), *_held(items, certain)], line)

    def _set(self, name: str, items: list[Item], line: int) -> None:
        if sum(len(piece.text) for item in items for piece in item) > _LONGEST:
            raise DumpError(
                f"line {line}: {name} grows beyond {_LONGEST} characters; expected a launch script"
            )
        self._items[name] = items


def _held(items: Sequence[Item], certain: bool) -> list[Item]:
    return (
        list(items)
        if certain
        else [[replace(piece, doubtful=True) for piece in item] for item in items]
    )


def make_opaque_piece(source: str, line: int, quoted: bool) -> Piece:
    """What only a shell, its environment or its caller could tell."""
    return Piece(source, line, quoted, opaque=True)


def expand(parts: Sequence[Part], variables: Variables, split: bool = True) -> list[Item]:
    """The fields that a word becomes; as in a shell, an unquoted variable of several words becomes several."""
    fields: list[list[Piece]] = [[]]
    for part in parts:
        first, *others = _fields(part, variables) or [[]]
        fields[-1].extend(first)
        fields.extend(list(other) for other in others)
    if sum(len(piece.text) for field in fields for piece in field) > _LONGEST:
        raise DumpError(
            f"line {parts[0].line}: a word grows beyond {_LONGEST} characters; expected a launch script"
        )
    return [item for field in fields for item in _split(field)] if split else list(fields)


def build_words(items: Sequence[Item]) -> list[Word]:
    """Items as words; one without any piece is none."""
    return [_joined(item, True) for item in items if item]


def _joined(item: Item, known: bool) -> Word:
    told = [piece for piece in item if piece.text] or list(item)
    text = "".join(piece.text for piece in item)
    return Word(
        text,
        told[0].line if told else 0,
        known and not any(piece.opaque or piece.doubtful for piece in item),
    )


def _fields(part: Part, variables: Variables) -> list[list[Piece]]:
    if isinstance(part, Literal):
        return [[Piece(part.text, part.line, part.quoted)]]
    if isinstance(part, Opaque):
        value = _arithmetic(part.expression, variables) if part.expression else None
        text = part.source if value is None else str(value)
        return [[Piece(text, part.line, part.quoted, opaque=value is None)]]
    return _variable(part, variables)


def _variable(part: Variable, variables: Variables) -> list[list[Piece]]:
    items = variables.items(part.name)
    is_set = variables.has(part.name) and (not part.operator.startswith(":") or _filled(items))
    if part.operator[-1:] == "+":
        return [list(_pieces(part.argument, variables, part.quoted))] if is_set else [[]]
    if not is_set:
        if part.operator[-1:] in ("-", "="):
            return [list(_pieces(part.argument, variables, part.quoted))]
        return (
            [[]]
            if variables.has(part.name)
            else [[make_opaque_piece(part.source, part.line, part.quoted)]]
        )
    quoted = [[replace(piece, quoted=part.quoted) for piece in item] for item in items]
    if part.index == "@" or (part.index == "*" and not part.quoted):
        # The elements of a list are words of their own; ${list[@]} without quotes splits them further.
        return quoted
    if part.index == "*":
        space = Piece(" ", part.line, True)
        return [[piece for i, item in enumerate(quoted) for piece in ([space] if i else []) + item]]
    number = int(part.index) if part.index.isdigit() else 0
    return [quoted[number] if number < len(quoted) else []]


def _filled(items: Sequence[Item]) -> bool:
    return any(piece.text for item in items for piece in item)


def _pieces(parts: Sequence[Part], variables: Variables, quoted: bool) -> Iterator[Piece]:
    for item in expand(parts, variables, split=False):
        yield from (replace(piece, quoted=quoted) for piece in item)


def _split(field: Sequence[Piece]) -> Iterator[Item]:
    """Fields at unquoted blanks. A quoted piece keeps its word alive even if it is empty."""
    word: list[Piece] = []
    for piece in field:
        if piece.quoted or piece.opaque:
            word.append(piece)
            continue
        first, *others = re.split(r"[ \t\n]+", piece.text)
        if first:
            word.append(replace(piece, text=first))
        for text in others:
            if word:
                yield word
            word = [replace(piece, text=text)] if text else []
    if word:
        yield word


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.FloorDiv: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
}


def _arithmetic(expression: str, variables: Variables) -> int | None:
    """Integers, names and + - * / %; None for anything else, or if a name is unknown."""
    try:
        tree = ast.parse(re.sub(r"\$\{?(\w+)\}?", r"\1", expression).strip(), mode="eval")
        return _computed(tree.body, variables)
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


def _computed(node: ast.expr, variables: Variables) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        word = variables.word(node.id)
        if not word.known:
            raise ValueError(node.id)
        return int(word.text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand, variables)
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](
            _computed(node.left, variables), _computed(node.right, variables)
        )
    raise ValueError(ast.dump(node))


_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def evaluate(words: Sequence[Word]) -> bool | None:
    """A test such as ``"$A" = b``, ``-z "$A"`` or ``$N -gt 1``; None if it asks what the script does not say."""
    texts = [word.text for word in words]
    if not all(word.known for word in words):
        return None
    if texts[:1] == ["!"]:
        result = evaluate(words[1:])
        return None if result is None else not result
    if len(texts) == 3:
        return _compared(*texts)
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    return texts[0] != "" if len(texts) == 1 else None


def _compared(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "==", "!="):
        return (left == right) == (sign != "!=") if "*" not in right else None
    numbers = all(re.fullmatch(r"-?\d+", text) for text in (left, right))
    return _COMPARES[sign](int(left), int(right)) if sign in _COMPARES and numbers else None
