"""The table of communications of a compiled MindSpore graph."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from ...model.trace import build_communication_table
from ..reductions import normalize_reduction

#: Attributes that hold a position in the group: the root, or the other end of a transfer.
_PEER_NAMES = ("root_rank", "src_rank", "dest_rank", "dst_rank")
#: Attributes that hold the ranks of the group.
_MEMBERS_NAMES = ("rank_list", "group_rank_ids")


def build_communications(
    ops: Iterable[tuple[int, tuple[tuple[str, str], ...]]],
) -> pd.DataFrame:
    """Return the communications of a graph from the ids and attributes of their ops.

    The graph has the name of each group; its members only if the compiler split the model.
    """
    op_ids, groups, members, reductions, peers = [], [], [], [], []
    for op, attributes in ops:
        values = dict(attributes)
        peer_texts = [values[name] for name in _PEER_NAMES if name in values]
        op_ids.append(op)
        groups.append(values.get("group", ""))
        members_texts = [values[name] for name in _MEMBERS_NAMES if values.get(name)]
        members.append(tuple(map(int, members_texts[0].split())) if members_texts else None)
        reductions.append(normalize_reduction(values.get("op", "")))
        peers.append(int(peer_texts[0]) if peer_texts else -1)
    return build_communication_table(
        {
            "op": op_ids,
            "group": groups,
            "members": members,
            "reduction": reductions,
            "group_peer": peers,
        }
    )
