"""A region as a whole: the faithful side's operators, run again with one thing changed.

The other side may have fused, split or reordered the operators, or recorded none of the values in
between. What follows from the change is compared with its value at the end of the region.
"""

from ...hypothesis import Hypothesis
from .activations import list_activations, list_clamps
from .change import make_search
from .fitted_numbers import list_factors, list_offsets, list_other_arguments
from .missing_inputs import list_bypassed_steps, list_missing_inputs, list_missing_masks
from .norms import list_norms
from .orders import list_orders, list_shifts
from .other_inputs import list_replaced_inputs
from .quantizers import list_quantizers, list_scale_axes, list_step_limits
from .roundings import list_roundings
from .variants import list_padding_modes, list_variants

#: In the order in which equal explanations are listed: the simplest first.
HYPOTHESES = (
    Hypothesis("quantization-scale", make_search(list_quantizers)),
    Hypothesis("quantization-range", make_search(list_step_limits)),
    Hypothesis("quantization-axis", make_search(list_scale_axes)),
    Hypothesis("activation-kind", make_search(list_activations)),
    Hypothesis("argument", make_search(list_other_arguments)),
    Hypothesis("missing-term", make_search(list_missing_inputs)),
    Hypothesis("straight-through", make_search(list_missing_masks)),
    Hypothesis("missing-step", make_search(list_bypassed_steps)),
    Hypothesis("clamp", make_search(list_clamps)),
    Hypothesis("variant", make_search(list_variants)),
    Hypothesis("norm-kind", make_search(list_norms)),
    Hypothesis("padding-mode", make_search(list_padding_modes)),
    Hypothesis("constant-factor", make_search(list_factors)),
    Hypothesis("input-source", make_search(list_replaced_inputs)),
    Hypothesis("scan-direction", make_search(list_shifts)),
    Hypothesis("heads-permuted", make_search(list_orders)),
    Hypothesis("low-precision", make_search(list_roundings)),
    Hypothesis("constant-offset", make_search(list_offsets)),
)
