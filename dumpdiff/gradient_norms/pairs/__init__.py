"""Pairs of gradient norms of both sides that belong to the same parameter.

Pairs are made by name and rule first; the remaining norms are paired by order and value.
"""

from .match import PairEvidence, ParameterPair, ParameterPairs
from .paired_sides import PairedSides, pair_sides

__all__ = ["PairEvidence", "PairedSides", "ParameterPair", "ParameterPairs", "pair_sides"]
