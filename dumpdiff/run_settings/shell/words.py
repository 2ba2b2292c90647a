"""The words of a shell script before anything is expanded: literals, variables, and what only a shell could tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    """Text that means itself."""

    text: str
    line: int
    quoted: bool


@dataclass(frozen=True)
class Variable:
    """``$NAME``, ``${NAME[@]}`` or ``${NAME:-argument}``."""

    name: str
    index: str  #: '', '@', '*' or a number
    operator: str  #: '', ':-', '-', ':=', '=', ':+', '+', ':?' or '?'
    argument: tuple[Part, ...]
    source: str  #: as it stands in the script
    line: int
    quoted: bool


@dataclass(frozen=True)
class Opaque:
    """``$(command)``, a backquote, arithmetic (``expression`` then) or an expansion that is not read."""

    source: str
    line: int
    quoted: bool
    expression: str = ""


Part = Literal | Variable | Opaque


@dataclass(frozen=True)
class Word:
    """A word after expansion. ``known`` is false if the script alone does not say it; text is then its source."""

    text: str
    line: int
    known: bool = True


@dataclass(frozen=True)
class Token:
    """A word, an assignment of a list, or an operator."""

    kind: str  #: 'word', 'array', 'operator' or 'redirect'
    text: str  #: the operator, or the name that a list is assigned to
    line: int
    parts: tuple[Part, ...] = ()
    elements: tuple[tuple[Part, ...], ...] = ()
    append: bool = False


_REDIRECT = re.compile(r"(?:\d*(?:<<<|<<-?|<>|<&|<|>>|>&|>\||>)|&>>|&>)")
_OPERATOR = re.compile(r"\n|;;&|;;|;|&&|&|\|\||\|&|\||\(|\)")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([@*0-9]+)\])?(:?[-=+?])?")
_PLAIN = re.compile(r"[^\s;&|()<>\"'\\$`]+")


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.heredocs: list[str] = []

    def tokens(self, end: str = "") -> Iterator[Token]:
        """All tokens up to the end of the text, or up to the bracket that closes a list."""
        while self.at < len(self.text):
            here = self.text[self.at]
            if here in " \t\r" or self.text.startswith("\\\n", self.at):
                self._move(2 if here == "\\" else 1)
            elif here == "#":
                self._move(self._until("\n") - self.at)
            elif end and here == end:
                self._move(1)
                return
            elif self.text.startswith("((", self.at) and not end:
                yield Token("word", "", self.line, (self._opaque("((", "))", quoted=False),))
            elif (match := _ARRAY.match(self.text, self.at)) and not end:
                line = self.line
                self._move(match.end() - self.at)
                words = tuple(token.parts for token in self.tokens(")") if token.kind == "word")
                yield Token("array", match[1], line, elements=words, append=bool(match[2]))
            elif (match := _REDIRECT.match(self.text, self.at)) and self.text[
                match.end() : match.end() + 1
            ] != "(":
                yield self._redirect(match[0])
            elif match := _OPERATOR.match(self.text, self.at):
                yield Token("operator", match[0], self.line)
                self._move(len(match[0]))
                if match[0] == "\n":
                    self._skip_heredocs()
            else:
                line = self.line
                yield Token("word", "", line, tuple(self._word()))

    def _redirect(self, text: str) -> Token:
        token = Token("redirect", text, self.line)
        self._move(len(text))
        if text in ("<<", "<<-"):
            match = re.compile(r"\s*(['\"]?)([\w.-]+)\1").match(self.text, self.at)
            if match:
                self.heredocs.append(match[2])
        return token

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            while self.at < len(self.text):
                stop = self._until("\n")
                found = self.text[self.at : stop].strip() == end
                self._move(min(stop + 1, len(self.text)) - self.at)
                if found:
                    break
        self.heredocs.clear()

    def _word(self) -> Iterator[Part]:
        while self.at < len(self.text):
            here = self.text[self.at]
            if here in " \t\r\n;&|)":
                return
            if here == "(" or (here in "<>" and self.text[self.at + 1 : self.at + 2] != "("):
                return
            if here in "<>":
                self._move(1)
                yield self._opaque("(", ")", quoted=False)
            elif here == "'":
                yield from self._single()
            elif here == '"':
                self._move(1)
                yield Literal(
                    "", self.line, True
                )  # "" is a word, and so is a word that expands to nothing
                yield from self._quoted('"')
            elif here == "\\":
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    yield Literal(self.text[self.at + 1 : self.at + 2], self.line, True)
                self._move(2)
            elif here in "$`":
                yield self._dollar(quoted=False)
            else:
                match = _PLAIN.match(self.text, self.at)
                text = match[0] if match else here
                yield Literal(text, self.line, False)
                self._move(len(text))

    def _single(self) -> Iterator[Part]:
        stop = self._until("'", self.at + 1)
        for i, piece in enumerate(self.text[self.at + 1 : stop].split("\n")):
            yield Literal(("\n" if i else "") + piece, self.line + i, True)
        self._move(stop + 1 - self.at)

    def _quoted(self, end: str) -> Iterator[Part]:
        """What stands in double quotes, or in the braces of an expansion; a literal per line, for its number."""
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] != end:
            here = self.text[self.at]
            if here in "$`\\\n":
                if self.at > begin:
                    yield Literal(self.text[begin : self.at], self.line, True)
                if here == "\n":
                    yield Literal("\n", self.line, True)
                    self._move(1)
                elif here == "\\":
                    escaped = self.text[self.at + 1 : self.at + 2]
                    if escaped != "\n":
                        yield Literal(
                            escaped if escaped in '$`"\\' else here + escaped, self.line, True
                        )
                    self._move(2)
                else:
                    yield self._dollar(quoted=True)
                begin = self.at
            else:
                self._move(1)
        if self.at > begin:
            yield Literal(self.text[begin : self.at], self.line, True)
        self._move(1)

    def _dollar(self, quoted: bool) -> Part:
        text, line = self.text, self.line
        if text[self.at] == "`":
            return self._opaque("`", "`", quoted)
        if text.startswith("$((", self.at):
            part = self._opaque("$((", "))", quoted)
            return Opaque(part.source, part.line, quoted, part.source[3:-2])
        if text.startswith("$(", self.at):
            return self._opaque("$(", ")", quoted)
        if text.startswith("${", self.at):
            return self._braced(quoted)
        match = _NAME.match(text, self.at + 1)
        if match is None:
            self._move(1)
            return Literal("$", line, quoted)
        self._move(match.end() - self.at)
        index = match[0] if match[0] in "@*" else ""
        return Variable(match[0], index, "", (), f"${match[0]}", line, quoted)

    def _braced(self, quoted: bool) -> Part:
        begin, line = self.at, self.line
        match = _BRACED.match(self.text, begin + 2)
        if match is None or (self.text[match.end() : match.end() + 1] != "}" and not match[3]):
            return self._opaque("${", "}", quoted)
        self._move(match.end() - self.at)
        argument: tuple[Part, ...] = ()
        if match[3]:
            argument = tuple(_stripped(list(self._quoted("}"))))
        else:
            self._move(1)
        index = match[2] or (match[1] if match[1] in "@*" else "")
        return Variable(
            match[1], index, match[3] or "", argument, self.text[begin : self.at], line, quoted
        )

    def _opaque(self, begin: str, end: str, quoted: bool) -> Opaque:
        """Up to the end that balances the beginning; the text's end if there is none."""
        start, line, depth = self.at, self.line, 0
        self._move(len(begin))
        while self.at < len(self.text):
            if self.text.startswith(end, self.at) and depth == 0:
                self._move(len(end))
                break
            here = self.text[self.at]
            depth += (here == begin[-1]) - (here == end[-1]) if begin != end else 0
            self._move(2 if here == "\\" else 1)
        return Opaque(self.text[start : self.at], line, quoted)

    def _until(self, what: str, start: int | None = None) -> int:
        stop = self.text.find(what, self.at if start is None else start)
        return len(self.text) if stop < 0 else stop

    def _move(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count


def _stripped(parts: list[Part]) -> Iterator[Part]:
    """Quotes inside ``${NAME:-"default"}`` are quotes, not text."""
    for part in parts:
        if isinstance(part, Literal):
            yield Literal(part.text.replace('"', "").replace("'", ""), part.line, part.quoted)
        else:
            yield part


def tokenize(text: str) -> list[Token]:
    """The tokens of a script; comments, heredocs and line continuations are gone."""
    return list(_Scanner(text.replace("\r\n", "\n")).tokens())
