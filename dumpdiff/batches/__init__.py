"""The comparison of the first batches of two runs, from dumps, token files or saved batches.

>>> from dumpdiff.batches import Packing, compare, read_batches
>>> packing = Packing(sequence_length=4096, global_batch=8, samples=8000)
>>> target, reference = "ms_dump", "data_text_document"
>>> compare(read_batches(target), read_batches(reference, packing)).verdict  # doctest: +SKIP
'agree'
"""

from .batch import Batch
from .checks import Finding, Vocabulary
from .comparison import DataComparison, choose_comparison, compare
from .first_step import Packing
from .packing_settings import derive_packings
from .reader import read_batches

__all__ = [
    "Batch",
    "DataComparison",
    "Finding",
    "Packing",
    "Vocabulary",
    "choose_comparison",
    "compare",
    "derive_packings",
    "read_batches",
]
