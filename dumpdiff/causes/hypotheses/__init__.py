"""The hypotheses, one module per operator family, each with a tuple ``HYPOTHESES``."""

from . import (
    activations,
    attention,
    batch,
    channels,
    clipping,
    column_selection,
    composites,
    coordinate_tables,
    derivatives,
    element_losses,
    experts,
    factors,
    gradient_masks,
    gradient_paths,
    gradients,
    linear,
    loss_forms,
    losses,
    masks,
    moved_rows,
    norms,
    optimizers,
    precision,
    quantization,
    recurrence,
    residual_sums,
    rotary,
    routing,
    row_selection,
    wave_tables,
    weights,
    whole_attention,
)

#: In the order in which causes are listed that explain a finding equally well: the simplest first.
HYPOTHESES = (
    *composites.EVIDENT_HYPOTHESES,
    *attention.MASK_HYPOTHESES,
    *masks.HYPOTHESES,
    *rotary.HYPOTHESES,
    *wave_tables.HYPOTHESES,
    *coordinate_tables.HYPOTHESES,
    *row_selection.HYPOTHESES,
    *column_selection.HYPOTHESES,
    *channels.HYPOTHESES,
    *weights.HYPOTHESES,
    *losses.HYPOTHESES,
    *loss_forms.HYPOTHESES,
    *element_losses.HYPOTHESES,
    *batch.HYPOTHESES,
    *clipping.HYPOTHESES,
    *optimizers.HYPOTHESES,
    *factors.HYPOTHESES,
    *norms.HYPOTHESES,
    *quantization.HYPOTHESES,
    *activations.HYPOTHESES,
    *attention.HYPOTHESES,
    *whole_attention.HYPOTHESES,
    *linear.HYPOTHESES,
    *experts.HYPOTHESES,
    *residual_sums.HYPOTHESES,
    *derivatives.HYPOTHESES,
    *gradient_masks.HYPOTHESES,
    *gradients.HYPOTHESES,
    *recurrence.HYPOTHESES,
    *precision.HYPOTHESES,
)

#: Changes of a router, tried first where both sides have one and their weights differ.
ROUTING_HYPOTHESES = routing.HYPOTHESES

#: Changes of a recurrent layer, also tried on the first of its steps that diverges.
RECURRENCE_HYPOTHESES = recurrence.HYPOTHESES

#: Changes of a whole region, tried if none of the above explains a finding: they cost more.
COMPOSITE_HYPOTHESES = composites.HYPOTHESES

#: A step that one side leaves out, also tried on what follows from it.
OMISSION_HYPOTHESES = composites.OMISSION_HYPOTHESES

#: Changes of a recurrence that is written out, also tried on other values of its region.
SCAN_HYPOTHESES = composites.SCAN_HYPOTHESES

#: Tried on a gradient that nothing else explains: every step after its value is differentiated.
PATH_HYPOTHESES = gradient_paths.HYPOTHESES

#: What is seen of a value whose cause is not found.
LAST_HYPOTHESES = (
    *factors.ZERO_HYPOTHESES,
    *whole_attention.LAST_HYPOTHESES,
    *moved_rows.LAST_HYPOTHESES,
    *composites.LAST_HYPOTHESES,
)

__all__ = [
    "COMPOSITE_HYPOTHESES",
    "HYPOTHESES",
    "LAST_HYPOTHESES",
    "OMISSION_HYPOTHESES",
    "PATH_HYPOTHESES",
    "RECURRENCE_HYPOTHESES",
    "ROUTING_HYPOTHESES",
    "SCAN_HYPOTHESES",
]
