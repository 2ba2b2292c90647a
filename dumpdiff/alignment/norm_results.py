"""Results of norms: one op on one side, several on the other.

Where values agree, the result of a norm has its partner, however the norm is written. Behind a
divergence it has none if the ops differ: a norm that is written out ends with the addition of its
shift, or, without a shift, with the product with its scale. But where both sides read paired shifts
once in the forward pass, the results correspond, whatever their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Flow
from ..model.trace import FORWARD
from . import confidence
from .matches import Matching

#: Kinds of norms that are one op.
_NORM_KINDS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"})
#: Kinds that add a shift.
_SHIFT_KINDS = frozenset({"add", "addcmul"})
#: The kind that multiplies with a scale.
_SCALE_KIND = "mul"


@dataclass(frozen=True)
class _Use:
    """The only use of a parameter in the forward pass."""

    kind: str  #: of the op
    n_parameters: int  #: that the op reads
    result: int  #: class


def pair_norm_results(matching: Matching) -> bool:
    """Pair the results of the only ops that read paired shifts, or scales of norms without one.

    Returns whether any pair was added.
    """
    pairs = []
    is_given = (matching.classes_t >= 0) & (matching.target.producers < 0)
    for t in np.flatnonzero(is_given).tolist():
        r = int(matching.classes_t[t])
        if matching.reference.producers[r] >= 0:
            continue
        use_t = _find_use(matching.target, matching.kinds_t, t)
        use_r = _find_use(matching.reference, matching.kinds_r, r)
        if use_t and use_r and (_end_alike(use_t, use_r) or _end_alike(use_r, use_t)):
            pairs.append((use_t.result, use_r.result))
    progress = False
    for t, r in matching.sort_pairs(pairs):
        progress |= matching.pair(t, r, "structure", confidence.PARTIAL_INPUTS)
    return progress


def _find_use(flow: Flow, kinds: Sequence[str], parameter: int) -> _Use | None:
    """Return the only use of a parameter, None if it has several or makes nothing larger of it."""
    ops = [op for op in flow.users[parameter] if flow.phases[op] == FORWARD]
    ops = [op for op in ops if not flow.is_module[op] and not flow.is_layout[op]]
    if len(ops) != 1:
        return None
    results = [value for value in flow.writes[ops[0]] if flow.producers[value] == ops[0]]
    if not results or flow.sizes[results[0]] <= flow.sizes[parameter]:
        return None
    n_parameters = sum(bool(flow.producers[value] < 0) for value in flow.operands[ops[0]])
    return _Use(kinds[ops[0]], n_parameters, results[0])


def _end_alike(use: _Use, other_use: _Use) -> bool:
    """Return whether the first op is the last one of a norm that the other one ends with, too."""
    if use.kind == _SCALE_KIND:
        return other_use.kind in _NORM_KINDS and other_use.n_parameters == 1
    return use.kind in _SHIFT_KINDS and other_use.kind in _SHIFT_KINDS | _NORM_KINDS
