"""Comparisons of checkpoints and of updates as stages of a triage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..model.stage import Stage, Verdict

if TYPE_CHECKING:
    from ..optimizers.comparison import Comparison
    from ..weight_comparison import WeightsResult

_WEIGHTS: Mapping[str, Verdict] = {"same": "agree", "differ": "differ", "inconclusive": "unclear"}
_MOVES: Mapping[str, Verdict] = {"same": "agree", "different": "differ", "cannot tell": "unclear"}


def weights_stage(result: WeightsResult) -> Stage:
    """Are they the same weights? What is wrong once for all layers, then what the target lacks."""
    from ..weight_comparison.summary import headline, told

    wrong = (f"{one.what}: {one.said}" for one in told(result.mistakes))
    lacking = (f"{name}: missing" for name in result.missing)
    unknown = tuple(f"{name}: not in the reference" for name in result.unknown)
    return Stage("weights", _WEIGHTS[result.verdict], headline(result), (*wrong, *lacking), unknown)


def optimizer_stage(comparison: Comparison) -> Stage:
    """Did the same rule move the weights? The differences of the rules."""
    from ..optimizers.summary import headline

    differences = tuple(difference.text for difference in comparison.differences)
    return Stage("optimizer", _MOVES[comparison.verdict], headline(comparison), differences)
