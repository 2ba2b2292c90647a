"""The version and backend of MindSpore that a configuration is for."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...model.errors import DumpError

#: Backend -> what it is. ``ascend`` executes kernel by kernel; ``ascend-ge`` gives whole graphs to
#: the graph engine.
BACKENDS = {
    "ascend": "Ascend, kernel by kernel: jit level O0 or O1, backend ms_backend",
    "ascend-ge": "Ascend, whole graphs: jit level O2, backend GE",
    "gpu": "GPU",
    "cpu": "CPU",
}


class Version(NamedTuple):
    """Major and minor number of a MindSpore release."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version for '2.6', '2.6.0' or '2.3.0rc2'.

        Raises DumpError for anything else.
        """
        match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.\d+)?(?:[a-z.+-].*)?", text.strip())
        if match is None:
            raise DumpError(f"{text!r} is not a version of MindSpore; write it as 2.6 or 2.6.0")
        return cls(int(match[1]), int(match[2]))


#: The version whose behavior was tested in runs, not only read in its source.
TESTED = Version(2, 10)
LAST_OF_MAJOR_1 = Version(1, 10)
#: The oldest supported version: before it, ``iteration`` was a number and the sections differed.
OLDEST = Version(1, 3)


class Target(NamedTuple):
    """A backend, one of :data:`BACKENDS`, of one version of MindSpore."""

    backend: str = "ascend"
    version: Version = TESTED

    def __str__(self) -> str:
        return f"MindSpore {self.version} on {self.backend}"

    @property
    def on_ascend(self) -> bool:
        """Whether the device is an Ascend, executed either way."""
        return self.backend in ("ascend", "ascend-ge")
