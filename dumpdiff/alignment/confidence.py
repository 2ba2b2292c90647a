"""Confidence that two paired classes are the same value, one level per kind of evidence.

The levels order the kinds of evidence from 0 (a guess) to 1 (certain). They were chosen, not
calibrated: 0.7 does not mean that 70 % of such pairs are right. They decide only through
thresholds: ``TRUSTED`` and ``CERTAIN`` below, and the one for mapping files in ``capture.msprobe``.
"""

from __future__ import annotations

#: Both sides use the same canonical parameter name. Values may differ: that is a finding.
PARAMETER_NAME = 0.95
#: Equal checksums of equal sizes, unique on both sides. Not 1, because sizes may be small.
CHECKSUM = 0.95
#: Each other's only candidate by value, plus ``PER_INFORMATIVE_NUMBER`` for each of the up to four
#: statistics that carry information: 0.94 with two of them, 0.98 with all four.
UNIQUE_VALUE = 0.9
PER_INFORMATIVE_NUMBER = 0.02
#: A mapping file names both, and their values agree.
MAPPED_NAME = 0.85
#: Producers of equal kind that read the same paired values, one on each side.
COMPLETE_INPUTS = 0.85
#: Agreeing values with several candidates, decided by the paired neighbors.
SUPPORTED_VALUE = 0.8
#: The optimizer's result for a paired parameter that is closest to the old weight.
NEW_WEIGHT = 0.8
#: Gradients of paired values.
GRADIENT_OF_VALUE = 0.75
#: Several ops read the same values; this output is close to its partner.
CLOSE_OUTPUT = 0.75
#: A mapping file names both, but their values do not agree.
MAPPED_NAME_ONLY = 0.7
#: As COMPLETE_INPUTS, but some inputs of both producers have no partner.
PARTIAL_INPUTS = 0.7
#: Results of one kind that alone follow from the same paired values.
LINEAGE = 0.7
#: Gradients that flow through paired calls, between paired values.
GRADIENT_OF_EDGE = 0.7
#: The only inputs of paired ops that had no partner.
REMAINING_INPUT = 0.7
#: The only values of two paired ops that are not partners, of one size.
SAME_SLOT = 0.75
#: The only gradient of a parameter, and the only unread result of its shape, without a partner.
REMAINING_GRADIENT = 0.7
#: Equal up to a factor that several other pairs have too.
SCALED_VALUE = 0.7
#: Optimizer state of a paired parameter whose distribution has the same shape.
MOMENT = 0.7
#: Much closer to each other than to any other class, but farther apart than noise explains.
NEAR_VALUE = 0.65
#: One of several scalars of equal value; the last one is taken.
LAST_VALUE = 0.6
#: The last scalar that the forward pass computes, whatever its value.
LOSS = 0.6
#: Several ops read the same values; only the order of execution decides between their outputs.
EXECUTION_ORDER = 0.6
#: The same role in the network, plus ``PER_ROLE_HOP`` for each hop of its neighborhood: up to 0.65.
ROLE = 0.5
PER_ROLE_HOP = 0.05

#: Pairs from this confidence on are used to learn which role of one side is which role of the
#: other. Near values, execution order and roles themselves are below it: a guess must not confirm
#: the next guess.
TRUSTED = 0.7
#: From here on two leaves are the same tensor even if their values differ: names and unique values.
CERTAIN = 0.9

#: Evidence that says nothing of the numbers. Pairs by value agree; names and updates are facts.
GUESSES = frozenset({"structure", "role", "lineage"})
