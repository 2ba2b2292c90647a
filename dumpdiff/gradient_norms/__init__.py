"""The comparison of two runs' gradient norms, parameter by parameter.

Norms are read from logs, dumps, saved gradients or lists of numbers.

>>> from dumpdiff.gradient_norms import compare, read_norms
>>> compare(read_norms("msrun_log"), read_norms("megatron.log")).verdict  # doctest: +SKIP
'differ'
"""

from .comparison import NormComparison, compare
from .norms import Norms
from .patterns import Pattern
from .readers import read_norms
from .row import Row

__all__ = ["NormComparison", "Norms", "Pattern", "Row", "compare", "read_norms"]
