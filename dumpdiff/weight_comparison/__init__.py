"""Are they the same weights? Two checkpoints paired, laid out alike, compared, and what is wrong named."""

from .comparison import compare
from .result import CheckpointSummary, Mistake, Pair, WeightsResult

__all__ = ["CheckpointSummary", "Mistake", "Pair", "WeightsResult", "compare"]
