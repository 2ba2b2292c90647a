"""A list without names: what is tried, what counts, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare, read_norms
from dumpdiff.gradient_norms.side import build_norms
from dumpdiff.model.errors import DumpError
from gradient_norms.sides import MEGATRON, MINDFORMERS


def test_lists_of_two_models_are_not_compared() -> None:
    with pytest.raises(
        DumpError,
        match=r"\(3 norms\) and .* \(28 norms\) have no parameter in common, by name or by value",
    ):
        compare(read_norms(MINDFORMERS), read_norms(MEGATRON))


def test_equal_norms_could_be_exchanged_and_are_counted(ms: Norms) -> None:
    values = ms.values.copy()
    values[5] = values[30]
    order = np.random.default_rng(0).permutation(len(ms))
    one, other = (
        build_norms("list.txt", "a list", (), of, squared=False) for of in (values[order], values)
    )
    comparison = compare(one, other)
    assert (comparison.verdict, comparison.n_ambiguous) == ("agree", 2)
    assert "for 2 of them others would fit as well" in comparison.notes
