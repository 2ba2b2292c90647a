"""The weight decay of weights in a narrow type, where rounding hides most of what a step changes.

A decay of one step is far below half an ulp, so least squares cannot find it. A float32 master copy
collects the decay of all steps: with the correct value, a copy exists that rounds to the stored
weights of every step for nearly all elements, and with another value it does not. Without a copy,
rounding removes a decay whose product with the learning rate is below half an ulp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .fit import UpdateData
from .groups import EXPLAINED, ParameterGroup
from .master_copy import (
    CONVINCING_SHARE,
    DECISIVE_SHARE,
    MasterCopyShares,
    measure_master_copy,
)
from .refits import apply_fit
from .rule import DECAY, DECOUPLED, Rule

_NAME = DECAY.name


def determine_decay(
    group: ParameterGroup, data: UpdateData, rules: Sequence[Rule]
) -> tuple[ParameterGroup, MasterCopyShares | None]:
    """Return a group of narrow weights with the decay that they show, and its shares.

    ``decay`` is undetermined if the shares of several values are about as large, or if no value
    explains nearly all weights. The group is returned as it is, without shares, if its weights are
    not narrow or its rule has no variant with a decoupled decay.
    """
    histories = data.select(group.parameters).histories
    fit = group.fit
    if fit is None:
        return group, None
    shares = measure_master_copy(fit, histories, data.norms)
    rule = _find_decayed_rule(fit.rule, rules)
    if shares is None or rule is None or group.state != EXPLAINED:
        return group, shares
    candidates = {}
    for decay in dict.fromkeys((0.0, *DECAY.alternatives, fit.values[_NAME])):
        decayed = replace(fit, rule=rule, values={**fit.values, _NAME: decay})
        decayed_shares = measure_master_copy(decayed, histories, data.norms)
        if decayed_shares is not None:
            candidates[decay] = decayed_shares
    best_decay = max(candidates, key=lambda decay: candidates[decay].largest)
    best = candidates[best_decay]
    as_good = [
        decay
        for decay, other in candidates.items()
        if other.largest >= best.largest - DECISIVE_SHARE
    ]
    if best.largest < CONVINCING_SHARE or len(as_good) > 1:
        undetermined = (*group.undetermined, _NAME)
        largest = max(as_good) if best.largest >= CONVINCING_SHARE else np.inf
        return replace(group, undetermined=undetermined, largest_decay=largest), shares
    chosen_rule = rule if best_decay else rule.without_decay
    values = {**fit.values, _NAME: best_decay}
    determined = apply_fit(
        replace(fit, rule=chosen_rule, values=values), data.select(group.parameters)
    )
    return replace(group, fit=determined), best


def _find_decayed_rule(rule: Rule, rules: Sequence[Rule]) -> Rule | None:
    """Return the rule with a decoupled decay; None if it has none."""
    if rule.decay == DECOUPLED:
        return rule
    for candidate in rules:
        if candidate.decay == DECOUPLED and candidate.without_decay == rule:
            return candidate
    return None
