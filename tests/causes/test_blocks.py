"""One block of a small network with one fault: its cause, whichever side has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import Result

Align = Callable[[str, str], Result]


@pytest.fixture(scope="module")
def align_blocks(dump: Callable[[str], Path]) -> Align:
    """Return the result of two recorded networks, by the names of their folders."""
    folder = dump("pt_blocks")

    @cache
    def align(target: str, reference: str) -> Result:
        return dumpdiff.align(folder / target, folder / reference)

    return align


@pytest.mark.parametrize(
    ("faulty", "clean", "cause", "sentence"),
    [
        ("norms_eps", "norms_plain", "epsilon", "epsilon = 0.01; the reference uses 1e-05"),
        ("norms_unbiased", "norms_plain", "biased-variance", "with the unbiased variance (n - 1)"),
        ("norms_bare", "norms_plain", "affine-missing", "RMS norm without its weight"),
        (
            "norms_unskipped",
            "norms_plain",
            "skip-missing",
            "without Functional.embedding.0.forward in the sum",
        ),
        ("norms_cast", "norms_plain", "low-precision", "computed in bfloat16"),
        ("image_eps", "image_plain", "epsilon", "epsilon = 0.001; the reference uses 1e-05"),
        ("grouped_tile", "grouped_plain", "heads-permuted", "heads in the order [0, 2, 1, 3]"),
        ("cells_unbiased", "cells_plain", "bias-missing", "without its bias (bias_hh)"),
        ("gates_exchanged", "gates_plain", "split-order", "of each other's part"),
        ("gates_lacking", "gates_plain", "missing-term", "without Tensor.__mul__.1.forward"),
        ("gates_token", "gates_plain", "batch", "another batch: 1 of 12 numbers differ"),
        (
            "momentum_nesterov",
            "momentum_plain",
            "momentum-kind",
            "Nesterov momentum (0.9); the reference has plain momentum",
        ),
        (
            "momentum_rate",
            "momentum_adamw",
            "learning-rate",
            "learning rate x weight decay = 0.0002; the reference has 0.0001",
        ),
    ],
)
def test_the_cause_is_named_in_both_directions(
    align_blocks: Align, faulty: str, clean: str, cause: str, sentence: str
) -> None:
    finding = align_blocks(faulty, clean).findings[0]
    assert finding.causes[0].name == cause
    assert sentence in finding.causes[0].text
    mirrored = align_blocks(clean, faulty).findings[0]
    assert mirrored.causes[0].name == cause


def test_a_batch_norm_that_is_written_out_is_aligned(align_blocks: Align) -> None:
    assert align_blocks("image_written", "image_plain").verdict == "aligned"
    assert align_blocks("image_plain", "image_written").verdict == "aligned"


def test_a_loss_that_agrees_by_chance_does_not_excuse_the_forward_pass(align_blocks: Align) -> None:
    """The target of the loss agrees, too, and nothing that the network computes leads to it."""
    result = align_blocks("image_eps", "image_plain")
    losses = result.pairs[result.pairs["reference_op"] == "Functional.mse_loss.0.forward"]
    assert "agreeing" in set(losses["state"])
    (finding,) = result.findings
    assert finding.phase == "forward"
    assert "Functional.batch_norm.0.forward" in finding.title


def test_a_module_next_to_its_op_leaves_the_head_paired(align_blocks: Align) -> None:
    """A parameter is all that the two heads have in common where their inputs have no partner."""
    pairs = align_blocks("cells_unbiased", "cells_plain").pairs
    heads = pairs[pairs["target_op"] == "Module.head.Linear.forward.0"]
    assert "output.0" in set(heads["target_slot"])


def test_a_batch_that_a_module_reads_as_its_op_does_is_one_finding(align_blocks: Align) -> None:
    (finding,) = align_blocks("gates_token", "gates_plain").findings
    assert finding.kind == "input"
    assert [cause.name for cause in finding.causes] == ["batch"]
