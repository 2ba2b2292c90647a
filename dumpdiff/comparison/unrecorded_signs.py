"""Losses that differ only in their sign: API recorders leave out the minus of ``-x.mean()``.

The last recorded number is then the mean of log probabilities, whose negative is the loss. The
gradients show whether the sign is really another one.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.trace import FORWARD

#: Evidence of the pairs that are losses, see ``alignment.anchors.pair_losses``.
_LOSS_EVIDENCE = "last"
#: Name of the operator that API recorders leave out.
_NEGATION = "neg"


def accept_unrecorded_signs(alignment: Alignment, pairs: pd.DataFrame) -> None:
    """Compare two losses without their signs where a side records no negations.

    The layout of such a pair is 'negated'. The loss must be one that nothing recorded reads.
    """
    negations = (alignment.target_kinds, alignment.reference_kinds)
    may_lack_sign = [_NEGATION not in kinds for kinds in negations]
    if not any(may_lack_sign):
        return
    for row in np.flatnonzero((pairs["evidence"] == _LOSS_EVIDENCE).to_numpy()).tolist():
        if not pairs["error"].iat[row] > pairs["tolerance"].iat[row]:
            continue
        value_t, value_r = int(pairs["target"].iat[row]), int(pairs["reference"].iat[row])
        sides = ((alignment.target, value_t), (alignment.reference, value_r))
        is_possible = any(
            may_lack and not _is_read(flow, value)
            for may_lack, (flow, value) in zip(may_lack_sign, sides, strict=True)
        )
        number_t, number_r = (float(flow.list_column("max")[value]) for flow, value in sides)
        if not is_possible or not number_r:
            continue
        error = abs(number_t + number_r) / abs(number_r)
        if error <= pairs["tolerance"].iat[row]:
            label = pairs.index[row]
            pairs.loc[label, ["error", "layout"]] = [error, "negated"]


def _is_read(flow: Flow, value: int) -> bool:
    """Return whether a forward op computes with a value."""
    levels = flow.trace.ops["level"]
    return any(flow.phases[op] == FORWARD and levels.iat[op] == "op" for op in flow.users[value])
