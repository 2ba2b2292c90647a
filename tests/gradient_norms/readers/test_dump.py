"""Norms of the gradients in a dump."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.gradient_norms import read_norms
from dumpdiff.model.errors import DumpError
from gradient_norms.sides import read_error


@pytest.mark.parametrize(
    ("name", "count", "framework"),
    [("ms_graph", 39, "MindSpore"), ("pt_none", 48, "PyTorch"), ("ms_mf_none", 48, "MindSpore")],
)
def test_a_dump_holds_the_gradient_of_every_parameter(
    dump: Callable[[str], Path], name: str, count: int, framework: str
) -> None:
    norms = read_norms(dump(name))
    assert (len(norms), norms.has_names, norms.squared, norms.step) == (count, True, False, 1)
    assert (norms.source, norms.precision) == (f"gradients in a dump of {framework}", "float32")


def test_a_dump_counts_its_steps_from_zero(dump: Callable[[str], Path]) -> None:
    assert len(read_norms(dump("pt_none"), 1)) == 48
    with pytest.raises(DumpError, match=r"has no step 2; it has step 1 \(from 1\)"):
        read_norms(dump("pt_none"), 2)


def test_a_dump_without_names_is_rejected(dump: Callable[[str], Path]) -> None:
    assert "it names no parameters" in read_error(dump("v6.0_api_stack"))
