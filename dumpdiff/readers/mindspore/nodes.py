"""The nodes of a compiled MindSpore graph, from its .pb or .ir file (MindSpore 1.6 to 2.10)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

NODE, PARAMETER, CONSTANT, NOTHING = "node", "parameter", "constant", "nothing"


class Input(NamedTuple):
    """One argument of a node, before tuples are unfolded."""

    kind: str  #: node, parameter, constant, or nothing (a monad, None, a string: not a tensor)
    name: str = ""  #: key of the node or name of the parameter
    values: tuple[float, ...] | None = None  #: values of a constant, flat; None if not in the file
    dtype: str = ""
    shape: tuple[int, ...] | None = None


class Output(NamedTuple):
    """One output of a node; a tuple is flattened into several outputs."""

    dtype: str
    shape: tuple[int, ...] | None  #: None if unknown or dynamic


class Node(NamedTuple):
    """One node of a graph. Nodes are in the order of the file, which is topological."""

    key: str  #: name by which other nodes refer to it
    kind: str  #: the primitive: MatMul
    name: str  #: full name with scope, as printed
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    frames: str = ""  #: the recorded stack as text, innermost frame first
    #: (name, value as text) of the attributes that say who exchanges what with whom; numbers of a
    #: tuple are separated by spaces
    attributes: tuple[tuple[str, str], ...] = ()


class Parameter(NamedTuple):
    """A graph parameter: a weight, an optimizer state or an input."""

    dtype: str
    shape: tuple[int, ...] | None
    is_weight: bool | None  #: None if the file does not say


class Graph(NamedTuple):
    """One compiled graph."""

    nodes: Sequence[Node]
    parameters: Mapping[str, Parameter]


#: Attributes of a collective or transfer that are read. The last two hold the ranks of the group,
#: which the compiler adds where it splits a model itself.
COMMUNICATION_ATTRIBUTES = frozenset(
    {"group", "op", "root_rank", "src_rank", "dest_rank", "dst_rank", "rank_list", "group_rank_ids"}
)

_FRAME = re.compile(
    r"In file (?P<file>[^\n]+?)(?::(?P<line>\d+)(?:~\d+)?|\((?P<old>\d+)\))(?:, \d+~\d+)?"
    r"/(?P<code>.*)/"
)
_LIBRARY_FOLDERS = (
    "/site-packages/mindspore/",
    "/dist-packages/mindspore/",
    "/mindspore/python/mindspore/",
)
_LIBRARY_FILES = frozenset({"cell_wrapper.py", "gen_ops_def.py"})
_DEFINITION = re.compile(r"\s*(?:def|class|async def) .*:\s*$")


@lru_cache(maxsize=10_000)  # the ops of one source line share their stack
def parse_user_frames(text: str) -> tuple[tuple[str, int, str], ...]:
    """Return (file, line, code) of the user's own calls in a recorded stack, in its order.

    Frames of the framework are dropped. A frame that spans only the enclosing ``def`` is dropped
    too, because the next frame is more precise.
    """
    frames = []
    for match in _FRAME.finditer(text):
        file, code = match["file"], match["code"]
        if not _is_library_file(file) and not _DEFINITION.match(code):
            frames.append((file, int(match["line"] or match["old"]), code.strip()))
    return tuple(frames)


def _is_library_file(file: str) -> bool:
    if file.rsplit("/", 1)[-1] in _LIBRARY_FILES:
        return True
    return any(folder in file for folder in _LIBRARY_FOLDERS)
