"""The structure of a shell script: commands, branches, loops, functions.

A script that is cut short, or has a keyword too many, is read as far as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .words import Literal, Token


@dataclass(frozen=True)
class Simple:
    """Assignments, or a command with its words."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Group:
    """``{ ...; }`` or ``( ... )``."""

    body: Steps


@dataclass(frozen=True)
class Branches:
    """``if``, with the condition and the body of each branch; that of ``else`` has no condition."""

    branches: tuple[tuple[Steps | None, Steps], ...]


@dataclass(frozen=True)
class Case:
    """``case SUBJECT in PATTERN|PATTERN) ...;; esac``."""

    subject: Token
    branches: tuple[tuple[tuple[Token, ...], Steps], ...]


@dataclass(frozen=True)
class ForLoop:
    """``for NAME in ITEMS``; without items those of the script or function."""

    name: str  #: '' for ``for ((...))`` and ``select``, whose items are not known
    items: tuple[Token, ...] | None
    body: Steps


@dataclass(frozen=True)
class WhileLoop:
    """``while`` or ``until``."""

    condition: Steps
    body: Steps
    is_until: bool


@dataclass(frozen=True)
class Function:
    """The definition of a function."""

    name: str
    body: Node


@dataclass(frozen=True)
class Step:
    """A command of a list, and the operator after it."""

    node: Node
    operator: str
    is_negated: bool = False


Node: TypeAlias = "Simple | Group | Branches | Case | ForLoop | WhileLoop | Function"
Steps: TypeAlias = "tuple[Step, ...]"

_CASE_ENDS = (";;", ";;&", ";&")
_KEYWORDS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", "in"))
_EMPTY = Simple(())


def parse(tokens: Sequence[Token]) -> Steps:
    """Return the commands of a script in their structure."""
    parser = _Parser(tokens)
    steps: list[Step] = []
    while not parser.is_at_end():
        steps += parser.parse_sequence(())
        parser.skip()  # a keyword without its beginning
    return tuple(steps)


def read_keyword(token: Token) -> str:
    """Return the text of a word that is one unquoted literal: only such a word is a keyword."""
    if token.kind != "word" or len(token.parts) != 1:
        return ""
    part = token.parts[0]
    if not isinstance(part, Literal) or part.quoted:
        return ""
    return part.text


@dataclass
class _Parser:
    tokens: Sequence[Token]
    position: int = field(default=0)

    def is_at_end(self) -> bool:
        return self.position >= len(self.tokens)

    def skip(self) -> None:
        self.position += 1

    def _peek_operator(self) -> str:
        """Return the operator at the position, '' if there is another token."""
        if self.is_at_end() or self.tokens[self.position].kind != "operator":
            return ""
        return self.tokens[self.position].text

    def _peek_keyword(self) -> str:
        return "" if self.is_at_end() else read_keyword(self.tokens[self.position])

    def _accept_operator(self, text: str) -> bool:
        if self._peek_operator() != text:
            return False
        self.skip()
        return True

    def _accept_keyword(self, text: str) -> bool:
        if self._peek_keyword() != text:
            return False
        self.skip()
        return True

    def parse_sequence(self, ends: Collection[str]) -> Steps:
        """Return the commands up to a keyword or operator in ``ends``, which is not consumed."""
        steps: list[Step] = []
        while not self.is_at_end():
            operator = self._peek_operator()
            if operator and operator in ends:
                break
            if operator and operator != "(":
                self.skip()
                continue
            if not operator and self._is_end(ends):
                break
            is_negated = self._accept_keyword("!")
            node = self._parse_command()
            self._skip_to_operator()
            operator = self._peek_operator()
            if operator and operator not in ends:
                self.skip()
            steps.append(Step(node, operator, is_negated))
        return tuple(steps)

    def _is_end(self, ends: Collection[str]) -> bool:
        keyword = self._peek_keyword()
        return bool(keyword) and (keyword in ends or keyword in _KEYWORDS)

    def _skip_to_operator(self) -> None:
        """Skip redirections behind a command with a body."""
        while not self.is_at_end() and self.tokens[self.position].kind != "operator":
            if self._peek_keyword() in _KEYWORDS:
                break
            self.skip()

    def _parse_command(self) -> Node:
        keyword = self._peek_keyword()
        if self._accept_operator("("):
            body = self.parse_sequence((")",))
            self._accept_operator(")")
            return Group(body)
        if keyword == "if":
            return self._parse_if()
        if keyword in ("while", "until"):
            return self._parse_while(is_until=keyword == "until")
        if keyword in ("for", "select"):
            return self._parse_for(is_select=keyword == "select")
        if keyword == "case":
            return self._parse_case()
        return self._parse_simple_or_function(keyword)

    def _parse_simple_or_function(self, keyword: str) -> Node:
        if keyword == "{":
            self.skip()
            body = self.parse_sequence(("}",))
            self._accept_keyword("}")
            return Group(body)
        if keyword == "[[":
            return self._parse_test()
        is_function = self._accept_keyword("function")
        tokens = self._take_words()
        is_defined = len(tokens) == 1 and self._peek_operator() == "("
        if not (is_function or is_defined) or not tokens:
            return Simple(tokens)
        self._accept_operator("(")
        self._accept_operator(")")
        if is_function and len(tokens) > 1:  # function name { ...
            self.position -= len(tokens) - 1
        while self._accept_operator("\n"):
            pass
        name = read_keyword(tokens[0])
        return Function(name, _EMPTY if self.is_at_end() else self._parse_command())

    def _take_words(self) -> tuple[Token, ...]:
        begin = self.position
        while not self.is_at_end() and self.tokens[self.position].kind != "operator":
            self.skip()
        return tuple(self.tokens[begin : self.position])

    def _parse_test(self) -> Simple:
        """Return ``[[ ... ]]`` as a command; its operators and redirections are words."""
        words: list[Token] = []
        while not self.is_at_end():
            token = self.tokens[self.position]
            self.skip()
            if token.kind in ("operator", "redirect"):
                literal = Literal(token.text, token.line, False)
                token = Token("word", "", token.line, (literal,))
            words.append(token)
            if read_keyword(token) == "]]":
                break
        return Simple(tuple(words))

    def _parse_if(self) -> Branches:
        branches: list[tuple[Steps | None, Steps]] = []
        self.skip()
        while True:
            condition = self.parse_sequence(("then",))
            self._accept_keyword("then")
            branches.append((condition, self.parse_sequence(("elif", "else", "fi"))))
            if not self._accept_keyword("elif"):
                break
        if self._accept_keyword("else"):
            branches.append((None, self.parse_sequence(("fi",))))
        self._accept_keyword("fi")
        return Branches(tuple(branches))

    def _parse_body(self) -> Steps:
        """Return what is between ``do`` and ``done``."""
        while self._peek_operator() in (";", "\n"):
            self.skip()
        self._accept_keyword("do")
        body = self.parse_sequence(("done",))
        self._accept_keyword("done")
        return body

    def _parse_while(self, *, is_until: bool) -> WhileLoop:
        self.skip()
        condition = self.parse_sequence(("do",))
        return WhileLoop(condition, self._parse_body(), is_until)

    def _parse_for(self, *, is_select: bool) -> ForLoop:
        self.skip()
        words = self._take_words()
        name = read_keyword(words[0]) if words and not is_select else ""
        items = words[2:] if len(words) > 1 and read_keyword(words[1]) == "in" else None
        return ForLoop(name, items, self._parse_body())

    def _parse_case(self) -> Node:
        self.skip()
        if self.is_at_end():
            return _EMPTY
        subject = self.tokens[self.position]
        self.skip()
        self._accept_keyword("in")
        branches: list[tuple[tuple[Token, ...], Steps]] = []
        while not self.is_at_end():
            if self._peek_operator() in ("\n", ";", "(", *_CASE_ENDS):
                self.skip()
                continue
            if self._accept_keyword("esac"):
                break
            branches.append((self._take_patterns(), self.parse_sequence(("esac", *_CASE_ENDS))))
        return Case(subject, tuple(branches))

    def _take_patterns(self) -> tuple[Token, ...]:
        patterns: list[Token] = []
        while not self.is_at_end() and not self._accept_operator(")"):
            if self._peek_operator() != "|":
                patterns.append(self.tokens[self.position])
            self.skip()
        return tuple(patterns)
