"""A region as a whole: the faithful side's operators, run again with one thing changed.

The other side may have fused, split or reordered the operators, or recorded none of the values in
between. What follows from the change is compared with its value at the end of the region.
"""

from ...hypothesis import Hypothesis
from .activations import list_activations, list_clamps, list_common_activations
from .change import make_search
from .discrete_inputs import list_exchanged_numbers, list_lost_numbers, list_other_numbers
from .fitted_numbers import (
    list_branch_factors,
    list_factors,
    list_offsets,
    list_other_arguments,
    list_plain_divisors,
)
from .formulas import suggest_other_formula
from .gates import list_swapped_gates
from .joined_parts import list_foreign_joins, list_other_joins
from .late_masks import list_late_masks
from .loss_terms import (
    list_other_denominators,
    list_other_loss_functions,
    list_other_thresholds,
)
from .missing_inputs import (
    list_bypassed_steps,
    list_equal_weights,
    list_missing_affines,
    list_missing_inputs,
    list_missing_masks,
    list_stopped_rows,
)
from .norms import list_epsilons, list_norms
from .orders import list_convolution_shifts, list_orders, list_pixel_orders, list_shifts
from .other_inputs import list_other_targets, list_replaced_inputs
from .other_modules import list_exchanged_modules, list_other_modules
from .other_tables import has_unpaired_tables, list_other_tables
from .partial_biases import list_missing_bias_parts
from .pooled_means import list_means_of_groups, list_pooled_means
from .poolings import list_poolings
from .quantizers import list_quantizers, list_scale_axes, list_step_limits
from .recorded_differences import list_recorded_differences
from .reduction_axes import (
    list_common_reduction_axes,
    list_interleaved_groups,
    list_reduction_axes,
    list_softmax_axes,
)
from .rotations import list_exchanged_inputs, list_rotations
from .roundings import list_roundings
from .row_reductions import list_row_reductions
from .scan_directions import list_reversed_scans
from .split_orders import list_rows_by_head, list_split_orders
from .state_spaces import list_decay_signs, list_discretizations, list_other_states
from .step_orders import list_activated_addends, list_earlier_steps, list_exchanged_steps
from .sums_before_steps import suggest_terms_missing_before
from .surplus_steps import (
    has_surplus_ops,
    list_named_surplus_steps,
    list_repeated_surplus_steps,
    list_unnamed_surplus_steps,
)
from .triangles import list_other_triangles
from .unrecorded_masks import list_unrecorded_masks
from .variants import list_padding_modes, list_variants
from .windows import list_shifted_windows
from .written_norms import list_written_norms

#: Changes that the records show that are tried on a single number in any case.
_EVIDENT_TRIALS = 3
#: What the records show: an op or a table that only one side has. They are tried with the
#: hypotheses on one op, if the records have such an op or table.
EVIDENT_HYPOTHESES = (
    Hypothesis(
        "missing-step", make_search(list_named_surplus_steps, has_surplus_ops, _EVIDENT_TRIALS)
    ),
    Hypothesis("table", make_search(list_other_tables, has_unpaired_tables)),
)

#: Of a recurrence that is written out, also tried on its first steps: later ones are paired with
#: others if it runs in the other direction.
SCAN_HYPOTHESES = (Hypothesis("scan-direction", make_search(list_reversed_scans)),)

#: A step that one side leaves out, tried on what follows from it.
OMISSION_HYPOTHESES = (Hypothesis("missing-step", make_search(list_bypassed_steps)),)

#: In the order in which equal explanations are listed: the simplest first.
HYPOTHESES = (
    Hypothesis("loss-weight", make_search(list_equal_weights)),
    Hypothesis("loss-reduction", make_search(list_pooled_means)),
    Hypothesis("loss-reduction", make_search(list_means_of_groups)),
    Hypothesis("loss-reduction", make_search(list_other_denominators)),
    Hypothesis("argument", make_search(list_recorded_differences)),
    Hypothesis("quantization-scale", make_search(list_quantizers)),
    Hypothesis("quantization-range", make_search(list_step_limits)),
    Hypothesis("quantization-axis", make_search(list_scale_axes)),
    Hypothesis("reduction-axis", make_search(list_reduction_axes)),
    Hypothesis("reduction-axis", make_search(list_common_reduction_axes)),
    Hypothesis("axes-swapped", make_search(list_interleaved_groups)),
    Hypothesis("loss-kind", make_search(list_other_loss_functions)),
    Hypothesis("loss-threshold", make_search(list_other_thresholds)),
    Hypothesis("softmax-axis", make_search(list_softmax_axes)),
    Hypothesis("mask-kind", make_search(list_late_masks)),
    Hypothesis("mask-missing", make_search(list_unrecorded_masks)),
    Hypothesis("mask-shifted", make_search(list_other_triangles)),
    Hypothesis("loss-target", make_search(list_other_targets)),
    Hypothesis("label-shift", make_search(list_other_numbers)),
    Hypothesis("input-order", make_search(list_exchanged_numbers)),
    Hypothesis("missing-term", make_search(list_lost_numbers)),
    Hypothesis("rope-missing", make_search(list_rotations)),
    Hypothesis("input-order", make_search(list_exchanged_inputs)),
    Hypothesis("input-order", make_search(list_other_joins)),
    Hypothesis("input-source", make_search(list_foreign_joins)),
    Hypothesis("split-order", make_search(list_split_orders)),
    Hypothesis("split-order", make_search(list_rows_by_head)),
    Hypothesis("gate-up-swapped", make_search(list_swapped_gates)),
    Hypothesis("activation-kind", make_search(list_activations)),
    Hypothesis("activation-kind", make_search(list_common_activations)),
    Hypothesis("pooling", make_search(list_poolings)),
    Hypothesis("pooling", make_search(list_row_reductions)),
    Hypothesis("pooling", make_search(list_plain_divisors)),
    Hypothesis("argument", make_search(list_other_arguments)),
    *SCAN_HYPOTHESES,
    Hypothesis("hidden-state-reset", make_search(list_other_states)),
    Hypothesis("decay-sign", make_search(list_decay_signs)),
    Hypothesis("discretization", make_search(list_discretizations)),
    Hypothesis("layer-order", make_search(list_earlier_steps)),
    Hypothesis("layer-order", make_search(list_exchanged_steps)),
    Hypothesis("layer-order", make_search(list_activated_addends)),
    Hypothesis("norm-missing", make_search(list_written_norms)),
    Hypothesis("bias-missing", make_search(list_missing_bias_parts)),
    Hypothesis("missing-term", make_search(list_missing_inputs)),
    Hypothesis("affine-missing", make_search(list_missing_affines)),
    Hypothesis("straight-through", make_search(list_missing_masks)),
    Hypothesis("gradient-stopped", make_search(list_stopped_rows)),
    Hypothesis("gradient-stopped", suggest_terms_missing_before),
    *OMISSION_HYPOTHESES,
    Hypothesis("clamp", make_search(list_clamps)),
    Hypothesis("variant", make_search(list_variants)),
    Hypothesis("missing-step", make_search(list_unnamed_surplus_steps, has_surplus_ops)),
    Hypothesis("missing-step", make_search(list_repeated_surplus_steps, has_surplus_ops)),
    Hypothesis("epsilon", make_search(list_epsilons)),
    Hypothesis("norm-kind", make_search(list_norms)),
    Hypothesis("padding-mode", make_search(list_padding_modes)),
    Hypothesis("causal-shift", make_search(list_convolution_shifts)),
    Hypothesis("causal-shift", make_search(list_shifted_windows)),
    Hypothesis("constant-factor", make_search(list_factors)),
    Hypothesis("residual-scale", make_search(list_branch_factors)),
    Hypothesis("weight-swapped", make_search(list_other_modules)),
    Hypothesis("weight-swapped", make_search(list_exchanged_modules)),
    Hypothesis("input-source", make_search(list_replaced_inputs), is_choice=True),
    Hypothesis("scan-direction", make_search(list_shifts), is_choice=True),
    Hypothesis("axes-swapped", make_search(list_pixel_orders)),
    Hypothesis("heads-permuted", make_search(list_orders), is_choice=True),
    Hypothesis("low-precision", make_search(list_roundings)),
    Hypothesis("constant-offset", make_search(list_offsets)),
)

#: What both regions show, if no single change of one of them explains the other.
LAST_HYPOTHESES = (Hypothesis("layer-order", suggest_other_formula),)
