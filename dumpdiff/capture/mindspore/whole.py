"""The whole check, in the order in which MindSpore reads."""

from __future__ import annotations

from collections.abc import Mapping

from .target import Target
from .violations import Violation


def check(config: Mapping[str, object], target: Target, *, here: bool = True) -> tuple[Violation, ...]:
    """What MindSpore would refuse, ignore or answer with an empty dump; nothing if the configuration holds.

    ``here``: the training runs on this machine, so that the folder to write to is tried out too.
    """
    return ()
