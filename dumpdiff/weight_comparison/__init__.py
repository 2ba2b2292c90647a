"""Are they the same weights? Two checkpoints paired, laid out alike, compared, and what is wrong named."""

from .comparison import compare
from .result import Checked, Mistake, Pair, WeightsResult

__all__ = ["Checked", "Mistake", "Pair", "WeightsResult", "compare"]
