"""The commands that a script would call.

Assignments are applied. Branches are followed if their condition is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...model.errors import DumpError
from .expansion import Item, Variables, build_words, evaluate, expand, expand_to_pieces
from .words import Literal, Part, Token, Word, tokenize

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
#: First words that are skipped: the words after them are the command.
_PREFIXES = {
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
_MAX_CHARACTERS = 1 << 20  #: of a script; launch scripts have some thousand


@dataclass(frozen=True)
class Call:
    """One command with its words after expansion."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]  #: exported variables, and assignments before the command
    certain: bool  #: false inside a branch or loop that may not run
    line: int


@dataclass(frozen=True)
class Script:
    """All commands of a script, in order."""

    calls: tuple[Call, ...]
    sourced: tuple[Word, ...]  #: files that the script reads and this module does not


@dataclass
class _Block:
    """An open ``if`` or loop. Of each field, None means unknown."""

    runs: bool | None  #: whether the commands that follow run
    has_run: bool | None = False  #: whether an earlier branch of this ``if`` ran
    condition: bool | None = None


@dataclass(frozen=True)
class _Assignment:
    name: str
    value: Item
    append: bool


class _Interpreter:
    def __init__(self) -> None:
        self.variables = Variables()
        self.exported: set[str] = set()
        self.blocks: list[_Block] = []
        self.calls: list[Call] = []
        self.sourced: list[Word] = []
        self.status: bool | None = True

    def run(self, script: Sequence[Token]) -> None:
        """Run the commands. The result of ``&&`` and ``||`` is unknown where a status is."""
        runs: bool | None = True
        for command, operator in _split_commands(script):
            self._run_command(command, runs)
            if operator == "&&":
                runs = self.status if runs is not False else False
            elif operator == "||":
                runs = _negate(self.status)
            else:
                runs = True

    def _run_command(self, command: list[Token], runs: bool | None) -> None:
        """Run one simple command, with the keywords before it."""
        tested_block: _Block | None = None
        while command:
            keyword = _read_keyword(command[0])
            if keyword in ("if", "elif"):
                tested_block = self._begin_condition(keyword)
            elif keyword in ("then", "else") and self.blocks:
                _enter_branch(self.blocks[-1], is_else=keyword == "else")
            elif keyword in _LOOPS:
                self.blocks.append(_Block(None))
                command = []
                break
            elif keyword in _ENDS:
                if self.blocks:
                    self.blocks.pop()
            elif keyword not in ("do", "function"):
                break
            command = command[1:]
        certain = _conjoin([runs, *(block.runs for block in self.blocks)])
        if command and certain is not False:
            self.status = self._run_simple_command(command, certain is True)
        if tested_block is not None:
            tested_block.condition = self.status

    def _begin_condition(self, keyword: str) -> _Block | None:
        """Return the block of an ``if`` or ``elif``.

        Its condition runs unless an earlier branch did.
        """
        if keyword == "if":
            self.blocks.append(_Block(None))
        if not self.blocks:
            return None
        block = self.blocks[-1]
        block.runs = True if keyword == "if" else _negate(block.has_run)
        return block

    def _run_simple_command(self, command: list[Token], certain: bool) -> bool | None:
        """Run assignments or a call; return its status, None if that is unknown."""
        line = command[0].line
        assignments, words = self._expand_command(command, certain)
        while words and _is_prefix(words):
            words.pop(0)
        is_declaration = _is_declaration(words)
        if words and not is_declaration:
            environment = {assignment.name: assignment.value for assignment in assignments}
            return self._record_call(words, environment, certain, line)
        for assignment in assignments:
            self.variables.assign(
                assignment.name, assignment.value, assignment.append, certain, line
            )
        if is_declaration:
            self.exported.update(assignment.name for assignment in assignments)
            self.exported.update(word.text for word in words[1:])
        return True

    def _expand_command(
        self, command: list[Token], certain: bool
    ) -> tuple[list[_Assignment], list[Word]]:
        """Return the assignments and the words of a command; lists are assigned at once."""
        assignments: list[_Assignment] = []
        words: list[Word] = []
        for token in _skip_redirects(command):
            if token.kind == "array":
                items: list[Item] = []
                for element in token.elements:
                    items += expand(element, self.variables)
                self.variables.assign_list(token.text, items, token.append, certain, token.line)
                continue
            accepts_assignment = not words or _is_declaration(words) or words[0].text == "env"
            assignment = _parse_assignment(token.parts)
            if assignment is not None and accepts_assignment:
                name, append, parts = assignment
                value = expand_to_pieces(parts, self.variables)
                assignments.append(_Assignment(name, value, append))
                continue
            words += build_words(expand(token.parts, self.variables))
        return assignments, words

    def _record_call(
        self, words: list[Word], assignments: Mapping[str, Item], certain: bool, line: int
    ) -> bool | None:
        """Record a call and return its status. Tests are evaluated, sourced files are recorded."""
        name = words[0].text
        if name in ("[", "[[", "test"):
            return evaluate([word for word in words[1:] if word.text not in ("]", "]]")])
        if not words[0].is_known and name.startswith("(("):
            return None
        if name in ("source", ".") and len(words) > 1:
            self.sourced.append(words[1])
        environment = {}
        for variable in sorted(self.exported):
            if self.variables.is_assigned(variable):
                environment[variable] = self.variables.get_word(variable)
        for variable, value in assignments.items():
            for word in build_words([value]):
                environment[variable] = word
        self.calls.append(Call(tuple(words), environment, certain, line))
        return name != "false"


def read_script(text: str) -> Script:
    """Read a script.

    Raises DumpError if it is longer than 1 MiB, or if its expansions grow or nest without end.
    """
    if len(text) > _MAX_CHARACTERS:
        raise DumpError(
            f"a script of {len(text)} characters; expected a launch script of at most"
            f" {_MAX_CHARACTERS}"
        )
    interpreter = _Interpreter()
    try:
        interpreter.run(tokenize(text))
    except RecursionError:
        raise DumpError(
            "expansions within expansions without end; expected a launch script"
        ) from None
    return Script(tuple(interpreter.calls), tuple(interpreter.sourced))


def _split_commands(script: Sequence[Token]) -> Iterator[tuple[list[Token], str]]:
    """Iterate over simple commands, each with the operator that ends it."""
    command: list[Token] = []
    for token in script:
        if token.kind == "operator":
            yield command, token.text
            command = []
        else:
            command.append(token)
    yield command, ""


def _skip_redirects(command: Sequence[Token]) -> Iterator[Token]:
    """Iterate over the tokens without redirections and their files."""
    is_redirect_target = False
    for token in command:
        if token.kind == "redirect":
            is_redirect_target = True
        elif is_redirect_target:
            is_redirect_target = False
        else:
            yield token


def _parse_assignment(parts: tuple[Part, ...]) -> tuple[str, bool, tuple[Part, ...]] | None:
    """Return the name, whether it appends, and the parts of ``NAME=value``, else None."""
    first = parts[0] if parts else None
    if not isinstance(first, Literal) or first.quoted:
        return None
    match = _ASSIGNMENT.match(first.text)
    if match is None:
        return None
    rest = Literal(first.text[match.end() :], first.line, True)
    return match[1], bool(match[2]), (rest, *parts[1:])


def _read_keyword(token: Token) -> str | None:
    """Return the text of a word that is one unquoted literal: only such a word is a keyword."""
    if token.kind != "word" or len(token.parts) != 1:
        return None
    part = token.parts[0]
    if not isinstance(part, Literal) or part.quoted:
        return None
    return part.text


def _is_declaration(words: Sequence[Word]) -> bool:
    return bool(words) and words[0].text in _DECLARATIONS


def _is_prefix(words: Sequence[Word]) -> bool:
    """Return whether the first word runs the words after it, or is an option of such a word."""
    text = words[0].text
    if text in _PREFIXES:
        return True
    return text.startswith("-") and text not in ("-", "--")


def _enter_branch(block: _Block, is_else: bool) -> None:
    not_yet_run = _negate(block.has_run)
    block.runs = not_yet_run if is_else else _conjoin([not_yet_run, block.condition])
    if block.runs is True:
        block.has_run = True
    elif block.runs is None and block.has_run is not True:
        block.has_run = None


def _negate(value: bool | None) -> bool | None:
    return None if value is None else not value


def _conjoin(values: Sequence[bool | None]) -> bool | None:
    """Return whether all values are true; None if that depends on an unknown value."""
    if False in values:
        return False
    return None if None in values else True
