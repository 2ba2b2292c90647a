"""A region as a whole: the faithful side's operators, run again with one thing changed.

The other side may have fused, split or reordered the operators, or recorded none of the values in
between. What follows from the change is compared with its value at the end of the region.
"""

from ...hypothesis import Hypothesis
from .change import make_search
from .fitted_numbers import list_factors, list_offsets, list_other_arguments
from .missing_inputs import list_bypassed_steps, list_missing_inputs
from .orders import list_orders, list_shifts
from .other_inputs import list_replaced_inputs
from .other_tables import has_unpaired_tables, list_other_tables
from .roundings import list_roundings
from .surplus_steps import has_surplus_ops, list_named_surplus_steps, list_unnamed_surplus_steps
from .variants import list_activations, list_padding_modes, list_variants

#: What the records show: an op or a table that only one side has. They are tried with the
#: hypotheses on one op, if the records have such an op or table.
EVIDENT_HYPOTHESES = (
    Hypothesis("missing-step", make_search(list_named_surplus_steps, has_surplus_ops)),
    Hypothesis("table", make_search(list_other_tables, has_unpaired_tables)),
)

#: In the order in which equal explanations are listed: the simplest first.
HYPOTHESES = (
    Hypothesis("argument", make_search(list_other_arguments)),
    Hypothesis("missing-term", make_search(list_missing_inputs)),
    Hypothesis("missing-step", make_search(list_bypassed_steps)),
    Hypothesis("activation-kind", make_search(list_activations)),
    Hypothesis("variant", make_search(list_variants)),
    Hypothesis("missing-step", make_search(list_unnamed_surplus_steps, has_surplus_ops)),
    Hypothesis("padding-mode", make_search(list_padding_modes)),
    Hypothesis("constant-factor", make_search(list_factors)),
    Hypothesis("input-source", make_search(list_replaced_inputs), is_choice=True),
    Hypothesis("scan-direction", make_search(list_shifts), is_choice=True),
    Hypothesis("heads-permuted", make_search(list_orders), is_choice=True),
    Hypothesis("low-precision", make_search(list_roundings)),
    Hypothesis("constant-offset", make_search(list_offsets)),
)
