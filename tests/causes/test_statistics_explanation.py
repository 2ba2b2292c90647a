"""Causes that recorded arguments and the kinds of ops prove, without whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from results import FINDING

from dumpdiff.causes import statistics_explanation
from dumpdiff.causes.comparison_index import ComparisonIndex

NORMS = replace(
    FINDING,
    kind="introduced",
    phase="forward",
    scope="mid.norm",
    target_ops=("norm",),
    reference_ops=("norm",),
)


def make_side(group_count: int) -> Any:
    """Return the flow of one group norm: tensors, then its number of groups and its epsilon."""
    tensors = pd.DataFrame(
        {
            "dtype": ["float32", "int64", "float"],
            "constant": [False, True, True],
            "size": [512, 1, 1],
            "max": [2.5, group_count, 1e-5],
        }
    )
    return SimpleNamespace(tensors=tensors, get_tensor_ids=lambda op: [0, 1, 2])


def make_index(sides: Sequence[Any], kinds: Sequence[Sequence[str]]) -> ComparisonIndex:
    names = [{"norm": 0, "sigmoid": 0, "mul": 1, "gelu": 0}] * 2
    index: Any = SimpleNamespace(flows=sides, kinds=kinds, ops_by_name=names)
    return index


def test_numbers_of_groups_that_both_dumps_hold() -> None:
    index = make_index([make_side(8), make_side(4)], [["group_norm"]] * 2)
    explanation = statistics_explanation._find_other_group_count(index, NORMS, None)  # type: ignore[arg-type]
    assert explanation is not None
    side, cause = explanation
    assert (side, cause.name) == ("target", "norm-groups")
    assert cause.text == (
        "mid.norm behaves as group_norm with 8 groups; the reference has group_norm with 4 groups; "
        "residual 0"
    )


def test_equal_numbers_of_groups_prove_nothing() -> None:
    index = make_index([make_side(4), make_side(4)], [["group_norm"]] * 2)
    assert statistics_explanation._find_other_group_count(index, NORMS, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("gate", "is_silu"), [(0, True), (7, False)])
def test_product_of_x_and_its_sigmoid_is_silu(gate: int, *, is_silu: bool) -> None:
    """``x`` is value 0; another factor makes it a gate, of which the kinds prove nothing."""
    target = SimpleNamespace(reads=[(0,), (gate, 1)], writes=[(1,), (2,)])
    reference = SimpleNamespace(reads=[(0,)], writes=[(1,)])
    index = make_index([target, reference], [["sigmoid", "mul"], ["gelu"]])
    finding = replace(NORMS, kind="region", target_ops=("sigmoid", "mul"), reference_ops=("gelu",))
    explanation = statistics_explanation._find_other_activation(index, finding, None)  # type: ignore[arg-type]
    assert (explanation is not None) == is_silu
    if explanation is not None:
        assert explanation[1].text == "mid.norm behaves as silu; the reference has gelu; residual 0"
