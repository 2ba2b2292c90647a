"""The hypotheses, one module per operator family: each has a tuple ``HYPOTHESES``; the simplest come first."""

from . import (
    activations,
    attention,
    experts,
    factors,
    gradients,
    linear,
    losses,
    norms,
    optimizers,
    precision,
    residual_sums,
    rotary,
    row_selection,
    weights,
)

#: In the order in which they are told where they explain equally well.
HYPOTHESES = (
    *rotary.HYPOTHESES,
    *weights.HYPOTHESES,
    *losses.HYPOTHESES,
    *optimizers.HYPOTHESES,
    *factors.HYPOTHESES,
    *norms.HYPOTHESES,
    *activations.HYPOTHESES,
    *attention.HYPOTHESES,
    *linear.HYPOTHESES,
    *experts.HYPOTHESES,
    *residual_sums.HYPOTHESES,
    *row_selection.HYPOTHESES,
    *gradients.HYPOTHESES,
    *precision.HYPOTHESES,
)

__all__ = ["HYPOTHESES"]
