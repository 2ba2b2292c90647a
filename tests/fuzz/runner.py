"""Run one mutated input under limits of time and memory, and say how it failed, if it did."""

from __future__ import annotations

import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

from dumpdiff.model.errors import DumpError

from .targets import Target

MAX_SECONDS = 10.0  #: of computing, for one input
MAX_WAITING = 120.0  #: seconds in all, for an input that waits; a busy machine needs many
MAX_MEMORY = 1 << 30  #: bytes that one input may need in addition to the program
REGRESSIONS = Path(__file__).with_name("regressions")


class HangError(Exception):
    """An input took longer than the limit."""


@contextmanager
def limit_memory() -> Iterator[None]:
    """Let allocations fail with MemoryError beyond the limit."""
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (n_pages * resource.getpagesize() + MAX_MEMORY, hard_limit)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft_limit, hard_limit))


@contextmanager
def limit_time() -> Iterator[None]:
    """Raise HangError in the body when the time is over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {MAX_SECONDS:g} s of computing, or {MAX_WAITING:g} s in all")

    limits = {
        signal.SIGPROF: (signal.ITIMER_PROF, MAX_SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, MAX_WAITING),
    }
    old_handlers = {number: signal.signal(number, stop) for number in limits}
    try:
        for timer, seconds in limits.values():
            signal.setitimer(timer, seconds)
        yield
    finally:
        for number, (timer, _) in limits.items():
            signal.setitimer(timer, 0)
            signal.signal(number, old_handlers[number])


@contextmanager
def hide_torch() -> Iterator[None]:
    """Make torch impossible to import: files that only torch reads are not ours to test."""
    torch = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
        if torch is not None:
            sys.modules["torch"] = torch


def find_failure(target: Target, folder: Path) -> str:
    """Read an input and return the traceback of a failure, '' if it is read or refused.

    OSError is what the command line prints in one line, as it does DumpError.
    """
    try:
        with limit_memory(), limit_time(), hide_torch():
            target.read(folder)
    except (DumpError, OSError):
        return ""
    except Exception:
        return traceback.format_exc()
    return ""


class MutatedInputs:
    """The mutated inputs of one target, by number."""

    def __init__(self, target: Target, folder: Path) -> None:
        """Write the sound input into an empty folder."""
        self.target, self.folder = target, folder
        self.file = target.build(folder)
        self._content = self.file.read_bytes()
        target.read(folder)

    def write(self, number: int) -> None:
        """Write the input of a number: the same in every run."""
        self.file.write_bytes(self.target.mutate(self._content, Random(number)))


def list_regressions(target: Target) -> list[Path]:
    """Return the files that once made the target fail."""
    return sorted((REGRESSIONS / target.name).glob("*"))
