"""The words of a shell script before expansion.

A word has literals, variables, and parts that only a shell can evaluate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    """Text without expansions."""

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
    source: str  #: its text in the script
    line: int
    quoted: bool


@dataclass(frozen=True)
class Opaque:
    """``$(command)``, a backquote, arithmetic (``expression``), or an unsupported expansion."""

    source: str
    line: int
    quoted: bool
    expression: str = ""


Part = Literal | Variable | Opaque


@dataclass(frozen=True)
class Word:
    """A word after expansion.

    If ``is_known`` is false, the script alone does not define it; text is then its source.
    """

    text: str
    line: int
    is_known: bool = True
    is_unset: bool = False  #: a variable that neither the script nor its caller sets
    file: str = ""  #: the sourced file with the text, '' for the script itself

    def format_place(self, script: str) -> str:
        """Return ``file:line``; ``script`` is the name of the script."""
        return f"{self.file or script}:{self.line}"


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
_PLAIN_TEXT = re.compile(r"[^\s;&|()<>\"'\\$`]+")
_HEREDOC_END = re.compile(r"\s*(['\"]?)([\w.-]+)\1")


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.line = text, 0, 1
        self.heredocs: list[str] = []

    def scan(self, end: str = "") -> Iterator[Token]:
        """Iterate over the tokens to the end of the text, or to the bracket that closes a list."""
        while self.position < len(self.text):
            character = self.text[self.position]
            if self._starts_with("\\\n"):
                self._advance(2)
            elif character in " \t\r":
                self._advance(1)
            elif character == "#":
                self._advance_to(self._find("\n"))
            elif end and character == end:
                self._advance(1)
                return
            elif self._starts_with("((") and not end:
                yield Token("word", "", self.line, (self._scan_opaque("((", "))", quoted=False),))
            elif (match := _ARRAY.match(self.text, self.position)) and not end:
                yield self._scan_array(match)
            elif (match := _REDIRECT.match(self.text, self.position)) and not self._is_substitution(
                match.end()
            ):
                yield self._scan_redirect(match[0])
            elif match := _OPERATOR.match(self.text, self.position):
                yield Token("operator", match[0], self.line)
                self._advance(len(match[0]))
                if match[0] == "\n":
                    self._skip_heredocs()
            else:
                line = self.line
                yield Token("word", "", line, tuple(self._scan_word()))

    def _starts_with(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def _is_substitution(self, position: int) -> bool:
        """Return whether ``<`` or ``>`` before this position begins ``<(command)``."""
        return self.text[position : position + 1] == "("

    def _scan_array(self, match: re.Match[str]) -> Token:
        """Scan ``NAME=(...)``."""
        line = self.line
        self._advance_to(match.end())
        words = tuple(token.parts for token in self.scan(")") if token.kind == "word")
        return Token("array", match[1], line, elements=words, append=bool(match[2]))

    def _scan_redirect(self, text: str) -> Token:
        token = Token("redirect", text, self.line)
        self._advance(len(text))
        if text in ("<<", "<<-"):
            match = _HEREDOC_END.match(self.text, self.position)
            if match:
                self.heredocs.append(match[2])
        return token

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            while self.position < len(self.text):
                stop = self._find("\n")
                is_end = self.text[self.position : stop].strip() == end
                self._advance_to(min(stop + 1, len(self.text)))
                if is_end:
                    break
        self.heredocs.clear()

    def _scan_word(self) -> Iterator[Part]:
        """Iterate over the parts of one word."""
        while self.position < len(self.text):
            character = self.text[self.position]
            next_character = self.text[self.position + 1 : self.position + 2]
            if character in " \t\r\n;&|()":
                return
            if character in "<>":
                if next_character != "(":
                    return
                self._advance(1)
                yield self._scan_opaque("(", ")", quoted=False)
            elif character == "'":
                yield from self._scan_single_quotes()
            elif character == '"':
                self._advance(1)
                # An empty literal: "" is a word, and so are quotes whose content expands to
                # nothing.
                yield Literal("", self.line, True)
                yield from self._scan_quoted('"')
            elif character == "\\":
                if next_character != "\n":
                    yield Literal(next_character, self.line, True)
                self._advance(2)
            elif character in "$`":
                yield self._scan_dollar(quoted=False)
            else:
                match = _PLAIN_TEXT.match(self.text, self.position)
                text = match[0] if match else character
                yield Literal(text, self.line, False)
                self._advance(len(text))

    def _scan_single_quotes(self) -> Iterator[Part]:
        """Iterate over the lines in single quotes, a literal each."""
        stop = self._find("'", self.position + 1)
        first_line, *next_lines = self.text[self.position + 1 : stop].split("\n")
        yield Literal(first_line, self.line, True)
        for number, text in enumerate(next_lines, 1):
            yield Literal("\n" + text, self.line + number, True)
        self._advance_to(stop + 1)

    def _scan_quoted(self, end: str) -> Iterator[Part]:
        """Iterate over the parts in double quotes, or in the braces of an expansion.

        A literal contains at most one line, so that each has its line number.
        """
        begin = self.position
        while self.position < len(self.text) and not self._starts_with(end):
            character = self.text[self.position]
            if character not in "$`\\\n":
                self._advance(1)
                continue
            if self.position > begin:
                yield Literal(self.text[begin : self.position], self.line, True)
            if character == "\n":
                yield Literal("\n", self.line, True)
                self._advance(1)
            elif character == "\\":
                escaped = self.text[self.position + 1 : self.position + 2]
                if escaped != "\n":
                    text = escaped if escaped in '$`"\\' else character + escaped
                    yield Literal(text, self.line, True)
                self._advance(2)
            else:
                yield self._scan_dollar(quoted=True)
            begin = self.position
        if self.position > begin:
            yield Literal(self.text[begin : self.position], self.line, True)
        self._advance(1)

    def _scan_dollar(self, quoted: bool) -> Part:
        """Scan an expansion that begins with ``$``, or a backquote."""
        if self._starts_with("`"):
            return self._scan_opaque("`", "`", quoted)
        if self._starts_with("$(("):
            part = self._scan_opaque("$((", "))", quoted)
            return Opaque(part.source, part.line, quoted, part.source[3:-2])
        if self._starts_with("$("):
            return self._scan_opaque("$(", ")", quoted)
        if self._starts_with("${"):
            return self._scan_braces(quoted)
        line = self.line
        match = _NAME.match(self.text, self.position + 1)
        if match is None:
            self._advance(1)
            return Literal("$", line, quoted)
        self._advance_to(match.end())
        index = match[0] if match[0] in "@*" else ""
        return Variable(match[0], index, "", (), f"${match[0]}", line, quoted)

    def _scan_braces(self, quoted: bool) -> Part:
        """Scan ``${NAME...}``; what is not supported is opaque."""
        begin, line = self.position, self.line
        match = _BRACED.match(self.text, begin + 2)
        if match is None:
            return self._scan_opaque("${", "}", quoted)
        name, index, operator = match[1], match[2], match[3]
        if not operator and self.text[match.end() : match.end() + 1] != "}":
            return self._scan_opaque("${", "}", quoted)
        self._advance_to(match.end())
        argument: tuple[Part, ...] = ()
        if operator:
            argument = tuple(_strip_quotes(part) for part in self._scan_quoted("}"))
        else:
            self._advance(1)
        if not index:
            index = name if name in "@*" else ""
        source = self.text[begin : self.position]
        return Variable(name, index, operator or "", argument, source, line, quoted)

    def _scan_opaque(self, begin: str, end: str, quoted: bool) -> Opaque:
        """Scan up to the end that balances the beginning, else to the end of the text."""
        start, line, depth = self.position, self.line, 0
        self._advance(len(begin))
        while self.position < len(self.text):
            if self._starts_with(end) and depth == 0:
                self._advance(len(end))
                break
            character = self.text[self.position]
            if begin != end:
                depth += (character == begin[-1]) - (character == end[-1])
            self._advance(2 if character == "\\" else 1)
        return Opaque(self.text[start : self.position], line, quoted)

    def _find(self, text: str, start: int | None = None) -> int:
        """Return the position of a text, that of the end if it does not occur."""
        position = self.text.find(text, self.position if start is None else start)
        return len(self.text) if position < 0 else position

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.position, self.position + count)
        self.position += count

    def _advance_to(self, position: int) -> None:
        self._advance(position - self.position)


def _strip_quotes(part: Part) -> Part:
    """Remove quotes: those inside ``${NAME:-"default"}`` are no text."""
    if not isinstance(part, Literal):
        return part
    return Literal(part.text.replace('"', "").replace("'", ""), part.line, part.quoted)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a script, without comments, heredocs and line continuations."""
    return list(_Scanner(text.replace("\r\n", "\n")).scan())
