"""Which update rule moved the weights: found from weights and gradients, in float64.

Pure functions and data. :mod:`.history` is the record of one parameter, :mod:`.rule` the
interface of an update rule (:mod:`.sgd`, :mod:`.adam`, :mod:`.muon`), :mod:`.fit` the fit of one
rule to histories, :mod:`.search` the search for unknown hyperparameters, :mod:`.groups` the
parameters with the same rule and hyperparameters. docs/optimizer.md has the formulas and their
sources.
"""
