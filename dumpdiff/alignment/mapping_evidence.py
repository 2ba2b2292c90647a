"""Pairs that a mapping file names. They count less than values: a wrong name does little harm."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ..graph import Flow
from ..model.trace import FORWARD
from ..rulebook import NamedPairs, Rules, split_module_name
from . import confidence
from .anchors import has_conflicting_inputs
from .matches import Matching


def canonicalize_kinds(flow: Flow, rules: Rules, *, target: bool) -> list[str]:
    """Return the canonical kind of every op.

    If a mapping file names an API of the target, its ops get the kind of the reference's API.
    """
    mapped_kinds = rules.named_pairs.kinds if target else {}
    codes, names = pd.factorize(flow.trace.ops["kind"])
    kinds = [rules.resolve_kind(mapped_kinds.get(name, name)) for name in names]
    return [kinds[code] for code in codes.tolist()]


def pair_by_mapping(matching: Matching, rules: Rules, *, diverged: bool) -> bool:
    """Pair classes whose slots a mapping file names together; return whether any pair was added.

    Classes whose values agree are paired first: there the name chooses between equal values. With
    ``diverged``, classes of the forward pass whose values differ are paired too, unless their
    producers read different values. Backward calls are left out: msprobe has numbered them in two
    ways.
    """
    progress = False
    for t, r in _iterate_named_pairs(matching, rules):
        if not matching.can_pair(t, r):
            continue
        if matching.compute_distance(t, r) <= matching.tolerance:
            progress |= matching.pair(t, r, "name", confidence.MAPPED_NAME)
        elif (
            diverged and _is_forward(matching, t, r) and not has_conflicting_inputs(matching, t, r)
        ):
            progress |= matching.pair(t, r, "name", confidence.MAPPED_NAME_ONLY)
    return progress


def _iterate_named_pairs(matching: Matching, rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield (target class, reference class) for each tensor, then each module, that rules name."""
    named = rules.named_pairs
    if not named.tensors and not named.modules and not named.layers:
        return
    slots_t, slots_r = _index_slots(matching.target), _index_slots(matching.reference)
    for slot_t, slot_r in named.tensors.items():
        if slot_t in slots_t and slot_r in slots_r:
            yield slots_t[slot_t], slots_r[slot_r]
    if named.modules:
        for (op, slot), value in slots_t.items():
            for name in named.list_module_names(op):
                if (name, slot) in slots_r:
                    yield value, slots_r[name, slot]
    if named.layers:
        names = _pair_layers(matching, named)
        for (op, slot), value in slots_t.items():
            if (names.get(op, ""), slot) in slots_r:
                yield value, slots_r[names[op], slot]


def _pair_layers(matching: Matching, named: NamedPairs) -> dict[str, str]:
    """Return the reference's record of a module for each of the target's, by a layer mapping."""
    classes = {}
    records_t = {}
    for name in matching.target.trace.ops["name"]:
        parts = split_module_name(name)
        if parts is not None:
            classes[parts[0]] = parts[1]
            records_t[name] = parts
    records_r = {}
    for name in matching.reference.trace.ops["name"]:
        parts = split_module_name(name)
        if parts is not None:
            records_r[parts[0], parts[2]] = name
    pairs = {}
    for name, (path, _, rest) in records_t.items():
        reference_name = records_r.get((named.convert_path(path, classes), rest))
        if reference_name is not None:
            pairs[name] = reference_name
    return pairs


def _index_slots(flow: Flow) -> dict[tuple[str, str], int]:
    """Return (name of an op, slot) -> the class of the value in it."""
    names = flow.trace.ops["name"].tolist()
    ops, slots = flow.tensors["op"].tolist(), flow.tensors["slot"].tolist()
    classes = flow.tensor_class.tolist()
    return {
        (names[op], slot): value
        for op, slot, value in zip(ops, slots, classes, strict=True)
        if value >= 0
    }


def _is_forward(matching: Matching, t: int, r: int) -> bool:
    phase_t = matching.target.list_column("phase")[t]
    phase_r = matching.reference.list_column("phase")[r]
    return bool(phase_t == phase_r == FORWARD)
