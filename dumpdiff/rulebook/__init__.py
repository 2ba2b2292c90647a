"""Names, operators, decompositions and tolerances, as written in the YAML files of ``rules/``.

Rules know nothing of dumps and nothing of alignment: they are asked for what a name means. See ``docs/rules.md``.
"""

from .book import Rules
from .document import RuleError
from .explanation import Explanation
from .files import load_rules, list_shipped_files

__all__ = ["Explanation", "RuleError", "Rules", "load_rules", "list_shipped_files"]
