"""Parameters with names on both sides: fused parameters and their parts, stacks of experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare
from dumpdiff.gradient_norms.norms import build_norms
from gradient_norms.sides import find_row, fuse_parameters


@pytest.mark.parametrize("named", [True, False])
def test_squared_norms_of_parts_sum_to_that_of_the_fused_parameter(
    ms: Norms, pt: Norms, named: bool
) -> None:
    comparison = compare(fuse_parameters(ms, named), pt)
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == (
        "agree",
        36,
        (1.0, 1.0),
    )
    qkv = find_row(comparison, "layers.1.attention.qkv.weight")
    assert qkv.evidence == "parts"
    assert qkv.reference == " + ".join(
        f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"
    )


def test_single_experts_are_the_parts_of_a_stack() -> None:
    experts = build_norms(
        "a",
        "",
        tuple(f"layers.0.mlp.experts.{n}.gate_up_proj.weight" for n in range(3)),
        np.array([1.0, 2.0, 2.0]),
    )
    stack = build_norms("b", "", ("layers.0.mlp.experts.gate_up_proj.weight",), np.array([3.0]))
    comparison = compare(replace(experts, squared=False), replace(stack, squared=False))
    assert (comparison.verdict, comparison.rows[0].evidence, comparison.rows[0].relative) == (
        "agree",
        "parts",
        0.0,
    )
