"""Were both runs set up alike? Settings of any two frameworks, read without running anything, and compared.

>>> from dumpdiff.triage.settings import compare, read_settings
>>> compare(read_settings("pretrain.yaml"), read_settings("train.sh")).verdict  # doctest: +SKIP
'differ'
"""

from .comparison import Comparison, Outcome, compare
from .file_kinds import read_settings
from .row_value import Seen
from .settings import Given, Settings

__all__ = ["Comparison", "Given", "Outcome", "Seen", "Settings", "compare", "read_settings"]
