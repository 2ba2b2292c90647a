"""Values that follow from several options, by family, and when a row means anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..row_value import Reading
from ..settings import Framework
from . import megatron, mindformers
from .conditions import CONDITIONS, OF_BOTH

__all__ = ["CONDITIONS", "OF_BOTH", "derivation"]


def derivation(name: str, framework: Framework) -> Callable[[Reading], Any] | None:
    """The function of that name for the framework's family; None where the plain value is meant."""
    family = mindformers if framework == "mindformers" else megatron
    found: Callable[[Reading], Any] | None = getattr(family, name, None) if name else None
    return found
