"""Python call stacks as msprobe and ptdbg_ascend (all versions) record them.

Both tools write the innermost frame first. Whether the backward pass or an optimizer was running is
read off the functions and files of the frames.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

#: Frames of the recorder, the framework and the interpreter, which are never the user's model.
_LIBRARY = re.compile(
    r"/(?:site-packages|dist-packages|ptdbg_ascend|torch_npu)/|/lib/python[\d.]+/|^<"
    r"|/torch/(?:nn|autograd|optim|utils|distributed|amp|cuda|_[a-z_]+|functional\.py"
    r"|overrides\.py|__init__\.py)|/msprobe/(?:core|pytorch|mindspore)/"
)
#: Functions of autograd's backward pass: a forward call inside one of them is a recomputation.
_BACKWARD_FUNCTIONS = {"backward", "unpack_hook", "recompute_fn", "_engine_run_backward"}
_TEXT_FRAME = re.compile(
    r"\s*File (?P<file>.+?), line (?P<line>\d+), in (?P<function>.+?), ?\n\s*(?P<code>.*)", re.S
)


class Frame(NamedTuple):
    """One frame of a stack: file, line number, function, and the text of the line."""

    file: str
    line: str
    function: str
    code: str


class Site(NamedTuple):
    """The call site of an op: the user's lines, and whether backward or optimizer was running."""

    source: str = ""  #: innermost user line: ``model.py:57``
    stack: str = ""  #: all user lines, innermost first
    in_backward: bool = False
    in_optimizer: bool = False
    #: in a user's own backward function, not in what that runs again
    computes_gradient: bool = False


NOWHERE = Site()
#: Functions that compute the norm of all gradients, or clip them: those of PyTorch
#: (clip_grad_norm_), Megatron-LM (get_grad_norm_fp32, clip_grad_by_total_norm_fp32), DeepSpeed
#: (get_global_norm, clip_grad_norm_) and users.
_GRADIENT_NORM = re.compile(r"clip_grad|clip_by_global_norm|(?:grad|gradient|local|global)s?_norm")


def build_site(frames: Iterable[Frame]) -> Site:
    """Return the call site of a stack that is given innermost frame first.

    Of each file only the base name is kept, never the folder.
    """
    places: list[str] = []
    lines: list[str] = []
    in_backward = in_optimizer = False
    innermost_pass = ""
    for file, line, function, code in frames:
        path = file.replace("\\", "/")
        if function in _BACKWARD_FUNCTIONS:
            in_backward = True
        is_clipping = path.endswith("/clip_grad.py") or _GRADIENT_NORM.search(function)
        if is_clipping or (function == "step" and "optim" in path):
            in_optimizer = True
        name = _get_user_file(path)
        if name:
            places.append(f"{name}:{line}")
            lines.append(f"{name}:{line} {function}: {code}")
            if function in ("forward", "backward"):
                innermost_pass = innermost_pass or function
    return Site(
        places[0] if places else "",
        "\n".join(lines),
        in_backward,
        in_optimizer,
        computes_gradient=innermost_pass == "backward",
    )


def parse_site(frames: Iterable[object]) -> Site:
    """Return the call site of frames that msprobe printed.

    Their form is ``File F, line N, in FUNCTION, \\n CODE``.

    Frames of another form are ignored.
    """
    parsed_frames = []
    for text in frames:
        frame = _parse_frame(text) if isinstance(text, str) else None
        if frame is not None:
            parsed_frames.append(frame)
    return build_site(parsed_frames)


@lru_cache(maxsize=1 << 14)
def _parse_frame(text: str) -> Frame | None:
    match = _TEXT_FRAME.fullmatch(text)
    if match is None:
        return None
    file = match["file"].strip("\"'")
    return Frame(file, match["line"], match["function"], match["code"].strip())


@lru_cache(maxsize=1 << 14)
def _get_user_file(file: str) -> str:
    """Return the base name of a user's file.

    '' for a file of the recorder, the framework or the interpreter.
    """
    return "" if _LIBRARY.search(file) else file.rpartition("/")[2]
