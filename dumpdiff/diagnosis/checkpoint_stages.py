"""Comparisons of checkpoints and of updates as stages of a triage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.stage import Stage

if TYPE_CHECKING:
    from ..optimizers.comparison import UpdateComparison
    from ..weight_comparison import WeightsResult


def build_weights_stage(result: WeightsResult) -> Stage:
    """Are they the same weights? What is wrong once for all layers, then what the target lacks."""
    from ..weight_comparison.summary import format_headline, group_mistakes

    wrong = (f"{one.parameter}: {one.message}" for one in group_mistakes(result.mistakes))
    lacking = (f"{name}: missing" for name in result.missing)
    unknown = tuple(f"{name}: not in the reference" for name in result.unknown)
    return Stage("weights", result.verdict, format_headline(result), (*wrong, *lacking), unknown)


def build_optimizer_stage(comparison: UpdateComparison) -> Stage:
    """Did the same rule move the weights? The differences of the rules."""
    from ..optimizers.summary import format_headline

    differences = tuple(difference.text for difference in comparison.differences)
    return Stage("optimizer", comparison.verdict, format_headline(comparison), differences)
