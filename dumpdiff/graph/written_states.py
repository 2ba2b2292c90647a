"""States that a layer overwrites when it is called, such as the running statistics of a norm.

No op names them as its result, but the record of the call has them as they are after it: they are
named like parameters of the layer, have another value at every call, and no op of the call reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..model.int_lists import IntLists


def find_written_states(
    parameter_values: pd.DataFrame,
    consumers: IntLists,
    reads: IntLists,
    parents: Sequence[int],
) -> dict[int, tuple[int, ...]]:
    """Return state -> what the layer was called with, all by class.

    ``parameter_values`` has the columns ``name`` and ``value``: the classes that the record names
    as parameters of the forward pass. ``consumers`` are the ops that read a class, ``reads`` the
    classes that an op reads, ``parents`` the call around each op.
    """
    distinct = parameter_values.drop_duplicates()
    is_overwritten = distinct["name"].duplicated(keep=False).to_numpy()
    if not is_overwritten.any():
        return {}
    named_values = set(distinct["value"].tolist())
    calls = set(parents)
    sources: dict[int, tuple[int, ...]] = {}
    for state in distinct["value"][is_overwritten].tolist():
        readers = consumers[state]
        users = {parents[op] for op in readers}
        writers = [op for op in readers if op in calls and op not in users]
        inputs = reads[writers[0]] if writers else ()
        sources[state] = tuple(value for value in inputs if value not in named_values)
    return {state: inputs for state, inputs in sources.items() if inputs}
