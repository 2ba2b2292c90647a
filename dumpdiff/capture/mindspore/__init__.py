"""Write and check the file that ``MINDSPORE_DUMP_CONFIG`` names.

:func:`build_configuration` makes its content, :func:`check` checks it. The meaning of such a file
depends on MindSpore's version and backend: see :class:`Target`.
"""

from .configuration import Options, build_configuration, format_configuration
from .document import RULES, check_file, check_file_name
from .target import BACKENDS, LAST_OF_MAJOR_1, OLDEST, TESTED, Target, Version
from .validation import check
from .violations import Rule, Violation

__all__ = [
    "BACKENDS",
    "LAST_OF_MAJOR_1",
    "OLDEST",
    "RULES",
    "TESTED",
    "Options",
    "Rule",
    "Target",
    "Version",
    "Violation",
    "build_configuration",
    "check",
    "check_file",
    "check_file_name",
    "format_configuration",
]
