"""Which commands a script would call: assignments are followed, branches as far as their condition is known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...model.errors import DumpError
from .expansion import Item, Variables, evaluate, expand, build_words
from .words import Literal, Part, Token, Word, tokenize

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARES = {"export", "declare", "typeset", "local", "readonly"}
_IGNORED_FIRST = {
    "exec",
    "nohup",
    "time",
    "eval",
    "command",
    "sudo",
    "{",
    "}",
    "!",
    "env",
    "stdbuf",
}
_LOOPS = {"for", "while", "until", "select", "case"}
_ENDS = {"fi", "done", "esac"}
_LONGEST = 1 << 20  #: characters of a script; those people write have some thousand


@dataclass(frozen=True)
class Call:
    """One command with its words, as they would reach it."""

    words: tuple[Word, ...]
    environment: Mapping[
        str, Word
    ]  #: what the script exports, and what stands in front of the command
    certain: bool  #: false inside a branch or loop that may not run
    line: int


@dataclass(frozen=True)
class Script:
    """All commands of a script, in order."""

    calls: tuple[Call, ...]
    sourced: tuple[Word, ...]  #: files that it reads and this reader does not


@dataclass
class _Frame:
    """An ``if`` or a loop that is open: whether what follows runs (None: unknown)."""

    runs: bool | None
    taken: bool | None = False  #: whether a branch of this ``if`` ran
    condition: bool | None = None


class _Interpreter:
    def __init__(self) -> None:
        self.variables = Variables()
        self.exported: set[str] = set()
        self.frames: list[_Frame] = []
        self.calls: list[Call] = []
        self.sourced: list[Word] = []
        self.status: bool | None = True

    def run(self, script: Sequence[Token]) -> None:
        runs: bool | None = True
        for command, operator in _split(script):
            self._command(command, runs)
            if operator == "&&":
                runs = self.status if runs is not False else False
            elif operator == "||":
                runs = None if self.status is None else not self.status
            else:
                runs = True

    def _command(self, command: list[Token], runs: bool | None) -> None:
        """One simple command, with the keywords that stand in front of it."""
        asks: _Frame | None = None
        while command and (keyword := _plain(command[0])) is not None:
            if keyword in ("if", "elif"):
                if keyword == "if":
                    self.frames.append(_Frame(None))
                asks = self.frames[-1] if self.frames else None
                if asks is not None:  # the condition itself runs unless an earlier branch did
                    asks.runs = True if keyword == "if" else _not(asks.taken)
            elif keyword in ("then", "else") and self.frames:
                _branch(self.frames[-1], otherwise=keyword == "else")
            elif keyword in _LOOPS:
                self.frames.append(_Frame(None))
                command = []
                break
            elif keyword in _ENDS:
                if self.frames:
                    self.frames.pop()
            elif keyword not in ("do", "function"):
                break
            command = command[1:]
        certain = _all([runs, *(frame.runs for frame in self.frames)])
        if command and certain is not False:
            self.status = self._simple(command, certain is True)
        if asks is not None:
            asks.condition = self.status

    def _simple(self, command: list[Token], certain: bool) -> bool | None:
        own: list[tuple[str, Item, bool]] = []
        words: list[Word] = []
        for token in _without_redirects(command):
            if token.kind == "array":
                items = [
                    item for element in token.elements for item in expand(element, self.variables)
                ]
                self.variables.assign_list(token.text, items, token.append, certain, token.line)
                continue
            assigned = _assignment(token.parts)
            declares = bool(words) and words[0].text in _DECLARES
            if assigned is not None and (not words or declares or words[0].text == "env"):
                name, append, parts = assigned
                value: Item = [
                    piece for item in expand(parts, self.variables, split=False) for piece in item
                ]
                own.append((name, value, append))
                continue
            words += build_words(expand(token.parts, self.variables))
        while words and (words[0].text in _IGNORED_FIRST or _is_option_of_prefix(words)):
            words.pop(0)
        declares = bool(words) and words[0].text in _DECLARES
        if words and not declares:
            return self._call(
                words, {name: value for name, value, _ in own}, certain, command[0].line
            )
        for name, value, append in own:
            self.variables.assign(name, value, append, certain, command[0].line)
        if declares:
            self.exported |= {name for name, _, _ in own} | {word.text for word in words[1:]}
        return True

    def _call(
        self, words: list[Word], own: Mapping[str, Item], certain: bool, line: int
    ) -> bool | None:
        name = words[0].text
        if name in ("[", "[[", "test"):
            return evaluate([word for word in words[1:] if word.text not in ("]", "]]")])
        if not words[0].known and name.startswith("(("):
            return None
        if name in ("source", ".") and len(words) > 1:
            self.sourced.append(words[1])
        environment = {
            key: self.variables.word(key)
            for key in sorted(self.exported)
            if self.variables.has(key)
        }
        environment |= {
            key: word for key, value in own.items() for word in build_words([value])[:1]
        }
        self.calls.append(Call(tuple(words), environment, certain, line))
        return name != "false"


def read_script(text: str) -> Script:
    """Read a script.

    Raises DumpError if it is longer than any script (1 MiB), or if it expands or nests further than any.
    """
    if len(text) > _LONGEST:
        raise DumpError(
            f"a script of {len(text)} characters; expected a launch script of at most {_LONGEST}"
        )
    interpreter = _Interpreter()
    try:
        interpreter.run(tokenize(text))
    except RecursionError:
        raise DumpError(
            "expansions within expansions without end; expected a launch script"
        ) from None
    return Script(tuple(interpreter.calls), tuple(interpreter.sourced))


def _split(script: Sequence[Token]) -> Iterator[tuple[list[Token], str]]:
    """Simple commands, each with the operator that ends it."""
    command: list[Token] = []
    for token in script:
        if token.kind == "operator":
            yield command, token.text
            command = []
        else:
            command.append(token)
    yield command, ""


def _without_redirects(command: Sequence[Token]) -> Iterator[Token]:
    """A redirection and its file go nowhere here."""
    skip = False
    for token in command:
        if token.kind == "redirect":
            skip = True
        elif skip:
            skip = False
        else:
            yield token


def _assignment(parts: tuple[Part, ...]) -> tuple[str, bool, tuple[Part, ...]] | None:
    """``NAME=value`` as (name, whether it appends, the value's parts)."""
    first = parts[0] if parts else None
    if (
        not isinstance(first, Literal)
        or first.quoted
        or not (match := _ASSIGNMENT.match(first.text))
    ):
        return None
    return (
        match[1],
        bool(match[2]),
        (Literal(first.text[match.end() :], first.line, True), *parts[1:]),
    )


def _plain(token: Token) -> str | None:
    """A word that is one unquoted literal: only such a one is a keyword."""
    if token.kind == "word" and len(token.parts) == 1 and isinstance(token.parts[0], Literal):
        return None if token.parts[0].quoted else token.parts[0].text
    return None


def _is_option_of_prefix(words: Sequence[Word]) -> bool:
    return words[0].text.startswith("-") and words[0].text not in ("-", "--")


def _branch(frame: _Frame, otherwise: bool) -> None:
    before = _not(frame.taken)
    frame.runs = before if otherwise else _all([before, frame.condition])
    if frame.runs is not False and frame.taken is not True:
        frame.taken = True if frame.runs is True else None


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _all(values: Sequence[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True
