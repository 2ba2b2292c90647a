"""Input for msprobe: configuration, lines of training scripts, mappings for ``msprobe compare``."""

from .configuration import Options, build_configuration, format_configuration
from .script import SCRIPTS, build_script_lines
from .version import LATEST, Version, format_version, get_version, parse_version

__all__ = [
    "LATEST",
    "SCRIPTS",
    "Options",
    "Version",
    "build_configuration",
    "build_script_lines",
    "format_configuration",
    "format_version",
    "get_version",
    "parse_version",
]
