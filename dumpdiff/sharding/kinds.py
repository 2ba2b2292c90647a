"""The kind of a value: its place in a module, whatever the number of the layer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from ..model.arrays import Ints
from ..model.trace import Trace
from .sibling_tensors import Siblings

#: A number in a path that is a layer, an expert or a call, not a part of a name such as ``fc1``.
_NUMBER = re.compile(r"(?<![A-Za-z0-9_])\d+")


def number_kinds(siblings: Siblings) -> Ints:
    """Return (tensors,) a number that values of one kind in different layers share.

    Parameters, their gradients and new values are known by name. Else a kind is module, operator,
    the how-manieth call of it in the module, slot and shape. The place of a backward call is that
    of its forward call. Calls outside of modules are distinguished by the calls before and after.
    """
    codes: dict[tuple[object, ...], int] = {}
    kinds = np.empty(len(siblings.rows), dtype=int)
    shapes = siblings.collect_base("shape").tolist()
    for row, key in enumerate(list_kind_keys(siblings)):
        kinds[row] = codes.setdefault((*key, shapes[row]), len(codes))
    return kinds


def list_kind_keys(siblings: Siblings) -> list[tuple[str, ...]]:
    """Return, for each tensor, what values of one kind have in common, but for the shape."""
    tables = [flow.tensors for flow in siblings.flows]
    places_of_ranks = [_list_places(flow.trace) for flow in siblings.flows]
    slots = [table["slot"].tolist() for table in tables]
    ops = [table["op"].tolist() for table in tables]
    names = [list_names(table) for table in tables]
    keys: list[tuple[str, ...]] = []
    for row, rank in enumerate(siblings.bases.tolist()):
        tensor = int(siblings.rows[row, rank])
        name = names[rank][tensor]
        if name:
            keys.append((_NUMBER.sub("#", name),))
        else:
            keys.append((*places_of_ranks[rank][ops[rank][tensor]], slots[rank][tensor]))
    return keys


def list_names(table: pd.DataFrame) -> list[str]:
    """Return, for each tensor, which parameter, gradient or new weight it is; '' if none."""
    names = [""] * len(table)
    for column in ("parameter", "gradient_of", "update_of"):
        for row, name in enumerate(table[column].tolist()):
            if name:
                names[row] = f"{column} {name}"
    return names


def _list_places(trace: Trace) -> list[tuple[str, ...]]:
    """Return the place of each op in the repeated structure of the model."""
    ops = trace.ops
    scopes = [_NUMBER.sub("#", scope) for scope in ops["scope"].tolist()]
    kinds = ops["kind"].tolist()
    phases = ops["phase"].tolist()
    parents = ops["parent"].to_numpy()
    ordinals = ops.groupby(["parent", "kind", "phase"], sort=False).cumcount().tolist()
    previous_kinds = [*kinds[:1], *kinds[:-1]]
    next_kinds = [*kinds[1:], *kinds[-1:]]
    places: list[tuple[str, ...]] = []
    for op, (scope, kind, phase) in enumerate(zip(scopes, kinds, phases, strict=True)):
        if parents[op] >= 0:
            places.append((scope, kind, phase, str(ordinals[op])))
        else:
            places.append((scope, kind, phase, previous_kinds[op], next_kinds[op]))
    for op, forward in enumerate(ops["forward"].tolist()):
        if 0 <= forward < op:
            places[op] = (*places[forward], kinds[op], phases[op])
    return places


def describe_kinds(siblings: Siblings, kinds: Ints) -> pd.Series[Any]:
    """Return, by kind, words for it: ``layers.#.mlp.linear_fc1: Functional.linear output.0``."""
    first_rows = pd.Series(np.arange(len(kinds))).groupby(kinds).first()
    words = {}
    for kind, row in first_rows.items():
        rank = int(siblings.bases[row])
        flow = siblings.flows[rank]
        tensor = int(siblings.rows[row, rank])
        op = flow.trace.ops.iloc[int(flow.tensors["op"].iat[tensor])]
        scope = _NUMBER.sub("#", op["scope"])
        parameter = _NUMBER.sub("#", flow.tensors["parameter"].iat[tensor])
        slot = flow.tensors["slot"].iat[tensor]
        words[kind] = parameter or f"{scope}: {op['kind']} {slot}".removeprefix(": ")
    return pd.Series(words, dtype=object)
