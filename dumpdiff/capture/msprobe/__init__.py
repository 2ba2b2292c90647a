"""What msprobe is given: its configuration, the lines of a training script, mappings for ``msprobe compare``."""

from .configuration import Options, configuration, text_of
from .script import SCRIPTS, lines
from .version import LATEST, Version, parse_version, spoken, version_of

__all__ = [
    "LATEST",
    "SCRIPTS",
    "Options",
    "Version",
    "configuration",
    "lines",
    "parse_version",
    "spoken",
    "text_of",
    "version_of",
]
