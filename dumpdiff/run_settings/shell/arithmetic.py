"""Integer arithmetic of the shell: ``$(( A * 2 > B ? 1 : 0 ))``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:\$\{(?P<braced>\w+)\}|\$(?P<dollar>\w+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>0[xX][0-9a-fA-F]+|\d+)|(?P<sign>\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&|^?:()]))"
)
_MAX_CHARACTERS = 2000
_MAX_VALUE = 1 << 63
_MAX_EXPONENT = 63

Lookup = Callable[[str], int]


def _divide(dividend: int, divisor: int) -> int:
    """Divide as C does: towards zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


#: Operators by precedence, the loosest first.
_OPERATORS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": lambda a, b: a << min(b, _MAX_EXPONENT), ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divide, "%": lambda a, b: a - b * _divide(a, b)},
    {"**": lambda a, b: a ** min(b, _MAX_EXPONENT)},
)


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], lookup: Lookup) -> None:
        self.tokens, self.lookup = tokens, lookup
        self.position = 0

    def parse(self) -> int:
        """Return the value of the whole expression. Raises ValueError if it is none."""
        value = self._parse_choice()
        if self.position < len(self.tokens):
            raise ValueError(self.tokens[self.position][1])
        return value

    def _parse_choice(self) -> int:
        condition = self._parse_binary(0)
        if not self._accept("?"):
            return condition
        if_true = self._parse_choice()
        if not self._accept(":"):
            raise ValueError("?")
        if_false = self._parse_choice()
        return if_true if condition else if_false

    def _parse_binary(self, level: int) -> int:
        if level == len(_OPERATORS):
            return self._parse_unary()
        value = self._parse_binary(level + 1)
        while self.position < len(self.tokens):
            kind, text = self.tokens[self.position]
            function = _OPERATORS[level].get(text) if kind == "sign" else None
            if function is None:
                break
            self.position += 1
            value = int(function(value, self._parse_binary(level + 1)))
            if abs(value) >= _MAX_VALUE:
                raise ValueError("too large")
        return value

    def _parse_unary(self) -> int:
        if self._accept("-"):
            return -self._parse_unary()
        if self._accept("+"):
            return self._parse_unary()
        if self._accept("!"):
            return int(not self._parse_unary())
        if self._accept("~"):
            return ~self._parse_unary()
        return self._parse_operand()

    def _parse_operand(self) -> int:
        if self._accept("("):
            value = self._parse_choice()
            if not self._accept(")"):
                raise ValueError("(")
            return value
        if self.position == len(self.tokens):
            raise ValueError("it ends early")
        kind, text = self.tokens[self.position]
        self.position += 1
        if kind == "number":
            is_octal = text.startswith("0") and text.isdecimal()
            return int(text, 8 if is_octal else 0)
        if kind == "sign":
            raise ValueError(text)
        return self.lookup(text)

    def _accept(self, sign: str) -> bool:
        if self.tokens[self.position : self.position + 1] != [("sign", sign)]:
            return False
        self.position += 1
        return True


def evaluate_arithmetic(expression: str, lookup: Lookup) -> int | None:
    """Return the value of an expression, None if it is not supported or a name is unknown.

    ``lookup`` returns the value of a name, or raises KeyError or ValueError.
    """
    tokens: list[tuple[str, str]] = []
    position = 0
    text = expression.strip()
    if len(text) > _MAX_CHARACTERS:
        return None
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            return None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    try:
        return _Parser(tokens, lookup).parse()
    except (ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None
