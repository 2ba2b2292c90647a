"""Compare the settings of two runs of any two frameworks. Files are read; nothing is executed.

>>> from dumpdiff.run_settings import compare, read_settings
>>> compare(read_settings("pretrain.yaml"), read_settings("train.sh")).verdict  # doctest: +SKIP
'differ'
"""

from .comparison import ComparedSetting, SettingsComparison, compare
from .reader import read_settings
from .row_value import RowValue
from .settings import Settings, SettingValue

__all__ = [
    "ComparedSetting",
    "RowValue",
    "SettingValue",
    "Settings",
    "SettingsComparison",
    "compare",
    "read_settings",
]
