"""Rules of YAML files: canonical names, kinds of operators, decompositions and tolerances.

The files are those of the folder ``rules/`` and any that the user gives. :class:`Rules` answers
what a name means. It knows neither dumps nor alignment. See ``docs/rules.md``.
"""

from .book import PREDICTION_MODULES, Rules
from .document import RuleError
from .explanation import Explanation
from .files import list_shipped_files, load_rules
from .mappings import NamedPairs, split_module_name
from .model_families import Arrangement, ModelFamily
from .operators import GRADIENT
from .relations import CONCATENATED, LOCAL, REPLICATED, SUM, RelationRule

__all__ = [
    "CONCATENATED",
    "GRADIENT",
    "LOCAL",
    "PREDICTION_MODULES",
    "REPLICATED",
    "SUM",
    "Arrangement",
    "Explanation",
    "ModelFamily",
    "NamedPairs",
    "RelationRule",
    "RuleError",
    "Rules",
    "list_shipped_files",
    "load_rules",
    "split_module_name",
]
