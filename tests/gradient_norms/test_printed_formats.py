"""The small model's gradients of MindSpore and PyTorch, in every format that users have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.gradient_norms import NormComparison, compare, read_norms

pytestmark = pytest.mark.record

Printed = Callable[[str], Path]


def compare_paths(target: Path, reference: Path) -> NormComparison:
    return compare(read_norms(target), read_norms(reference))


@pytest.mark.parametrize("target", ["printed.txt", "gradients"])
@pytest.mark.parametrize(
    "reference", ["printed.txt", "printed_patch.txt", "printed_lines.txt", "gradients", "grads.pt"]
)
def test_every_format_of_one_framework_agrees_with_every_format_of_the_other(
    printed: Printed, target: str, reference: str
) -> None:
    comparison = compare_paths(printed("mindspore") / target, printed("pytorch") / reference)
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == (
        "agree",
        21,
        (1.0, 1.0),
    )
    max_difference = 5e-3 if reference == "printed_patch.txt" else 1e-6  # four digits of the square
    assert max(row.relative for row in comparison.rows) < max_difference


@pytest.mark.parametrize("reference", ["printed.txt", "gradients"])
def test_separate_projections_agree_with_fused_ones(printed: Printed, reference: str) -> None:
    comparison = compare_paths(printed("mindspore") / reference, printed("pytorch") / "fused")
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == (
        "agree",
        15,
        (1.0, 1.0),
    )


def test_norms_that_mindspore_prints_for_dump_local_norm_are_read(
    printed: Printed, tmp_path: Path
) -> None:
    lines = (printed("mindspore") / "printed.txt").read_text().splitlines(keepends=True)
    log = tmp_path / "worker_0.log"
    log.write_text("".join(line for line in lines if not line.startswith("step:")))
    norms = read_norms(log)
    assert (norms.source, len(norms), norms.squared) == ("MindSpore's 'dump local norm'", 21, False)
    assert compare(norms, read_norms(printed("pytorch") / "printed.txt")).verdict == "agree"


def test_the_snippets_second_step_differs_from_the_first(printed: Printed) -> None:
    log = printed("mindspore") / "printed.txt"
    assert compare(read_norms(log, 2), read_norms(log, 1)).verdict == "differ"
