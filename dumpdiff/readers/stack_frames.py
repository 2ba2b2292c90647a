"""From a Python call stack to the user's own lines, and to what the stack gives away about a call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

#: Frames of the recorder, the framework and the interpreter: never the user's model.
_LIBRARY = re.compile(
    r"/(?:site-packages|dist-packages|ptdbg_ascend|torch_npu)/|/lib/python[\d.]+/|^<"
    r"|/torch/(?:nn|autograd|optim|utils|distributed|amp|cuda|_[a-z_]+|functional\.py|overrides\.py|__init__\.py)"
    r"|/msprobe/(?:core|pytorch|mindspore)/"
)
#: Functions that autograd calls while it runs backwards: a forward call below one of them is a second run.
_BACKWARD = {"backward", "unpack_hook", "recompute_fn", "_engine_run_backward"}
_TEXT_FRAME = re.compile(
    r"\s*File (?P<file>.+?), line (?P<line>\d+), in (?P<function>.+?), ?\n\s*(?P<code>.*)", re.S
)


class Frame(NamedTuple):
    """One frame of a stack: where, in which function, and the text of the line."""

    file: str
    line: str
    function: str
    code: str


class Site(NamedTuple):
    """What a stack says about a call: the user's lines, and whether backward or an optimizer was running."""

    source: str = ""
    stack: str = ""
    in_backward: bool = False
    in_optimizer: bool = False


NOWHERE = Site()


def site(frames: Iterable[Frame]) -> Site:
    """The call site of a stack given innermost frame first. Only base names of files are kept, never folders."""
    places: list[str] = []
    lines: list[str] = []
    in_backward = in_optimizer = False
    for file, line, function, code in frames:
        path = file.replace("\\", "/")
        in_backward = in_backward or function in _BACKWARD
        in_optimizer = (
            in_optimizer
            or path.endswith("/clip_grad.py")
            or (function == "step" and "optim" in path)
        )
        if name := _place(path):
            places.append(f"{name}:{line}")
            lines.append(f"{name}:{line} {function}: {code}")
    return Site(places[0] if places else "", "\n".join(lines), in_backward, in_optimizer)


def from_text(frames: Iterable[object]) -> Site:
    """The call site of frames printed as ``File F, line N, in FUNCTION, \\n CODE`` (msprobe); others are ignored."""
    parsed = (_parse(frame) for frame in frames if isinstance(frame, str))
    return site(frame for frame in parsed if frame is not None)


@lru_cache(maxsize=1 << 14)
def _parse(text: str) -> Frame | None:
    match = _TEXT_FRAME.fullmatch(text)
    return (
        Frame(match["file"].strip("\"'"), match["line"], match["function"], match["code"].strip())
        if match
        else None
    )


@lru_cache(maxsize=1 << 14)
def _place(file: str) -> str:
    """The base name of a file of the user's, '' for one of the recorder, a framework or the interpreter."""
    return "" if _LIBRARY.search(file) else file.rpartition("/")[2]
