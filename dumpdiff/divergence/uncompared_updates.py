"""What could not be compared of the update of the weights, and what to dump instead."""

from __future__ import annotations

from collections.abc import Mapping

from ..comparison.new_weights import HIDDEN_STEP, NOISE_STEP, find_new_weight_rows
from ..model.trace import OPTIMIZER
from .joint_graph import JointGraph

_ADVICE_FOR_STEPS = "; dump whole tensors of the optimizer's step"
#: Framework -> how its dump holds the new weights.
_ADVICE = {
    "mindspore": 'MindSpore: record the inputs of the optimizer\'s ops ("input_output": 0)',
    "pytorch": 'PyTorch: stop the recorder after optimizer.step() (msprobe: level "mix" or "L1")',
}


def find_update_gaps(
    graph: JointGraph, coverage: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[str]:
    """Return a sentence if both sides recorded the optimizer and nothing of it was compared."""
    if not all(OPTIMIZER in phases for phases in coverage.values()):
        return []
    rows = find_new_weight_rows(graph.comparison.alignment)
    pairs = graph.comparison.pairs.iloc[rows]
    if rows and (pairs["reason"] == HIDDEN_STEP).all():
        return [
            "both sides recorded new weights, but the step changes none of them by more than the "
            f"tolerance{_ADVICE_FOR_STEPS}"
        ]
    n_compared = sum(phases[OPTIMIZER]["compared"] for phases in coverage.values())
    if n_compared and (not rows or pairs["comparable"].any()):
        return []
    alignment = graph.comparison.alignment
    frameworks = {flow.trace.source.framework for flow in (alignment.target, alignment.reference)}
    advice = "; ".join(_ADVICE[name] for name in sorted(frameworks) if name in _ADVICE)
    subject = "new weights, but none" if rows else "the optimizer, but none of it"
    return [f"both sides recorded {subject} could be compared. {advice}"]


def describe_updates(
    graph: JointGraph, coverage: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[str]:
    """Return sentences on new weights that were not compared."""
    if not all(OPTIMIZER in phases for phases in coverage.values()):
        return []
    rows = find_new_weight_rows(graph.comparison.alignment)
    if not rows:
        return ["new weights are not recorded by both sides and were not compared"]
    reasons = graph.comparison.pairs["reason"].tolist()
    sentences = []
    for reason, advice in ((HIDDEN_STEP, _ADVICE_FOR_STEPS), (NOISE_STEP, "")):
        n_hidden = sum(reasons[row] == reason for row in rows)
        if n_hidden:
            sentences.append(
                f"{n_hidden} of {len(rows)} new weights could not be compared: {reason}{advice}"
            )
    return sentences
