"""Which rule moved the weights: found from weights before, gradients, and weights after, in float64.

Pure functions and data. :mod:`.history` is what happened to a parameter, :mod:`.rule` what a rule is (:mod:`.sgd`,
:mod:`.adam`, :mod:`.muon`), :mod:`.fit` holds one against the other, :mod:`.search` finds numbers that are left open,
:mod:`.groups` the parameters that were moved alike. docs/optimizer.md has the formulas and their sources.
"""
