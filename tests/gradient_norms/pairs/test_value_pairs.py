"""Norms without names are paired by value."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare, read_norms
from dumpdiff.gradient_norms.norms import build_norms
from dumpdiff.model.errors import DumpError
from gradient_norms.sides import (
    MEGATRON,
    MINDFORMERS,
    count_wrong_pairs,
    drop_names,
    fuse_parameters,
)


def test_lists_of_two_models_are_not_compared() -> None:
    with pytest.raises(
        DumpError,
        match=r"\(3 norms\) and .* \(28 norms\) have no parameter in common, by name or by value",
    ):
        compare(read_norms(MINDFORMERS), read_norms(MEGATRON))


def test_interchangeable_norms_are_counted(ms: Norms) -> None:
    values = ms.values.copy()
    values[5] = values[30]
    order = np.random.default_rng(0).permutation(len(ms))
    target = build_norms("list.txt", "a list", (), values[order], squared=False)
    reference = build_norms("list.txt", "a list", (), values, squared=False)
    comparison = compare(target, reference)
    assert (comparison.verdict, comparison.n_ambiguous) == ("agree", 2)
    assert "for 2 of them other norms would fit as well" in comparison.notes


def test_lists_without_a_common_order_are_paired_by_value(ms: Norms, pt: Norms) -> None:
    order = np.random.default_rng(0).permutation(len(ms)).tolist()
    comparison = compare(drop_names(ms, order, digits=5), pt)
    assert (comparison.verdict, count_wrong_pairs(comparison, ms, order)) == ("agree", 0)
    assert {row.evidence for row in comparison.rows} == {"value"}
    note = "48 norms were paired by their values, because not both sides name them"
    assert note in comparison.notes


def test_parts_of_fused_parameters_are_found_without_names(ms: Norms, pt: Norms) -> None:
    comparison = compare(fuse_parameters(ms, named=False), drop_names(pt))
    assert comparison.verdict == "agree"
    assert sum(row.evidence == "parts" for row in comparison.rows) == 8
