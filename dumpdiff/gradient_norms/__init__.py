"""Do the gradients agree, parameter by parameter? Local norms of two runs, read from what there is, and compared.

>>> from dumpdiff.triage.norms import compare, read_norms
>>> compare(read_norms("msrun_log"), read_norms("megatron.log")).verdict  # doctest: +SKIP
'differ'
"""

from .comparison import compare
from .patterns import Pattern
from .readers import read_norms
from .result import NormComparison
from .row import Row
from .side import Norms

__all__ = ["NormComparison", "Norms", "Pattern", "Row", "compare", "read_norms"]
