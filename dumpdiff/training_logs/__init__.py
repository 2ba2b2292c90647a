"""Read and compare training logs of Megatron-LM, MindSpore Transformers and the HF Trainer.

>>> from dumpdiff.training_logs import compare, read_log
>>> compare(read_log("msrun_log"), read_log("megatron.log")).onset  # doctest: +SKIP
'step 2'
"""

from .comparison import Band, LogComparison, compare
from .curves import Curves
from .migration_standard import Check
from .reader import read_log

__all__ = ["Band", "Check", "Curves", "LogComparison", "compare", "read_log"]
