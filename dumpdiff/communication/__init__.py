"""Which ranks exchange what?

``list_collectives`` lists the collectives and transfers of one rank, ``join_collectives`` joins
those of all ranks of a step, ``match_siblings`` finds the calls that sibling ranks make alike.
"""

from .collectives import list_collectives, list_named_ranks
from .exchanges import Exchanges, join_collectives
from .groups import Group
from .sibling_calls import SiblingCalls, find_stages, match_siblings, match_tensors
from .values import compute_value_keys

__all__ = [
    "Exchanges",
    "Group",
    "SiblingCalls",
    "compute_value_keys",
    "find_stages",
    "join_collectives",
    "list_collectives",
    "list_named_ranks",
    "match_siblings",
    "match_tensors",
]
