"""Do the gradients agree, parameter by parameter? Local norms of two runs, read from what there is, and compared.

>>> from dumpdiff.triage.norms import compare, read_norms
>>> compare(read_norms("msrun_log"), read_norms("megatron.log")).verdict  # doctest: +SKIP
'differ'
"""

from .comparing import compare
from .comparison import NormComparison
from .patterns import Pattern
from .reading import read_norms
from .row import Row
from .side import Norms

__all__ = ["NormComparison", "Norms", "Pattern", "Row", "compare", "read_norms"]
