"""Which calls msprobe records under a configuration, as seen in a dump of everything.

``scope`` and ``list`` follow msprobe's classes of scopes (26.2): in level mix a module opens
everything that runs in it, and ``risk_level`` counts only without either.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from ...model.arrays import Flags, Ints
from ...model.errors import DumpError
from ...model.trace import BACKWARD, Trace, flag_words
from .configuration import Options
from .fields import PYTORCH
from .risk_levels import CORE_APIS, LOW_RISK_APIS
from .version import Version

_FIRST_WITH_RISK_LEVELS: Version = (26, 0)
_MAX_SUGGESTIONS = 3


def flag_selected_ops(options: Options, trace: Trace) -> Flags:
    """Return (ops,) which calls of a dump of msprobe the configuration records.

    Raises DumpError with the nearest names if ``scope`` or ``list`` select nothing.
    """
    flags = _flag_level(trace, options.level)
    if options.names:
        flags &= _flag_list(trace, options)
        if not flags.any():
            raise DumpError(_describe_nothing("list", options.names, trace))
    if options.scope:
        flags &= _flag_scope(trace, options.scope)
        if not flags.any():
            raise DumpError(_describe_nothing("scope", options.scope, trace))
    if not options.names and not options.scope:
        flags &= _flag_risk_level(trace, options)
    return flags


def flag_structure_ops(options: Options, trace: Trace) -> Flags:
    """Return (ops,) which calls are in construct.json: of the level, whatever is selected.

    Level L1 has no structure.
    """
    if options.level == "L1" or trace.source.format != "msprobe":
        return np.zeros(len(trace.ops), dtype=bool)
    return _flag_level(trace, options.level)


def flag_named_ops(trace: Trace, parts: Sequence[str]) -> Flags:
    """Return (ops,) whose names contain any of these parts. Raises DumpError if none does."""
    flags = flag_words(trace.ops["name"], lambda name: any(part in name for part in parts))
    if not flags.any():
        raise DumpError(_describe_nothing("tensor_list", parts, trace))
    return flags


def _flag_level(trace: Trace, level: str) -> Flags:
    """Return (ops,) what the level records; gradients of parameters come with their modules."""
    is_call = (trace.ops["level"] == "module").to_numpy()
    is_module = is_call | flag_words(
        trace.ops["name"], lambda name: name.startswith(("Module.", "Cell."))
    )
    wanted = {"L0": is_module, "L1": ~is_module}.get(level, np.ones(len(is_module), dtype=bool))
    if not wanted.any():
        raise DumpError(
            f"{trace.source.path}: has no calls of level {level}; give a dump of level mix"
        )
    return wanted


def _flag_list(trace: Trace, options: Options) -> Flags:
    """Return (ops,) whose names contain an entry, in level mix also what runs in such a module."""
    named = flag_words(
        trace.ops["name"], lambda name: any(entry in name for entry in options.names)
    )
    if options.level != "mix":
        return named
    is_opener = named & (trace.ops["level"] == "module").to_numpy()
    parents = _find_running_modules(trace)
    selected = named.copy()
    enclosing = parents
    while (enclosing >= 0).any():
        is_inside = enclosing >= 0
        selected[is_inside] |= is_opener[enclosing[is_inside]]
        enclosing = np.where(is_inside, parents[enclosing], -1)
    return selected


def _find_running_modules(trace: Trace) -> Ints:
    """Return (ops,) the module call in which an op ran, of its own phase; -1 if none."""
    ops = trace.ops
    parents: Ints = ops["parent"].to_numpy(copy=True)
    backward_calls = {
        forward: op
        for op, (forward, level) in enumerate(zip(ops["forward"], ops["level"], strict=True))
        if forward >= 0 and level == "module"
    }
    is_backward = (ops["phase"] == BACKWARD).to_numpy()
    for op in np.flatnonzero(is_backward & (parents < 0) & (ops["forward"] >= 0).to_numpy()):
        forward_module = int(parents[ops["forward"].iat[op]])
        parents[op] = backward_calls.get(forward_module, -1)
    return parents


def _flag_scope(trace: Trace, scope: Sequence[str]) -> Flags:
    """Return (ops,) what runs from the first call of the scope to the last one."""
    names = trace.ops["name"].tolist()
    flags = np.zeros(len(names), dtype=bool)
    missing = [name for name in scope if name not in names]
    if missing:
        raise DumpError(_describe_nothing("scope", missing, trace))
    first, last = names.index(scope[0]), names.index(scope[1])
    flags[_find_first_op(trace, first) : _find_last_op(trace, last) + 1] = True
    return flags


def _find_first_op(trace: Trace, op: int) -> int:
    """Return the first record of a call: of a module, that of its first call may come earlier."""
    return min([op, *_list_inner_ops(trace, op)])


def _find_last_op(trace: Trace, op: int) -> int:
    return max([op, *_list_inner_ops(trace, op)])


def _list_inner_ops(trace: Trace, op: int) -> list[int]:
    """Return everything that ran in a module call."""
    parents = _find_running_modules(trace)
    inner, front = [], [op]
    for module in front:  # grows while it is read
        children = np.flatnonzero(parents == module).tolist()
        inner += children
        front += children
    return inner


def _flag_risk_level(trace: Trace, options: Options) -> Flags:
    has_levels = options.framework == PYTORCH and options.version >= _FIRST_WITH_RISK_LEVELS
    if not has_levels or options.risk_level == "ALL" or options.level == "L0":
        return np.ones(len(trace.ops), dtype=bool)
    if options.risk_level == "CORE":
        apis = _list_apis(trace)
        flags: Flags = (apis.isna() | apis.isin(CORE_APIS)).to_numpy()
        return flags
    return ~flag_low_risk_ops(trace)


def flag_low_risk_ops(trace: Trace) -> Flags:
    """Return (ops,) the calls that the risk level FOCUS leaves out."""
    flags: Flags = _list_apis(trace).isin(LOW_RISK_APIS).to_numpy()
    return flags


def _list_apis(trace: Trace) -> pd.Series[Any]:
    """Return the API of each call without its prefix and number; NaN for modules."""
    pattern = r"^(?!Module\.|Cell\.)[^.]+\.(.+)\.\d+\.(?:forward|backward)"
    return trace.ops["name"].str.extract(pattern, expand=False)


def find_near_names(text: str, trace: Trace) -> str:
    """Return the names in a dump that are nearest to a text, as the end of a sentence."""
    names = dict.fromkeys(trace.ops["name"])
    near_names = get_close_matches(text, names, n=_MAX_SUGGESTIONS, cutoff=0.3)
    return f"; the nearest names are {', '.join(near_names)}" if near_names else ""


def _describe_nothing(field: str, entries: Sequence[str], trace: Trace) -> str:
    """Return that entries select nothing in a dump, with the nearest names in it."""
    listed = ", ".join(map(repr, entries))
    near_names = find_near_names(entries[0], trace)
    return f"{field} {listed} selects nothing in {trace.source.path}{near_names}"
