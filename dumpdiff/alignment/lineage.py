"""Pair ops by the nearest paired values from which they are computed.

Where one side leaves a mask or an activation out, the op behind it reads a value without a partner,
so its inputs do not show which op of the other side it is. In a loop over time steps, or of a
module that is called several times, values of other calls may even be nearer. What decides is from
which paired values an op follows.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints
from ..model.dtypes import is_floating
from ..model.trace import FORWARD
from . import confidence
from .anchors import find_paired_parameters, flag_multiples, has_conflicting_inputs
from .matches import Matching

#: Kinds of ops that both sides have under one name, however the rest of a layer is written.
_LANDMARK_KINDS = {
    "softmax", "log_softmax", "matmul", "addmm", "convolution", "attention", "layer_norm",
    "rms_norm", "batch_norm", "group_norm", "instance_norm", "lstm", "gru",
}  # fmt: skip
#: Values without a partner between an op and the paired values from which it follows.
_MAX_VALUES_BETWEEN = 16

#: (kind, number of elements) of a result.
_Form = tuple[str, float]


def pair_by_lineage(matching: Matching) -> bool:
    """Pair results of one kind and size that alone follow from the same paired values.

    One side may read further values, such as a mask. Multiples of each other are left: one side
    scales the queries, the other one the scores. Returns whether any pair was added.
    """
    open_t = _group_open_results(matching.target, matching.kinds_t, matching.classes_t)
    open_r = _group_open_results(matching.reference, matching.kinds_r, matching.classes_r)
    common_forms = open_t.keys() & open_r.keys()
    pairs: list[tuple[int, int]] = []
    for form in common_forms:
        lineages_t = {t: find_lineage(matching.target, matching.classes_t, t) for t in open_t[form]}
        lineages_r = {
            r: find_lineage(matching.reference, matching.classes_r, r) for r in open_r[form]
        }
        partners = {
            t: frozenset(int(matching.classes_t[value]) for value in lineage)
            for t, lineage in lineages_t.items()
        }
        pairs += _match_lineages(partners, lineages_r)
    progress = False
    for t, r in matching.sort_pairs(pairs):
        is_multiple = bool(flag_multiples(matching, np.array([t]), np.array([r]))[0])
        parameters_t, parameters_r = find_paired_parameters(matching, t, r)
        if is_multiple or parameters_t != parameters_r:
            continue  # one is scaled, or has its bias already
        if not has_conflicting_inputs(matching, t, r):
            progress |= matching.pair(t, r, "structure", confidence.LINEAGE)
    return progress


def _group_open_results(flow: Flow, kinds: list[str], partners: Ints) -> dict[_Form, list[int]]:
    """Return the unpaired results of landmarks in the forward pass, by kind and size."""
    open_results: defaultdict[_Form, list[int]] = defaultdict(list)
    for value in np.flatnonzero(partners < 0).tolist():
        producer = int(flow.producers[value])
        if producer < 0 or kinds[producer] not in _LANDMARK_KINDS:
            continue
        if flow.phases[producer] == FORWARD and flow.sizes[value] > 1:
            open_results[kinds[producer], float(flow.sizes[value])].append(value)
    return open_results


def find_lineage(flow: Flow, partners: Ints, value: int) -> frozenset[int]:
    """Return the nearest paired tensors from which a value follows; none if they are far away.

    Parameters and whole numbers are left out: they are the same in each call.
    """
    parameters, dtypes = flow.list_column("parameter"), flow.list_column("dtype")
    lineage: set[int] = set()
    between = [value]
    for current in between:  # grows while it is read
        producer = int(flow.producers[current])
        for source in flow.reads[producer] if producer >= 0 else ():
            is_tensor = flow.sizes[source] > 1 and is_floating(str(dtypes[source]))
            if parameters[source] or not is_tensor:
                continue
            if partners[source] >= 0:
                lineage.add(source)
            elif source not in between:
                between.append(source)
        if len(between) > _MAX_VALUES_BETWEEN:
            return frozenset()
    return frozenset(lineage)


def _match_lineages(
    lineages_t: dict[int, frozenset[int]], lineages_r: dict[int, frozenset[int]]
) -> list[tuple[int, int]]:
    """Return (target, reference) results that have each other alone; both lineages hold one side's.

    Equal lineages count first: then what reads more values is another op.
    """
    pairs: list[tuple[int, int]] = []
    for accepts in (frozenset.__eq__, _is_nested):
        choices_t: dict[int, list[int]] = {}
        n_choices_r: defaultdict[int, int] = defaultdict(int)
        paired_t, paired_r = {t for t, _ in pairs}, {r for _, r in pairs}
        for t, lineage in lineages_t.items():
            if t in paired_t or not lineage:
                continue
            choices_t[t] = [
                r
                for r, other in lineages_r.items()
                if r not in paired_r and other and accepts(lineage, other)
            ]
            for r in choices_t[t]:
                n_choices_r[r] += 1
        pairs += [
            (t, choices[0])
            for t, choices in choices_t.items()
            if len(choices) == 1 and n_choices_r[choices[0]] == 1
        ]
    return pairs


def _is_nested(lineage: frozenset[int], other: frozenset[int]) -> bool:
    return lineage <= other or other <= lineage
