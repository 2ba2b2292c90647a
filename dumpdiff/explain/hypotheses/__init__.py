"""The hypotheses, one module per operator family: each has a tuple ``HYPOTHESES``; the simplest come first."""

from . import (
    activations,
    attention,
    experts,
    factors,
    gradients,
    indexing,
    linear,
    losses,
    norms,
    optimizers,
    precision,
    residual_sums,
    rotary,
    weights,
)

#: In the order in which they are told where they explain equally well.
ALL = (
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
    *indexing.HYPOTHESES,
    *gradients.HYPOTHESES,
    *precision.HYPOTHESES,
)

__all__ = ["ALL"]
