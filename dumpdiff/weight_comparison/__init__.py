"""Compare the weights of two checkpoints: pair parameters, match layouts, name mistakes."""

from .comparison import compare
from .result import CheckpointSummary, Mistake, Pair, WeightsResult

__all__ = ["CheckpointSummary", "Mistake", "Pair", "WeightsResult", "compare"]
