"""Parameters that were moved alike are one group; each parameter is in exactly one."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.optimizers.fit import UpdateData
from dumpdiff.optimizers.groups import EXPLAINED, UNMOVED, UNEXPLAINED, group_parameters
from dumpdiff.optimizers.history import History, build_history
from dumpdiff.optimizers.search import KnownSettings


def moved_by(name: str, rate: float, seed: int, strange: bool = False) -> History:
    """Two steps of SGD in float32; a strange one is moved by the cube of its gradient."""
    made = np.random.default_rng(seed)
    weights = [made.standard_normal((32, 8)).astype(np.float32)]
    gradients = made.standard_normal((2, 32, 8)).astype(np.float32)
    for gradient in gradients:
        weights.append(weights[-1] - np.float32(rate) * (gradient**3 if strange else gradient))
    return build_history(name, weights, list(gradients))


def data(*histories: History) -> UpdateData:
    return UpdateData(histories, np.sqrt(np.sum([one.norms**2 for one in histories], axis=0)))


def test_a_learning_rate_for_each_layer_makes_a_group_of_each() -> None:
    rates = {f"layer.{n}": 0.1 * 0.8**n for n in range(10)}
    groups = group_parameters(
        data(*(moved_by(name, rate, n) for n, (name, rate) in enumerate(rates.items()))), KnownSettings()
    )
    assert {group.state for group in groups} == {EXPLAINED}
    found = {name: group.fit.rates[0] for group in groups for name in group.parameters}
    assert found == pytest.approx(rates, rel=1e-5)
    assert len(groups) == 10


def test_what_stood_still_and_what_no_rule_explains_stand_apart() -> None:
    histories = [
        moved_by("a", 0.1, 0),
        moved_by("b", 0.1, 1),
        moved_by("c", 0.0, 2),
        moved_by("d", 0.1, 3, strange=True),
    ]
    groups = group_parameters(data(*histories), KnownSettings())
    assert {frozenset(group.parameters): group.state for group in groups} == {
        frozenset("ab"): EXPLAINED, frozenset("c"): UNMOVED, frozenset("d"): UNEXPLAINED,
    }  # fmt: skip
