"""Single operators that both frameworks compute in other steps: sound pairs are aligned.

``where`` and ``lerp`` are gradients of several values of one size, which MindSpore's graph computes
in any order and without names; ``mish`` is one operator against four, of which its tanh is inexact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff


@pytest.mark.parametrize("name", ["where", "lerp", "mish"])
def test_both_directions_are_aligned(dump: Callable[[str], Path], name: str) -> None:
    folders = dump("ms_operators") / name, dump("pt_operators") / name
    assert dumpdiff.align(*folders, explained=()).verdict == "aligned"
    assert dumpdiff.align(*reversed(folders), explained=()).verdict == "aligned"
