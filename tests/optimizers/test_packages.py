"""Recorded steps of optimizers of timm, pytorch-optimizer and torchao (record_optimizers.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.optimizers.groups import EXPLAINED, UNEXPLAINED
from dumpdiff.optimizers.inputs import read_run


@pytest.mark.parametrize(
    ("name", "rule", "rate", "values", "undetermined"),
    [
        ("lamb", "LAMB, decay", 1e-2, {"beta2": 0.999, "epsilon": 1e-6, "decay": 0.01}, ()),
        (
            "lamb_clipped",
            "LAMB, decay",
            2e-3,
            {"beta1": 0.8, "beta2": 0.99, "decay": 0.01},
            ("epsilon", "clip"),
        ),
        ("lamb_trust_clip", "LAMB, decay, ratio at most 1", 1e-2, {"decay": 0.1}, ()),
        ("ademamix", "AdEMAMix", 1e-3, {"slow_share": 5e-4}, ("epsilon", "beta3")),
        (
            "ademamix_odd",
            "AdEMAMix, decoupled decay",
            2e-3,
            {"beta1": 0.8, "beta2": 0.99, "slow_share": 8e-3, "beta3": 0.999, "decay": 0.1},
            (),
        ),
        ("shampoo", "Shampoo", 1e-2, {"epsilon": 1e-6, "decay": 0.0}, ()),
        ("shampoo_odd", "Shampoo, decoupled decay", 3e-2, {"epsilon": 1e-3, "decay": 0.05}, ()),
    ],
)
def test_rule_and_numbers(
    dump: Callable[[str], Path],
    name: str,
    rule: str,
    rate: float,
    values: dict[str, float],
    undetermined: tuple[str, ...],
) -> None:
    run = read_run(str(dump("optimizers") / name))
    (group,) = run.groups
    assert (run.state, group.fit.rule.name) == (EXPLAINED, rule)
    assert group.fit.rates == pytest.approx([rate] * run.n_steps, rel=2e-3)
    assert {key: group.fit.values[key] for key in values} == pytest.approx(values, rel=5e-3)
    assert group.undetermined == undetermined


@pytest.mark.parametrize(
    "name",
    [
        "lamb_pytorch_optimizer",
        "soap",
        "soap_odd",
        "sophia",
        "sophia_odd",
    ],
)
def test_rules_that_are_not_tried_are_unexplained(dump: Callable[[str], Path], name: str) -> None:
    """No rule is near enough to be named, and none is named instead."""
    run = read_run(str(dump("optimizers") / name))
    assert (run.state, {group.state for group in run.groups}) == (UNEXPLAINED, {UNEXPLAINED})


@pytest.mark.parametrize(("name", "rate"), [("", 1e-3), ("_odd", 1e-2)])
def test_stochastic_rounding_is_no_master_copy(
    dump: Callable[[str], Path], name: str, rate: float
) -> None:
    run = read_run(str(dump("optimizers") / f"stochastic_rounding{name}"))
    (group,) = run.groups
    assert group.state == EXPLAINED
    assert group.fit.rule.family == "Adam"
    assert group.fit.rates == pytest.approx([rate] * run.n_steps, rel=0.02)
    assert "decay" in group.undetermined
    assert run.master_copies[0].is_stochastic
    assert run.master_copies[0].has_master is False
