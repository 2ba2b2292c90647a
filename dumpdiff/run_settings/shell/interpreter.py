"""The commands that a script would call, found without running anything.

Assignments are applied, branches followed and loops repeated where conditions are known. Where they
are not, both branches are read, and what they assign is marked as doubtful.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from . import syntax
from .conditions import conjoin, disjoin, evaluate, negate
from .expansion import Item, Piece, Variables, build_words, expand, expand_to_pieces
from .words import Literal, Opaque, Part, Token, Word, tokenize

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
#: First words that are skipped: the words after them are the command.
_PREFIXES = {"exec", "nohup", "time", "command", "sudo", "env", "stdbuf"}
_JUMPS = {"break", "continue", "return", "exit"}
_MAX_REPEATS = 200  #: of one loop
_MAX_COMMANDS = 20_000  #: of all loops and functions together
_MAX_DEPTH = 16  #: functions and files within each other

#: Returns the text and the name of a file that the script reads, None if it is not to be read.
FileReader = Callable[[str], tuple[str, str] | None]


@dataclass(frozen=True)
class Call:
    """One command with its words after expansion."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]  #: exported variables, and assignments before the command
    certain: bool  #: false inside a branch or loop that may not run
    line: int


@dataclass(frozen=True)
class _Assignment:
    name: str
    value: Item
    append: bool


class Interpreter:
    """The state of a shell: variables, functions, the status of the last command."""

    def __init__(self, read_file: FileReader) -> None:
        self.read_file = read_file
        self.variables = Variables()
        self.exported: set[str] = set()
        self.functions: dict[str, syntax.Node] = {}
        self.called_functions: set[str] = set()
        self.calls: list[Call] = []
        self.sourced: list[Word] = []  #: files that the script reads and that are not read here
        self.status: bool | None = True
        self.jump = ""  #: the command that ends a loop, function or script
        self.depth = 0
        self.n_commands = 0

    def run(self, steps: syntax.Steps) -> None:
        """Run a script. A function that it never calls by its name may run."""
        self.run_steps(steps, True)
        self.jump = ""
        for name in list(self.functions):
            if name not in self.called_functions:
                self._call_function(name, None, None, 0)

    def run_steps(self, steps: syntax.Steps, context: bool | None) -> None:
        """Run commands. ``context`` is None if they may not run."""
        runs: bool | None = True
        link = ""
        for step in steps:
            if self.jump:
                return
            left_status = self.status
            is_reached = conjoin([context, runs])
            if is_reached is not False:
                self._run_node(step.node, is_reached)
                if step.is_negated:
                    self.status = negate(self.status)
                if link == "&&":
                    self.status = conjoin([left_status, self.status])
                elif link == "||":
                    self.status = disjoin([left_status, self.status])
            link = step.operator
            runs = True
            if link == "&&":
                runs = self.status
            elif link == "||":
                runs = negate(self.status)

    def _run_node(self, node: syntax.Node, context: bool | None) -> None:
        self.n_commands += 1
        if self.n_commands > _MAX_COMMANDS:
            return
        if isinstance(node, syntax.Simple):
            if node.tokens:
                self.status = self._run_simple(node.tokens, context is True)
        elif isinstance(node, syntax.Group):
            self.run_steps(node.body, context)
        elif isinstance(node, syntax.Branches):
            self._run_branches(node, context)
        elif isinstance(node, syntax.Case):
            self._run_case(node, context)
        elif isinstance(node, syntax.ForLoop):
            self._run_for(node, context)
        elif isinstance(node, syntax.WhileLoop):
            self._run_while(node, context)
        else:
            self.functions[node.name] = node.body

    def _run_branches(self, node: syntax.Branches, context: bool | None) -> None:
        has_run: bool | None = False
        for condition, body in node.branches:
            is_reached = conjoin([context, negate(has_run)])
            if is_reached is False:
                return
            holds: bool | None = True
            if condition is not None:
                self.run_steps(condition, is_reached)
                holds = self.status
            has_run = self._run_branch(body, context, has_run, holds)

    def _run_branch(
        self, body: syntax.Steps, context: bool | None, has_run: bool | None, holds: bool | None
    ) -> bool | None:
        """Run one of several branches if its condition holds; return whether any has run."""
        runs = conjoin([context, negate(has_run), holds])
        self.status = True
        if runs is not False:
            self.run_steps(body, runs)
        return disjoin([has_run, holds])

    def _run_case(self, node: syntax.Case, context: bool | None) -> None:
        subjects = build_words([expand_to_pieces(node.subject.parts, self.variables)])
        subject = subjects[0] if subjects else Word("", node.subject.line)
        has_run: bool | None = False
        for patterns, body in node.branches:
            if has_run is True:
                break
            matches = [self._match_pattern(subject, pattern) for pattern in patterns]
            has_run = self._run_branch(body, context, has_run, disjoin(matches))

    def _match_pattern(self, subject: Word, pattern: Token) -> bool | None:
        words = build_words([expand_to_pieces(pattern.parts, self.variables)])
        text = words[0].text if words else ""
        if text == "*":
            return True
        if not subject.is_known or not all(word.is_known for word in words):
            return None
        return fnmatchcase(subject.text, text)

    def _run_for(self, node: syntax.ForLoop, context: bool | None) -> None:
        items = self.variables.get_items("@")
        if node.items is not None:
            items = []
            for token in node.items:
                items += expand(token.parts, self.variables)
        words = build_words(items)
        is_known = bool(node.name) and len(items) <= _MAX_REPEATS
        if node.items is None and not self.variables.has_arguments:
            is_known = False
        if not is_known or not all(word.is_known for word in words):
            self.run_steps(node.body, None)
            return
        for item in items:
            self.variables.assign(node.name, item, False, context is True, words[0].line)
            self.run_steps(node.body, context)
            if self._ends_loop():
                return

    def _run_while(self, node: syntax.WhileLoop, context: bool | None) -> None:
        for _ in range(_MAX_REPEATS):
            self.run_steps(node.condition, context)
            holds = negate(self.status) if node.is_until else self.status
            if holds is False:
                break
            self.run_steps(node.body, conjoin([context, holds]))
            if self._ends_loop() or holds is None or context is None:
                break
        self.status = True

    def _ends_loop(self) -> bool:
        """Return whether a jump ends the loop; 'break' and 'continue' end with it."""
        jump = self.jump
        if jump in ("break", "continue"):
            self.jump = ""
        return bool(jump) and jump != "continue"

    def _run_simple(self, command: Sequence[Token], certain: bool) -> bool | None:
        """Run assignments or a call; return its status, None if that is unknown."""
        line = command[0].line
        assignments, words = self._expand_command(command, certain)
        while words and _is_prefix(words):
            words.pop(0)
        is_declaration = _is_declaration(words)
        if words and not is_declaration:
            environment = {assignment.name: assignment.value for assignment in assignments}
            return self._run_call(words, environment, certain, line)
        for assignment in assignments:
            self.variables.assign(
                assignment.name, assignment.value, assignment.append, certain, line
            )
        if is_declaration:
            self.exported.update(assignment.name for assignment in assignments)
            self.exported.update(word.text for word in words[1:])
        return True

    def _expand_command(
        self, command: Sequence[Token], certain: bool
    ) -> tuple[list[_Assignment], list[Word]]:
        """Return the assignments and the words of a command; lists are assigned at once."""
        assignments: list[_Assignment] = []
        words: list[Word] = []
        is_evaluated = syntax.read_keyword(command[0]) == "eval"
        for token in _skip_redirects(command[1:] if is_evaluated else command):
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
            words += build_words(expand(token.parts, self.variables, is_evaluated=is_evaluated))
        return assignments, words

    def _run_call(
        self, words: list[Word], assignments: Mapping[str, Item], certain: bool, line: int
    ) -> bool | None:
        """Run a builtin or a function, or record a call; return its status."""
        name = words[0].text
        status: bool | None = True
        if name in ("[", "[[", "test"):
            tested_words = [word for word in words[1:] if word.text not in ("]", "]]")]
            status = evaluate(tested_words, is_double=name == "[[")
        elif name.startswith("(("):
            status = self._evaluate_condition(words[0])
        elif name in self.functions:
            status = self._call_function(name, words[1:], certain or None, line)
        elif name in _JUMPS:
            self.jump = name if certain else ""
        elif name in _BUILTINS:
            _BUILTINS[name](self, words[1:], certain, line)
        elif name in ("source", ".") and len(words) > 1:
            status = self._run_file(words[1], certain)
        else:
            environment = self._collect_environment(assignments)
            self.calls.append(Call(tuple(words), environment, certain, line))
            status = name != "false"
        return status

    def _collect_environment(self, assignments: Mapping[str, Item]) -> dict[str, Word]:
        """Return exported variables, and those that are assigned before the command."""
        environment = {}
        for variable in sorted(self.exported):
            if self.variables.is_assigned(variable):
                environment[variable] = self.variables.get_word(variable)
        for variable, value in assignments.items():
            for word in build_words([value]):
                environment[variable] = word
        return environment

    def _evaluate_condition(self, word: Word) -> bool | None:
        """Return the status of ``((expression))``."""
        part = Opaque("", word.line, False, word.text[2:-2])
        (piece,) = expand_to_pieces([part], self.variables)
        return None if piece.opaque else piece.text != "0"

    def _call_function(
        self, name: str, arguments: Sequence[Word] | None, context: bool | None, line: int
    ) -> bool | None:
        """Run the body of a function; ``arguments`` is None if it is not known who calls it."""
        self.called_functions.add(name)
        if self.depth >= _MAX_DEPTH:
            return None
        saved_arguments = self.variables.save_arguments()
        self.variables.restore_arguments(({}, False))
        if arguments is not None:
            items = [[_build_piece(word)] for word in arguments]
            self.variables.set_arguments(items, line)
        self.depth += 1
        self._run_node(self.functions[name], context)
        self.depth -= 1
        self.variables.restore_arguments(saved_arguments)
        if self.jump == "return":
            self.jump = ""
        return self.status

    def _run_file(self, name: Word, certain: bool) -> bool | None:
        """Run the commands of a file that the script reads."""
        content = None
        if name.is_known and self.depth < _MAX_DEPTH:
            content = self.read_file(name.text)
        if content is None:
            self.sourced.append(name)
            return None
        text, file = content
        previous_file, self.variables.file = self.variables.file, file
        self.depth += 1
        self.run_steps(syntax.parse(tokenize(text)), certain or None)
        self.depth -= 1
        self.variables.file = previous_file
        if self.jump == "return":
            self.jump = ""
        return True


def _build_piece(word: Word) -> Piece:
    return Piece(word.text, word.line, False, not word.is_known, False, word.is_unset, word.file)


def _set_arguments(shell: Interpreter, words: Sequence[Word], certain: bool, line: int) -> None:
    """Run ``set -- a b``; other options of ``set`` have no effect here."""
    if words and words[0].text == "--" and certain:
        shell.variables.set_arguments([[_build_piece(word)] for word in words[1:]], line)


def _shift_arguments(shell: Interpreter, words: Sequence[Word], certain: bool, line: int) -> None:
    count = int(words[0].text) if words and words[0].text.isdecimal() else 1
    if shell.variables.has_arguments and certain:
        shell.variables.set_arguments(shell.variables.get_items("@")[count:], line)


def _unset_variables(shell: Interpreter, words: Sequence[Word], certain: bool, line: int) -> None:
    for word in words:
        if certain:
            shell.variables.assign(word.text, [], False, True, line)


def _read_variables(shell: Interpreter, words: Sequence[Word], certain: bool, line: int) -> None:
    """Run ``read NAME``: the value comes from outside."""
    for word in words:
        if not word.text.startswith("-"):
            piece = Piece(f"${word.text}", line, False, opaque=True)
            shell.variables.assign(word.text, [piece], False, certain, line)


_BUILTINS: Mapping[str, Callable[[Interpreter, Sequence[Word], bool, int], None]] = {
    "set": _set_arguments,
    "shift": _shift_arguments,
    "unset": _unset_variables,
    "read": _read_variables,
}


def _skip_redirects(command: Sequence[Token]) -> list[Token]:
    """Return the tokens without redirections and their files."""
    tokens = []
    is_redirect_target = False
    for token in command:
        if token.kind == "redirect":
            is_redirect_target = True
        elif is_redirect_target:
            is_redirect_target = False
        else:
            tokens.append(token)
    return tokens


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


def _is_declaration(words: Sequence[Word]) -> bool:
    return bool(words) and words[0].text in _DECLARATIONS


def _is_prefix(words: Sequence[Word]) -> bool:
    """Return whether the first word runs the words after it, or is an option of such a word."""
    text = words[0].text
    if text in _PREFIXES:
        return True
    return text.startswith("-") and text not in ("-", "--")
