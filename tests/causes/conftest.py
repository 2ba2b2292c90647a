"""Pairs of real dumps with one known fault, explained once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dumpdiff import Finding, align


@pytest.fixture(scope="session")
def find_first(recorded: Callable[..., Path]) -> Callable[..., Finding]:
    """Return the first finding of a model with a fault on one side, against the clean model.

    Example: ``find_first("eps", "mindspore")``.
    """

    @cache
    def find_finding(fault: str, side: str, *options: str) -> Finding:
        paths = {framework: recorded(framework, *options) for framework in ("mindspore", "pytorch")}
        paths[side] = recorded(side, "--fault", fault, *options)
        result = align(paths["mindspore"], paths["pytorch"])
        assert result.first_divergence is not None, f"{fault} was not found"
        return result.first_divergence

    return find_finding
