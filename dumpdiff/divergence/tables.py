"""The tables of a result: pairs of tensors, values not compared, ops without a partner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Ints, Objects, wrap_object
from ..model.result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS
from ..model.verdict import AGREEING, INCOMPARABLE, RECONVERGED
from .coverage import flag_compared_nodes, flag_compared_ops
from .joint_graph import JointGraph
from .states import States

RECONVERGED_REASON = (
    "reconverged: an equivalent decomposition, all values computed from it agree again"
)
ENDS_REASON = "reconverged: compared at its ends, values computed from it agree and none differs"
REGION_REASON = "region: between values that agree and values that differ"
NO_PARTNER_REASON = "no partner, and nothing computed from it has one"
NO_SIZE_REASON = "no value of its size on the other side"
NO_WRITER_REASON = "no partner, and no recorded op wrote it"
NO_TENSOR_REASON = "no tensor to compare"
NO_NUMBERS_REASON = "no numbers on one side"
NO_INFORMATION_REASON = "its tolerance allows any error"
UNTRUSTED_REASON = "untrusted record: its recorder writes other numbers there"
#: Kinds of slot in which the partner of a tensor is looked for, the most likely first.
_SLOT_KINDS = ("output", "input", "parameter")
_TENSOR_COLUMNS = ("slot", "dtype", "shape", "max", "min", "mean", "norm")
_METRIC_COLUMNS = (
    "layout", "error", "metric", "tolerance", "relative_l2", "cosine", "max_absolute",
    "max_relative", "beyond", "nonfinite_mismatch", "masked", "rounded_error",
    "confidence", "evidence",
)  # fmt: skip


def build_pair_table(
    graph: JointGraph, states: States, scopes_t: list[str], scopes_r: list[str]
) -> pd.DataFrame:
    """Return one row per paired result tensor of the reference, in the target's order of execution.

    Slot pairs have a row each, too. The tolerance is the error up to which the pair would have
    agreed. Results are outputs, gradients that a backward record was given, and what no op produced
    (parameters, batch). The partner is the same value's tensor at the matching op of the target if
    that op has it, else the tensor that represents the value.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    target, reference = alignment.target, alignment.reference
    rows_r = _find_result_tensors(reference)
    nodes = graph.reference_nodes[reference.tensor_class[rows_r]]
    is_paired = nodes < len(pairs)
    is_paired[is_paired] = pairs["slot_pair"].isna().to_numpy()[nodes[is_paired]]
    rows_r, nodes = rows_r[is_paired], nodes[is_paired]
    rows_t = _find_partner_tensors(graph, rows_r, nodes)
    slot_pairs = graph.comparison.slot_pairs
    rows_t = np.append(rows_t, [pair.target_tensor for _, pair in slot_pairs]).astype(np.int64)
    rows_r = np.append(rows_r, [pair.reference_tensor for _, pair in slot_pairs]).astype(np.int64)
    nodes = np.append(nodes, [node for node, _ in slot_pairs]).astype(np.int64)
    order = np.lexsort((rows_r, target.tensors["op"].to_numpy()[rows_t]))
    rows_r, rows_t, nodes = rows_r[order], rows_t[order], nodes[order]
    ops_t = target.tensors["op"].to_numpy()[rows_t]
    ops_r = reference.tensors["op"].to_numpy()[rows_r]
    columns: dict[str, Any] = {"target": rows_t, "reference": rows_r}
    for side, flow, rows, ops in (
        ("target", target, rows_t, ops_t),
        ("reference", reference, rows_r, ops_r),
    ):
        columns[f"{side}_op"] = flow.trace.ops["name"].to_numpy()[ops]
        for name in _TENSOR_COLUMNS:
            columns[f"{side}_{name}"] = flow.tensors[name].to_numpy()[rows]
    columns["phase"] = reference.trace.ops["phase"].to_numpy()[ops_r]
    own_scopes, other_scopes = np.array(scopes_r, dtype=object), np.array(scopes_t, dtype=object)
    has_scope = own_scopes != ""
    scopes = np.where(has_scope[ops_r], own_scopes[ops_r], other_scopes[ops_t])
    columns["scope"] = pd.Series(scopes, dtype=object)
    for name in _METRIC_COLUMNS:
        columns[name] = pairs[name].to_numpy()[nodes]
    columns["tolerance"] = states.allowed_errors[nodes]
    columns["state"] = pd.Series(states.state[nodes], dtype=object)
    # without a copy: the table is the largest that is made after both dumps were read
    return pd.DataFrame({name: columns[name] for name in PAIR_COLUMNS}, copy=False)


def _find_result_tensors(flow: Flow) -> Ints:
    """Return the ids of all result tensors of one side."""
    has_class = flow.tensor_class >= 0
    is_leaf = has_class
    if len(flow.classes):
        is_leaf = has_class & (flow.producers[flow.tensor_class] < 0)
    is_first_read = np.zeros(len(flow.tensors), dtype=bool)
    leaf_classes = np.where(is_leaf, flow.tensor_class, -1)
    is_first_read[np.unique(leaf_classes, return_index=True)[1]] = True
    rows: Ints = np.flatnonzero(has_class & (flow.is_result | (is_leaf & is_first_read)))
    return rows


def _find_partner_tensors(graph: JointGraph, rows_r: Ints, nodes: Ints) -> Ints:
    """Return the target's tensor for each paired tensor of the reference; see the pair table."""
    alignment = graph.comparison.alignment
    target, reference = alignment.target, alignment.reference
    partner_ops = np.full(len(reference.trace.ops), -1)
    partner_ops[alignment.ops["reference"].to_numpy()] = alignment.ops["target"].to_numpy()
    ops_r = reference.tensors["op"].to_numpy()[rows_r]
    ops_t = partner_ops[ops_r]
    slot_kinds_r = reference.tensors["slot_kind"].to_numpy()[rows_r]
    values_t = graph.target_classes[nodes]
    partners: Ints = target.classes["tensor"].to_numpy()[values_t].astype(np.int64)
    candidates = {
        slot_kind: _find_first_tensors(target, slot_kind, ops_t, values_t)
        for slot_kind in _SLOT_KINDS
    }
    # the last assignment wins: a tensor in the kind of slot that the reference's has
    for slot_kind in reversed(_SLOT_KINDS):
        tensors = candidates[slot_kind]
        partners = np.where(tensors >= 0, tensors, partners)
    for slot_kind, tensors in candidates.items():
        is_same_kind = (slot_kinds_r == slot_kind) & (tensors >= 0)
        partners[is_same_kind] = tensors[is_same_kind]
    return partners


def _find_first_tensors(flow: Flow, slot_kind: str, ops: Ints, values: Ints) -> Ints:
    """Return for each (op, class) its first tensor in a kind of slot, -1 if there is none."""
    is_chosen = (flow.tensor_class >= 0) & (flow.tensors["slot_kind"].to_numpy() == slot_kind)
    rows = np.flatnonzero(is_chosen)
    n_classes = len(flow.classes)
    keys = flow.tensors["op"].to_numpy()[rows] * n_classes + flow.tensor_class[rows]
    known_keys, first_rows = np.unique(keys, return_index=True)
    if not len(known_keys):
        return np.full(len(ops), -1)
    wanted_keys = ops * n_classes + values
    places = np.minimum(np.searchsorted(known_keys, wanted_keys), len(known_keys) - 1)
    is_present = (known_keys[places] == wanted_keys) & (ops >= 0)
    tensors: Ints = np.where(is_present, rows[first_rows[places]], -1)
    return tensors


def build_uncompared_table(
    graph: JointGraph,
    states: States,
    is_in_region: Flags,
    scopes_t: list[str],
    scopes_r: list[str],
) -> pd.DataFrame:
    """Return one row per value of either side that was not compared, its state, and why.

    Values are in order of first appearance; op and slot are those of the tensor that represents a
    value. Records that their recorder is known to write wrong belong to no value and have a row
    each. ``is_in_region`` is what :func:`flag_regions` returned.
    """
    alignment = graph.comparison.alignment
    has_open_end = _flag_open_ends(graph, states)
    no_comparison_reasons = _explain_no_comparison(graph)
    sizes = {
        "target": frozenset(alignment.reference.sizes.tolist()),
        "reference": frozenset(alignment.target.sizes.tolist()),
    }
    tables = []
    for side, flow, nodes, scopes in (
        ("target", alignment.target, graph.target_nodes, scopes_t),
        ("reference", alignment.reference, graph.reference_nodes, scopes_r),
    ):
        values = np.flatnonzero(~flag_compared_nodes(graph, states)[nodes])
        value_states = states.state[nodes[values]]
        has_size = np.isin(flow.sizes[values], list(sizes[side]))
        reasons = np.select(
            [
                (value_states == RECONVERGED) & has_open_end[nodes[values]],
                value_states == RECONVERGED,
                value_states == INCOMPARABLE,
                is_in_region[nodes[values]],
                ~has_size,
                ~flow.is_written[values],
            ],
            [
                wrap_object(ENDS_REASON),
                wrap_object(RECONVERGED_REASON),
                no_comparison_reasons[nodes[values]],
                wrap_object(REGION_REASON),
                wrap_object(NO_SIZE_REASON),
                wrap_object(NO_WRITER_REASON),
            ],
            wrap_object(NO_PARTNER_REASON),
        )
        untrusted = np.flatnonzero(~flow.tensors["trusted"].to_numpy())
        tensors = np.append(flow.classes["tensor"].to_numpy()[values], untrusted).astype(np.int64)
        ops = flow.tensors["op"].to_numpy()[tensors]
        columns = {
            "side": side,
            "op": flow.trace.ops["name"].to_numpy()[ops],
            "slot": flow.tensors["slot"].to_numpy()[tensors],
            "phase": flow.trace.ops["phase"].to_numpy()[ops],
            "scope": pd.Series([scopes[op] for op in ops.tolist()], dtype=object),
            "state": np.append(value_states, np.full(len(untrusted), wrap_object(INCOMPARABLE))),
            "reason": np.append(reasons, np.full(len(untrusted), wrap_object(UNTRUSTED_REASON))),
        }
        tables.append(pd.DataFrame(columns).astype(object))
    return pd.concat(tables, ignore_index=True)[list(UNCOMPARED_COLUMNS)]


def _explain_no_comparison(graph: JointGraph) -> Objects:
    """Return (nodes,) why the values of a pair could not be compared; '' for other nodes."""
    pairs = graph.comparison.pairs
    has_numbers = np.isfinite(pairs["error"].to_numpy())
    reasons = np.full(graph.n_nodes, "", dtype=object)
    reasons[: len(pairs)] = np.where(
        has_numbers, wrap_object(NO_INFORMATION_REASON), wrap_object(NO_NUMBERS_REASON)
    )
    explained = np.flatnonzero(pairs["reason"] != "")
    reasons[explained] = pairs["reason"].to_numpy()[explained]
    return reasons


def _flag_open_ends(graph: JointGraph, states: States) -> Flags:
    """Return (nodes,) whether a value is read and some path from it ends without a comparison."""
    has_open_end = [False] * graph.n_nodes
    is_reconverged = (states.state == RECONVERGED).tolist()
    for node in reversed(graph.sort_nodes(states.state != AGREEING)):
        if not is_reconverged[node] or has_open_end[node]:
            for parent in graph.parents[node]:
                has_open_end[parent] = True
    is_end: Flags = graph.children.counts == 0
    return np.array(has_open_end, dtype=bool) | is_end


def flag_regions(graph: JointGraph, states: States) -> Flags:
    """Return (nodes,) whether a node is between values that agree and values that differ."""
    nodes: set[int] = set()
    pair_states = states.state[: len(graph.comparison.pairs)]
    is_other = (pair_states != AGREEING) & (pair_states != RECONVERGED)
    for node in np.flatnonzero(is_other).tolist():
        nodes.update(states.ancestry[node].unpaired_nodes)
    is_in_region = np.zeros(graph.n_nodes, dtype=bool)
    is_in_region[list(nodes)] = True
    return is_in_region


def build_unmatched_table(
    graph: JointGraph,
    states: States,
    is_in_region: Flags,
    scopes_t: list[str],
    scopes_r: list[str],
) -> pd.DataFrame:
    """Return one row per op of either side none of whose results could be compared, and why.

    ``is_in_region`` is what :func:`flag_regions` returned.
    """
    alignment = graph.comparison.alignment
    sides = (
        ("target", alignment.target, graph.target_nodes, scopes_t),
        ("reference", alignment.reference, graph.reference_nodes, scopes_r),
    )
    tables = []
    for side, flow, nodes, scopes in sides:
        ops, reasons = _explain_unmatched_ops(graph, states, flow, nodes, is_in_region)
        columns = {
            "side": side,
            "op": flow.trace.ops["name"].to_numpy()[ops],
            "kind": flow.trace.ops["kind"].to_numpy()[ops],
            "phase": flow.trace.ops["phase"].to_numpy()[ops],
            "scope": pd.Series([scopes[op] for op in ops.tolist()], dtype=object),
            "reason": reasons,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)[list(UNMATCHED_COLUMNS)]


def _explain_unmatched_ops(
    graph: JointGraph, states: States, flow: Flow, nodes: Ints, is_in_region: Flags
) -> tuple[Ints, AnyArray]:
    """Return the ops of one side without a compared result, and the reason for each."""
    pairs = graph.comparison.pairs
    is_compared = flag_compared_nodes(graph, states)
    is_paired = np.arange(graph.n_nodes) < len(pairs)
    has_results, has_compared = flag_compared_ops(flow, nodes, is_compared)
    _, is_reconverged = flag_compared_ops(flow, nodes, states.state == RECONVERGED)
    _, is_region = flag_compared_ops(flow, nodes, is_in_region)
    _, has_partner = flag_compared_ops(flow, nodes, is_paired)
    is_comparable = np.zeros(graph.n_nodes, dtype=bool)
    is_comparable[: len(pairs)] = pairs["comparable"].to_numpy()
    _, has_numbers = flag_compared_ops(flow, nodes, is_comparable)
    ops = np.flatnonzero(~has_compared)
    reasons = np.select(
        [
            ~has_results[ops],
            is_reconverged[ops],
            has_numbers[ops],
            is_region[ops],
            has_partner[ops],
        ],
        [
            NO_TENSOR_REASON,
            RECONVERGED_REASON,
            NO_INFORMATION_REASON,
            REGION_REASON,
            NO_NUMBERS_REASON,
        ],
        NO_PARTNER_REASON,
    )
    return ops, reasons
