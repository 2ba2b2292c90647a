"""Parameters with the same rule and hyperparameters are one group; each is in exactly one."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.optimizers.fit import UpdateData
from dumpdiff.optimizers.groups import EXPLAINED, UNEXPLAINED, UNMOVED, group_parameters
from dumpdiff.optimizers.history import History, build_history
from dumpdiff.optimizers.search import KnownSettings


def simulate_sgd(name: str, rate: float, seed: int, cubed: bool = False) -> History:
    """Return two steps of SGD in float32; with ``cubed`` gradients no rule explains them."""
    generator = np.random.default_rng(seed)
    weights = [generator.standard_normal((32, 8)).astype(np.float32)]
    gradients = generator.standard_normal((2, 32, 8)).astype(np.float32)
    for gradient in gradients:
        weights.append(weights[-1] - np.float32(rate) * (gradient**3 if cubed else gradient))
    return build_history(name, weights, list(gradients))


def build_data(*histories: History) -> UpdateData:
    return UpdateData(
        histories, np.sqrt(np.sum([history.norms**2 for history in histories], axis=0))
    )


def test_each_layer_with_its_own_learning_rate_is_a_group() -> None:
    rates = {f"layer.{n}": 0.1 * 0.8**n for n in range(10)}
    groups = group_parameters(
        build_data(*(simulate_sgd(name, rate, n) for n, (name, rate) in enumerate(rates.items()))),
        KnownSettings(),
    )
    assert {group.state for group in groups} == {EXPLAINED}
    found_rates = {name: group.fit.rates[0] for group in groups for name in group.parameters}
    assert found_rates == pytest.approx(rates, rel=1e-5)
    assert len(groups) == 10


def test_unmoved_and_unexplained_parameters_are_separate_groups() -> None:
    histories = [
        simulate_sgd("a", 0.1, 0),
        simulate_sgd("b", 0.1, 1),
        simulate_sgd("c", 0.0, 2),
        simulate_sgd("d", 0.1, 3, cubed=True),
    ]
    groups = group_parameters(build_data(*histories), KnownSettings())
    assert {frozenset(group.parameters): group.state for group in groups} == {
        frozenset("ab"): EXPLAINED, frozenset("c"): UNMOVED, frozenset("d"): UNEXPLAINED,
    }  # fmt: skip
