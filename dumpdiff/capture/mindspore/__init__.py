"""The file that ``MINDSPORE_DUMP_CONFIG`` names: written (:func:`configuration`) and checked (:func:`check`).

What MindSpore makes of such a file depends on its version and on the backend: a :class:`Target` says both.
"""

from .configuration import Options, build_configuration, format_configuration
from .document import RULES, check_file
from .target import BACKENDS, OLDEST, TESTED, Target, Version
from .validation import check
from .violations import Rule, Violation

__all__ = [
    "BACKENDS",
    "OLDEST",
    "RULES",
    "TESTED",
    "Options",
    "Rule",
    "Target",
    "Version",
    "Violation",
    "check",
    "check_file",
    "build_configuration",
    "format_configuration",
]
