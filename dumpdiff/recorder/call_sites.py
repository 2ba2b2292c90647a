"""The user's lines that a call came from, read off the running interpreter's frames."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

_MAX_FRAMES = 200  #: of a stack that are looked at
_MAX_USER_FRAMES = 8  #: innermost lines of the user that are recorded

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY_FOLDERS = tuple(
    {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    | set(sysconfig.get_paths().values())
)


class CallSite(NamedTuple):
    """Where a call came from; the innermost line and all lines of the user."""

    source: str = ""  #: model.py:46
    stack: tuple[str, ...] = ()  #: model.py:46 forward: return self.w(x)


NOWHERE = CallSite()


def find_call_site() -> CallSite:
    """Return the user's lines that are running, innermost first; library and own frames are not."""
    lines: list[tuple[str, str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None or len(lines) == _MAX_USER_FRAMES:
            break
        code = frame.f_code
        if _is_user_file(code.co_filename):
            lines.append((code.co_filename, code.co_name, frame.f_lineno))
        frame = frame.f_back
    return _format_lines(tuple(lines)) if lines else NOWHERE


# Known by the name of the file: a code object would be hashed as a whole, for each frame.
@lru_cache(maxsize=1 << 14)
def _is_user_file(file: str) -> bool:
    """Return whether a file belongs to no installed library and not to Python."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((_OWN_FOLDER, *_LIBRARY_FOLDERS))


@lru_cache(maxsize=1 << 14)
def _format_lines(lines: tuple[tuple[str, str, int], ...]) -> CallSite:
    texts = []
    for file, function, number in lines:
        text = linecache.getline(file, number).strip()
        texts.append(f"{os.path.basename(file)}:{number} {function}: {text}")
    return CallSite(texts[0].partition(" ")[0], tuple(texts))
