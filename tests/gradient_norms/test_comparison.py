"""The comparison of two sides of real gradients, as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare, read_norms
from gradient_norms.sides import MEGATRON, fuse_parameters, scale_norms, select_parameters


def test_the_same_gradients_in_two_frameworks_agree(ms: Norms, pt: Norms) -> None:
    comparison = compare(ms, pt)
    assert (comparison.verdict, comparison.coverage, comparison.patterns) == (
        "agree",
        (1.0, 1.0),
        (),
    )
    assert {row.evidence for row in comparison.rows} == {"name", "rule"}
    assert max(row.relative for row in comparison.rows) < 1e-6
    assert comparison.to_stage().headline == "48 parameters' gradient norms equal within 8.3e-7"


def test_rows_are_sorted_by_severity(ms: Norms, pt: Norms) -> None:
    changes = {
        "layers.2.mlp.up_proj.weight": 1.5,
        "head.weight": 1.01,
        "layers.1.attention.q.weight": 1.2,
    }
    comparison = compare(scale_norms(ms, lambda path: changes.get(path, 1.0)), pt)
    assert [row.path for row in comparison.rows[:3]] == sorted(
        changes, key=lambda path: -changes[path]
    )
    assert [row.state for row in comparison.rows[:4]] == ["differ"] * 3 + ["agree"]


def test_parameters_without_a_partner_are_listed_and_counted(ms: Norms, pt: Norms) -> None:
    indices = [index for index, name in enumerate(ms.names) if "norm" not in name]
    comparison = compare(select_parameters(ms, indices), pt)
    assert comparison.verdict == "inconclusive"
    assert (comparison.coverage, len(comparison.reference_unpaired)) == (
        (1.0, pytest.approx(30 / 48)),
        18,
    )
    assert (
        comparison.to_stage()
        .missing[0]
        .startswith("18 of the reference's parameters have no partner: model.layers.0")
    )


@pytest.mark.parametrize("named", [True, False])
def test_norms_whose_squares_overflow_agree(ms: Norms, pt: Norms, named: bool) -> None:
    reference = pt if named else fuse_parameters(pt, named=False)
    huge_target = replace(ms, raw_values=1e160 * ms.raw_values)
    huge_reference = replace(reference, raw_values=1e160 * reference.raw_values)
    comparison = compare(huge_target, huge_reference)
    assert comparison.verdict == "agree"
    assert np.isfinite([row.reference_norm for row in comparison.rows]).all()
    assert huge_target.combined_norm == pytest.approx(1e160 * ms.combined_norm)


def test_two_steps_of_one_run_differ_and_their_numbers_are_noted() -> None:
    comparison = compare(read_norms(MEGATRON, 1), read_norms(MEGATRON, 2))
    assert comparison.verdict == "differ"
    assert "step 1 of the target is compared with step 2 of the reference" in comparison.notes
    assert all(row.target == row.reference for row in comparison.rows)


def test_printed_global_norms_are_listed_next_to_the_combined_local_norms() -> None:
    assert compare(read_norms(MEGATRON), read_norms(MEGATRON)).format_totals()[0] == (
        "target: 28 local norms, together 1.41822, printed 1.418"
    )
