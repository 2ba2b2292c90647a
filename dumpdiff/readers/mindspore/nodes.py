"""What a MindSpore graph file says, whichever of its two spellings (.pb or .ir) it was read from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

NODE, PARAMETER, CONSTANT, NOTHING = "node", "parameter", "constant", "nothing"


class Input(NamedTuple):
    """One argument of a node, before tuples are unfolded."""

    kind: str  #: node, parameter, constant, or nothing (monads, None, strings: no tensor)
    name: str = ""  #: key of the node or name of the parameter
    values: tuple[float, ...] | None = None  #: of a constant, flat; None if the file does not say
    dtype: str = ""
    shape: tuple[int, ...] | None = None


class Output(NamedTuple):
    """One output of a node; tuples are flattened into several."""

    dtype: str
    shape: tuple[int, ...] | None  #: None if unknown or dynamic


class Node(NamedTuple):
    """One node of a graph, in the order of the file, which is topological."""

    key: str  #: what other nodes refer to
    kind: str  #: the primitive: MatMul
    name: str  #: full name with scope, as printed
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    frames: str = ""  #: the recorded stack as text, innermost first


class Parameter(NamedTuple):
    """A graph parameter: a weight, an optimizer state or an input."""

    dtype: str
    shape: tuple[int, ...] | None
    is_weight: bool | None  #: None if the file does not say


class Graph(NamedTuple):
    """One compiled graph."""

    nodes: Sequence[Node]
    parameters: Mapping[str, Parameter]


_FRAME = re.compile(
    r"In file (?P<file>[^\n]+?)(?::(?P<line>\d+)(?:~\d+)?|\((?P<old>\d+)\))(?:, \d+~\d+)?/(?P<code>.*)/"
)
_LIBRARY = (
    "/site-packages/mindspore/",
    "/dist-packages/mindspore/",
    "/mindspore/python/mindspore/",
)
_LIBRARY_FILES = frozenset({"cell_wrapper.py", "gen_ops_def.py"})
_DEFINITION = re.compile(r"\s*(?:def|class|async def) .*:\s*$")


@lru_cache(maxsize=10_000)  # the ops of one source line share their stack
def parse_user_frames(text: str) -> tuple[tuple[str, int, str], ...]:
    """(file, line, code) of the user's own calls in a recorded stack, in its order; framework frames are dropped.

    A frame that only spans the enclosing ``def`` repeats what the next one says better, and is dropped too.
    """
    frames = []
    for found in _FRAME.finditer(text):
        file, code = found["file"], found["code"]
        base = file.rsplit("/", 1)[-1]
        library = base in _LIBRARY_FILES or any(folder in file for folder in _LIBRARY)
        if not library and not _DEFINITION.match(code):
            frames.append((file, int(found["line"] or found["old"]), code.strip()))
    return tuple(frames)
