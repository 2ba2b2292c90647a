"""Were both runs set up alike? Settings of any two frameworks, read without running anything, and compared.

>>> from dumpdiff.triage.settings import compare, read_settings
>>> compare(read_settings("pretrain.yaml"), read_settings("train.sh")).verdict  # doctest: +SKIP
'differ'
"""

from .comparing import Comparison, Outcome, compare
from .given import Given, Settings
from .reading import Seen
from .recognise import read_settings

__all__ = ["Comparison", "Given", "Outcome", "Seen", "Settings", "compare", "read_settings"]
