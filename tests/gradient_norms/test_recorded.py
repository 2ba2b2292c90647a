"""The small model's gradients, computed by MindSpore and by PyTorch, in every form in which users have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.gradient_norms import NormComparison, compare, read_norms

pytestmark = pytest.mark.record

Printed = Callable[[str], Path]


def compared(target: Path, reference: Path) -> NormComparison:
    return compare(read_norms(target), read_norms(reference))


@pytest.mark.parametrize("target", ["said.txt", "gradients"])
@pytest.mark.parametrize(
    "reference", ["said.txt", "said_patch.txt", "said_lines.txt", "gradients", "grads.pt"]
)
def test_any_form_of_one_framework_agrees_with_any_of_the_other(
    printed: Printed, target: str, reference: str
) -> None:
    comparison = compared(printed("mindspore") / target, printed("pytorch") / reference)
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == (
        "agree",
        21,
        (1.0, 1.0),
    )
    allowed = 5e-3 if reference == "said_patch.txt" else 1e-6  # four digits of the square
    assert max(row.relative for row in comparison.rows) < allowed


@pytest.mark.parametrize("reference", ["said.txt", "gradients"])
def test_separate_projections_agree_with_fused_ones(printed: Printed, reference: str) -> None:
    comparison = compared(printed("mindspore") / reference, printed("pytorch") / "fused")
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == (
        "agree",
        15,
        (1.0, 1.0),
    )


def test_what_mindspore_prints_for_dump_local_norm(printed: Printed, tmp_path: Path) -> None:
    lines = (printed("mindspore") / "said.txt").read_text().splitlines(keepends=True)
    only = tmp_path / "worker_0.log"
    only.write_text("".join(line for line in lines if not line.startswith("step:")))
    norms = read_norms(only)
    assert (norms.source, len(norms), norms.squared) == ("MindSpore's 'dump local norm'", 21, False)
    assert compare(norms, read_norms(printed("pytorch") / "said.txt")).verdict == "agree"


def test_the_snippets_second_step_is_another(printed: Printed) -> None:
    said = printed("mindspore") / "said.txt"
    assert compare(read_norms(said, 2), read_norms(said, 1)).verdict == "differ"
